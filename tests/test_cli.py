"""The command line: what each command prints where, which files it writes, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from normgen.cli import commands, exits, files

ROOT = Path(__file__).parent.parent
SPEC = (ROOT / "specs" / "rmsnorm.norm").read_text()
NEEDS_ATTR = "norm n\nattr k: int >= 1\ninput x[..., D]\noutput y[..., D] = x * k\n"
BAD = "norm bad\ninput x[..., D]\nsave r[...] = rsqrt(x^2)\noutput y[..., D] = x * zz\n"
NO_KERNELS = "norm windowed\ninput x[B, C, ...]\noutput y[B, C, ...] = sum[C: -1..1](x)\n"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a few specs, current during the test, and nothing of the caller's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, text in {
        "rmsnorm": SPEC,
        "bad": BAD,
        "needs": NEEDS_ATTR,
        "windowed": NO_KERNELS,
    }.items():
        Path(f"{name}.norm").write_text(text)
    Path("latin.norm").write_bytes('norm n "\xe9"'.encode("latin-1"))
    return tmp_path


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(commands, list(arguments), prog_name="normgen", input=stdin)


# ----------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["compile", "rmsnorm.norm"], exits.OK, "wrote rmsnorm.py"),
        (["compile", "rmsnorm"], exits.OK, "wrote rmsnorm.py"),
        (["compile", "bad.norm"], exits.FAULTS, "bad.norm:3:"),
        (["compile", "bad.norm"], exits.FAULTS, "bad.norm:4:"),
        (["compile", "needs.norm"], exits.FAULTS, "needs.norm:2:"),
        (["compile", "needs.norm", "--attr", "k=1.5"], exits.FAULTS, "k"),
        (["compile", "needs.norm", "--attr", "k=abc"], exits.FAULTS, "k"),
        (["compile", "needs.norm", "--attr", "k=0"], exits.FAULTS, "k"),
        (["compile", "rmsnorm.norm", "--attr", "epsilon=1"], exits.FAULTS, "epsilon"),
        (["compile", "rmsnorm.norm", "--attr", "eps=nan"], exits.FAULTS, "eps"),
        (["compile", "rmsnorm.norm", "--attr", "eps=1e999"], exits.FAULTS, "eps"),
        (["compile", "windowed.norm"], exits.FAULTS, "unsupported"),
        (["explain", "bad.norm"], exits.FAULTS, "bad.norm:4:"),
        (["explain", "bad.norm", "--emit", "ir"], exits.FAULTS, "bad.norm:4:"),
        (["check", "bad.norm"], exits.FAULTS, "bad.norm:4:"),
        (["compile", "rmsnorm.norm", "--check"], exits.FAULTS, "does not exist"),
        ([], exits.USAGE, "Usage"),
        (["compile"], exits.USAGE, "SPEC"),
        (["polish"], exits.USAGE, "polish"),
        (["compile", "missing.norm"], exits.USAGE, "missing.norm: No such file"),
        (["compile", "rmsnrm"], exits.USAGE, "did you mean rmsnorm"),
        (["compile", "nothing_like_it"], exits.USAGE, "normgen list"),
        (["compile", "latin.norm"], exits.USAGE, "not UTF-8"),
        (["compile", "."], exits.USAGE, "Is a directory"),
        (["compile", "rms\0norm"], exits.USAGE, "cannot read"),
        (["compile", "rmsnorm.norm", "--attr", "eps"], exits.USAGE, "eps=1e-6"),
        (["compile", "rmsnorm.norm", "--attr", "=1"], exits.USAGE, "eps=1e-6"),
        (["compile", "rmsnorm.norm", "--attr", "eps=1", "--attr", "eps=2"], exits.USAGE, "twice"),
        (["compile", "rmsnorm.norm", "--emit", "sass"], exits.USAGE, "sass"),
        (["compile", "rmsnorm.norm", "-o", "out.py"], exits.USAGE, "directory"),
        (["compile", "rmsnorm.norm", "-o", "-", "--check"], exits.USAGE, "--check"),
        (["compile", "rmsnorm.norm", "-o", "-", "--emit", "cu", "--emit", "module"], exits.USAGE, "2"),
        (["explain", "rmsnorm", "--size", "D"], exits.USAGE, "D=4096"),
        (["explain", "rmsnorm", "--size", "D=many"], exits.USAGE, "whole number"),
        (["explain", "rmsnorm", "--size", "Q=4"], exits.USAGE, "no axis"),
        (["explain", "rmsnorm", "--dtype", "f99"], exits.USAGE, "f99"),
        (["completion", "csh"], exits.USAGE, "csh"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_exit_codes(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
    if code not in (exits.OK, exits.INTERNAL):
        assert "Traceback" not in done.output
        assert done.stdout == ""


def test_every_fault_of_a_spec_is_in_one_run() -> None:
    done = run("compile", "bad.norm")
    assert done.stderr.count("error[") == 2
    assert not Path("bad.py").exists()


def test_a_missing_tool_and_a_missing_device_have_their_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.cli import stages
    from normgen.runtime.errors import DeviceMissing, ToolchainMissing

    for fault, code in (
        (ToolchainMissing("no compiler"), exits.TOOLCHAIN),
        (DeviceMissing("no GPU"), exits.GPU),
    ):

        def raises(*_: object, fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr(stages, "read_spec", raises)
        done = run("compile", "rmsnorm.norm")
        assert (done.exit_code, done.stderr) == (code, f"{fault}\n")


def test_a_fault_of_normgen_is_told_from_one_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.cli import stages

    def raises(*_: object) -> None:
        raise AssertionError("impossible")

    monkeypatch.setattr(stages, "read_spec", raises)
    done = run("compile", "rmsnorm.norm")
    assert done.exit_code == exits.INTERNAL
    assert "impossible" in done.stderr and "fault of normgen" in done.stderr


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    for code in (
        exits.OK,
        exits.FAULTS,
        exits.USAGE,
        exits.TOOLCHAIN,
        exits.GPU,
        exits.INTERNAL,
        exits.INTERRUPTED,
    ):
        assert f"\n| {code} |" in text
    assert all(f"{code} " in run("--help").stdout for code in range(5))


# -------------------------------------------------------------------------------------------------- compile


def test_compile_writes_a_module_that_imports() -> None:
    done = run("compile", "rmsnorm.norm", "-o", "made/here")
    assert done.stdout == ""
    path = Path("made/here/rmsnorm.py")
    found = importlib.util.spec_from_file_location("compiled_by_the_command", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    assert callable(module.forward) and callable(module.backward)
    assert "mean[D](x^2)" in path.read_text()


def test_the_same_spec_gives_the_same_bytes_wherever_it_is(tmp_path: Path) -> None:
    run("compile", "rmsnorm.norm", "-o", "one")
    elsewhere = tmp_path / "some" / "where"
    elsewhere.mkdir(parents=True)
    shutil.copy("rmsnorm.norm", elsewhere)
    run("compile", str(elsewhere / "rmsnorm.norm"), "-o", "two")
    # Another process hashes and orders sets differently.
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "normgen", "compile", "rmsnorm.norm", "-o", "three"],
        env=environment,
        check=True,
    )
    texts = {Path(where, "rmsnorm.py").read_bytes() for where in ("one", "two", "three")}
    assert len(texts) == 1
    assert str(tmp_path).encode() not in texts.pop()


def test_check_compares_and_writes_nothing() -> None:
    run("compile", "rmsnorm.norm")
    path = Path("rmsnorm.py")
    before = path.read_text()
    assert run("compile", "rmsnorm.norm", "--check").exit_code == exits.OK
    path.write_text(before + "# changed\n")
    done = run("compile", "rmsnorm.norm", "--check")
    assert done.exit_code == exits.FAULTS and "would change" in done.stderr
    assert path.read_text() == before + "# changed\n"
    assert run("compile", "rmsnorm.norm", "--check", "--attr", "eps=1e-3").exit_code == exits.FAULTS


@pytest.mark.parametrize(("emit", "name"), [("module", "rmsnorm.py"), ("cu", "rmsnorm.cu")])
def test_files_of_others_are_refused(emit: str, name: str) -> None:
    arguments = ["compile", "rmsnorm.norm", "--emit", emit]
    path = Path(name)
    path.write_text("print('a user wrote this')\n")
    done = run(*arguments)
    assert done.exit_code == exits.USAGE and "--force" in done.stderr
    assert path.read_text() == "print('a user wrote this')\n"
    assert run(*arguments, "--force").exit_code == exits.OK
    assert "a user" not in path.read_text()
    # From here on it is normgen's own, and may be replaced.
    path.write_text(path.read_text() + "\n")
    assert run(*arguments).exit_code == exits.OK
    done = run(*arguments)
    assert "up to date" in done.stderr


def test_one_refused_file_leaves_the_others_unwritten() -> None:
    Path("rmsnorm.cu").write_text("mine")
    assert run("compile", "rmsnorm.norm", "--emit", "module", "--emit", "cu").exit_code == exits.USAGE
    assert not Path("rmsnorm.py").exists()


def test_a_directory_in_the_way_is_refused_even_with_force() -> None:
    Path("rmsnorm.py").mkdir()
    assert run("compile", "rmsnorm.norm", "--force").exit_code == exits.USAGE


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("mine")
    Path("out").mkdir()
    Path("out/rmsnorm.py").symlink_to(target)
    assert run("compile", "rmsnorm.norm", "-o", "out").exit_code == exits.USAGE
    assert run("compile", "rmsnorm.norm", "-o", "out", "--force").exit_code == exits.OK
    assert target.read_text() == "mine" and not Path("out/rmsnorm.py").is_symlink()


def test_a_write_that_fails_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    run("compile", "rmsnorm.norm")
    before = Path("rmsnorm.py").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "rmsnorm.py")

    monkeypatch.setattr(Path, "replace", full)
    done = run("compile", "rmsnorm.norm", "--attr", "eps=1e-3")
    assert done.exit_code == exits.USAGE and "No space left" in done.stderr
    assert Path("rmsnorm.py").read_text() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".rmsnorm")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_takes_no_files() -> None:
    Path("closed").mkdir(mode=0o500)
    done = run("compile", "rmsnorm.norm", "-o", "closed")
    assert done.exit_code == exits.USAGE and "cannot write" in done.stderr


def test_output_names_stay_in_their_directory() -> None:
    for name in ("../x", "/x", "a/b", "", ".", ".."):
        with pytest.raises(AssertionError):
            files.Output(name, b"").path(Path())


def test_new_files_have_the_usual_permissions() -> None:
    run("compile", "rmsnorm.norm")
    Path("usual").write_text("")
    assert Path("rmsnorm.py").stat().st_mode == Path("usual").stat().st_mode


def test_stdin_and_stdout() -> None:
    done = run("compile", "-", "-o", "-", stdin=SPEC)
    assert done.exit_code == exits.OK and done.stderr == ""
    assert done.stdout.encode() == _compiled("rmsnorm.norm")
    assert run("compile", "-", "-o", "-", stdin=b"\xef\xbb\xbf" + SPEC.encode()).exit_code == exits.OK
    done = run("compile", "-", "-o", "-", stdin="norm")
    assert done.exit_code == exits.FAULTS and "<stdin>:1:" in done.stderr


def test_large_files_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.cli import options

    done = run("compile", "-", stdin="#" * 10_000_000)
    assert done.exit_code == exits.FAULTS and "error[size]" in done.stderr and len(done.stderr) < 2000
    monkeypatch.setattr(options, "LARGEST_SPEC", 1_000_000)
    done = run("compile", "-", stdin="#" * 1_000_001)
    assert done.exit_code == exits.USAGE and "larger than 1 MB" in done.stderr


def _compiled(spec: str) -> bytes:
    run("compile", spec, "-o", "compiled")
    return Path("compiled", Path(spec).with_suffix(".py").name).read_bytes()


# -------------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize(
    ("stage", "wanted"),
    [
        ("ast", "rsqrt"),
        ("ir", "output y[..., D]"),
        ("grad", "gradient dx[..., D]"),
        ("plan", "kernel rmsnorm_backward"),
        ("cuda", "__global__"),
    ],
)
def test_every_stage_has_a_text(stage: str, wanted: str) -> None:
    done = run("explain", "rmsnorm.norm", "--emit", stage)
    assert (done.exit_code, done.stderr) == (exits.OK, "")
    assert wanted in done.stdout and done.stdout.endswith("\n")


def test_the_summary_says_what_was_decided_and_why() -> None:
    done = run("explain", "rmsnorm.norm", "--size", "D=16384", "--size", "...=1024", "--dtype", "f16")
    assert done.exit_code == exits.OK, done.output
    for text in (
        "D = 16384",
        "f16",
        "H200",
        "rstd",
        "gradient dw[D]",
        "because",
        "not ",
        "of the least possible",
    ):
        assert text in done.stdout
    assert done.stderr == ""


def test_the_summary_counts_the_bytes() -> None:
    """Forward: x and w read, y and rstd written; nothing twice."""
    done = run("explain", "rmsnorm.norm", "--size", "D=1024", "--size", "...=1000", "--dtype", "f32")
    least = 4 * (2 * 1000 * 1024 + 1024 + 1000)
    assert f"{least / 1e6:.1f} MB moved, 1.000 of the least possible" in done.stdout


def test_a_norm_without_kernels_still_explains_itself() -> None:
    done = run("explain", "windowed.norm")
    assert done.exit_code == exits.OK
    assert "no kernel yet" in done.stdout and "gradient dx" in done.stdout
    assert run("explain", "windowed.norm", "--emit", "grad").exit_code == exits.OK
    assert run("explain", "windowed.norm", "--emit", "cuda").exit_code == exits.FAULTS


def test_warnings_go_to_stderr() -> None:
    Path("unused.norm").write_text("norm unused\nattr k = 1\ninput x[D]\noutput y[D] = x * x\n")
    done = run("explain", "unused.norm", "--emit", "ir")
    assert done.exit_code == exits.OK
    assert "warning[" in done.stderr and "warning" not in done.stdout


# ------------------------------------------------------------------------------------------- other commands


def test_list_names_every_bundled_spec() -> None:
    names = {path.stem for path in (ROOT / "specs").glob("*.norm")}
    listed = json.loads(run("list", "--json").stdout)
    assert listed["schema"] == 1
    assert {row["name"] for row in listed["specs"]} == names
    printed = run("list").stdout
    assert all(name in printed for name in names)
    rows = {row["name"]: row for row in listed["specs"]}
    assert rows["rmsnorm"]["kernels"] and rows["groupnorm"]["required"] == ["groups: int"]
    assert not rows["local_response_norm"]["kernels"]


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    from normgen.runtime.cache import default_cache, digest

    assert run("cache", "dir").stdout.strip() == str(tmp_path / "cache")
    default_cache().get_or_build_bytes(digest("a"), lambda: b"content")
    assert "entries: 1" in run("cache", "info").stdout
    assert "removed 1 entries" in run("cache", "clear").stderr
    assert "entries: 0" in run("cache", "info").stdout
    assert list((tmp_path / "cache").glob("??/*.lock"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert "_NORMGEN_COMPLETE" in run("completion", shell).stdout


@pytest.mark.parametrize(
    ("arguments", "suggested"), [("normgen comp", "compile"), ("normgen explain --emit g", "grad")]
)
def test_completion_suggests(arguments: str, suggested: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_NORMGEN_COMPLETE": "bash_complete",
        "COMP_WORDS": arguments,
        "COMP_CWORD": str(len(arguments.split()) - 1),
    }
    code = "from normgen.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert suggested in done.stdout


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colour(environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(commands, ["compile", "bad.norm"], color=True)
    assert ("\x1b[" in done.stderr) == coloured


def test_text_of_a_spec_is_shown_as_it_is() -> None:
    """Docs are no markup: neither rich's nor the template's."""
    text = SPEC.replace('"gain"', '"[bold]gain[/bold] {{ 7*7 }} :smile:"')
    Path("marked.norm").write_text(text)
    done = run("compile", "marked.norm", "-o", "-")
    assert "[bold]gain[/bold] {{ 7*7 }} :smile:" in done.stdout


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "normgen", "--version"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    from normgen import __version__

    assert done.stdout == f"normgen {__version__}\n"


def test_a_closed_pipe_is_no_fault() -> None:
    """`normgen explain ... | head -1` says nothing about the pipe."""
    command = f"{sys.executable} -m normgen explain rmsnorm --emit cuda | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and done.stdout.count("\n") == 1


# ---------------------------------------------------------------------------------------------------- check

PASSES = "norm scaled\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = x * w\n"


def prove(spec: str, *arguments: str) -> Result:
    return run("check", "-", "--executor", "host", "--size", "D=5", "--dtype", "f32", *arguments, stdin=spec)


def test_check_prints_a_table_and_the_verdict() -> None:
    done = prove(PASSES)
    assert done.exit_code == exits.OK, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["STAGE", "DIRECTION"]
    assert any(line.split()[:2] == ["kernels", "backward"] for line in lines)
    assert lines[-1].startswith("passed: ") and "0 failed, 0 skipped" in lines[-1]
    assert any(line.startswith("drawn: x N(0, 1), w U(0.8, 1.2)") for line in lines)
    assert done.stderr == ""


def test_check_prints_every_case_as_json() -> None:
    listed = json.loads(prove(PASSES, "--json").stdout)
    assert listed["schema"] == 1
    assert {row["direction"] for row in listed["rows"]} >= {"forward", "backward"}
    assert all(row["status"] == "ok" and 0 <= row["worst"] <= 1 for row in listed["rows"])
    assert len(prove(PASSES, "--verbose").stdout.splitlines()) > len(prove(PASSES).stdout.splitlines())


def test_check_fails_where_a_case_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.proof import run as proof

    failed = proof.Row(
        "n", "", "kernels", "failed", "forward", "D=5", "f32", "host", "y", 3.0, "", "y[0] is 1.0"
    )
    monkeypatch.setattr(proof, "run", lambda *_: iter([failed]))
    done = prove(PASSES)
    assert done.exit_code == exits.FAULTS
    assert "failed: kernels, forward, y, D=5, f32, host: y[0] is 1.0" in done.stdout
    assert "FAILED: 0 checks passed, 1 failed, 0 skipped" in done.stdout


def test_check_tells_what_it_could_not_do() -> None:
    done = run("check", "-", "--executor", "host", stdin=NO_KERNELS)
    assert done.exit_code == exits.OK
    assert "skipped: kernels: no kernel yet" in done.stdout and "passed, with gaps" in done.stdout


def test_check_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line says what is missing, before anything is run."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = prove(PASSES)
    assert done.exit_code == exits.TOOLCHAIN, done.output
    assert done.stdout == "" and done.stderr.count("\n") == 1 and "compiler" in done.stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU")
def test_check_without_a_gpu() -> None:
    done = run("check", "-", "--executor", "cuda", stdin=PASSES)
    assert done.exit_code == exits.GPU, done.output
    assert done.stdout == "" and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "Q=4"], "no axis is called Q"),
        (["--sample", "v=normal(0,1)"], "no tensor is called v"),
        (["--sample", "x=gamma(2)"], "normal(0, 1)"),
        (["--executor", "tpu"], "tpu"),
    ],
)
def test_check_refuses_what_the_spec_does_not_have(arguments: list[str], said: str) -> None:
    done = run("check", "-", *arguments, stdin=PASSES)
    assert done.exit_code == exits.USAGE and said in done.stderr
