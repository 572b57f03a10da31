"""`normgen check`: its table, its verdict, its exit codes."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from click.testing import Result

from normgen.cli import console, exits
from normgen.cli.verdict import marks_in
from normgen.diagnostics import Source
from normgen.errors import DeviceMissing
from normgen.kernel import names
from normgen.verify import places
from normgen.verify import run as checks
from normgen.verify.cases import Case
from normgen.verify.events import Progress, Row
from tests.cli.commands import NO_KERNELS, run

pytestmark = pytest.mark.kernels

PASSES = "norm scaled\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = x * w\n"


def check(spec: str, *arguments: str) -> Result:
    return run("check", "-", "--executor", "host", "--size", "D=5", "--dtype", "f32", *arguments, stdin=spec)


def test_check_prints_a_table_and_the_verdict_or_every_case_as_json() -> None:
    done = check(PASSES)
    assert (done.exit_code, done.stderr) == (exits.OK, ""), done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["STAGE", "DIRECTION"]
    assert any(line.split()[:2] == ["kernels", "backward"] for line in lines)
    assert re.fullmatch(r"passed: [0-9]+ checks on the host", lines[-1])
    assert any(line.startswith("drawn: x N(0, 1), w U(0.8, 1.2)") for line in lines)
    assert len(check(PASSES, "--verbose").stdout.splitlines()) > len(lines)
    listed = json.loads(check(PASSES, "--json").stdout)
    assert listed["schema"] == 1
    assert {row["direction"] for row in listed["rows"]} >= {"forward", "backward"}
    assert all(row["status"] == "ok" and 0 <= row["worst"] <= 1 for row in listed["rows"])


def test_a_quick_check_has_fewer_cases_and_progress_goes_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0)
    done, usual = (check(PASSES, "--json", *more) for more in (["--quick"], []))
    quick, rows = (json.loads(each.stdout)["rows"] for each in (done, usual))
    assert 2 < len(quick) < len(rows)
    assert {row["executor"] for row in quick if row["stage"] == "kernels"} == {"host, checked"}
    assert any(" of " in line and "D=5" in line for line in done.stderr.splitlines())


def test_check_fails_where_a_case_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Row("n", "", "kernels", "failed", "forward", "D=5", "f32", "host", "y", 3.0, "", "y[0] is 1.0")
    monkeypatch.setattr(checks, "run", lambda *_: iter([failed]))
    done = check(PASSES)
    assert done.exit_code == exits.FAULTS
    assert "failed: kernels, forward, y, D=5, f32, host: y[0] is 1.0" in done.stdout
    assert done.stdout.endswith("\nFAILED: 1 of 1 check on the host\n")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_code_that_does_not_compile_is_a_fault_of_normgen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Every case fails, the output is whole, and one file is left to report."""
    kept = tmp_path / "temporary"
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    broken = "#error of a template\n"
    monkeypatch.setattr(names, "headed", lambda source, *_: broken + source)
    done = check(PASSES, "--size", "...=2", *form)
    assert done.exit_code == exits.INTERNAL, done.output
    if "--json" in form:
        rows = json.loads(done.stdout)["rows"]
        assert sum(row["internal"] for row in rows) > 2
        assert all(row["status"] == "failed" for row in rows if row["internal"])
    else:
        assert done.stdout.splitlines()[-1].startswith("FAILED")
    assert "bug in normgen" in done.stderr and "please report it" in done.stderr
    (file,) = kept.iterdir()
    assert str(file) in done.stdout and broken.strip() in file.read_text().splitlines()


def test_a_spec_without_kernels_lacks_no_tool() -> None:
    """The reason is the spec's, as `normgen compile` says it, wherever kernels could run."""
    for more in ((), ("--executor", "host")):
        done = run("check", "-", *more, stdin=NO_KERNELS)
        assert done.exit_code == exits.FAULTS
        assert "skipped: kernels: no kernel yet" in done.stdout
        assert done.stdout.splitlines()[-1].endswith(" checks passed, but this norm has no kernels yet")
        assert done.stderr == ""


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU")
def test_check_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line says what is missing, before anything is run; formulas are checked without kernels."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = check(PASSES)
    assert (done.exit_code, done.stdout) == (exits.TOOLCHAIN, ""), done.output
    assert done.stderr.count("\n") == 1 and "compiler" in done.stderr
    done = run("check", "-", stdin=PASSES)
    assert done.exit_code == exits.TOOLCHAIN
    assert "differences" in done.stdout and "skipped: kernels, host: " in done.stdout
    assert "\npassed, with gaps: " in done.stdout
    assert done.stderr == (
        "only the formulas were checked: no kernel ran, since neither a C++ compiler nor a GPU is found\n"
    )


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU")
def test_no_gpu_is_said_in_the_last_line_and_why_only_where_that_is_asked_for() -> None:
    done, verbose = (check_anywhere(*more).stdout for more in ((), ("--verbose",)))
    assert done.splitlines()[-1].endswith(" checks on the host (no GPU here)")
    assert verbose.splitlines()[-1] == done.splitlines()[-1]
    assert "driver" not in done and "driver" in verbose


def check_anywhere(*arguments: str) -> Result:
    return run("check", "-", "--quick", "--size", "D=5", *arguments, stdin=PASSES)


def test_what_keeps_a_gpu_from_being_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> list[places.Place]:
        raise DeviceMissing("launching on a GPU needs the package cuda-bindings")

    monkeypatch.setitem(places.MAKERS, "cuda", lacking)
    shown = check_anywhere().stdout
    assert "skipped: kernels, cuda: launching on a GPU needs the package cuda-bindings" in shown
    assert shown.splitlines()[-1].startswith("passed, with gaps: ")
    assert shown.splitlines()[-1].endswith(" checks on the host (no usable GPU here)")


def test_progress_never_runs_backwards() -> None:
    """A spec that is checked with several values of its attrs has one total, and comes to it."""
    spec = "norm n\nattr a: bool = true\ninput x[..., D]\noutput y[..., D] = x if a else x / max[D](x)\n"
    options = checks.Options(executors=("host",), quick=True)
    found = [e for e in checks.run(Source("n.norm", spec), options) if isinstance(e, Progress)]
    assert len({each.total for each in found}) == 1
    done = [each.done for each in found]
    assert done == sorted(done) and done[0] == 0 and done[-1] == found[0].total


def test_every_mark_of_a_case_is_explained() -> None:
    case = Case(
        {"D": 5}, (), {}, "f32", offset=3, out_offset=1, pitch="padded", absent=("p",), given_out=True,
        in_place=True, accumulate=True, wrt=("x",), save=False,
    )  # fmt: skip
    left = case.shape_text.removeprefix("D=5 ")
    for line in marks_in([case.shape_text]):
        shown = line.partition("  ")[0]
        assert shown in left
        left = left.replace(shown, "", 1)
    assert not left.strip()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU")
def test_check_without_a_gpu() -> None:
    done = run("check", "-", "--executor", "cuda", stdin=PASSES)
    assert done.exit_code == exits.GPU, done.output
    assert done.stdout == "" and done.stderr.count("\n") == 1


def test_a_pipe_sees_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    advance = console.progress_lines(lambda: now[0])
    for done in range(100):
        advance(done, 100, f"case {done}")
        now[0] += 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{n} of 100: case {n}" for n in range(10, 100, int(console.SECONDS_BETWEEN_LINES))]
