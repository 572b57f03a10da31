"""`normgen explain`: every stage as text, and the summary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normgen.cli import exits
from normgen.runtime.planning import store
from tests.cli.commands import run
from tests.runtime.test_tuned import keep


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


@pytest.mark.parametrize(
    "option", [("--size", "D=8"), ("--dtype", "f32"), ("--arch", "sm_80"), ("--no-save",)]
)
@pytest.mark.parametrize("formulas", [("--emit", "ast"), ("--emit", "grad"), ("--shard", "D")])
def test_what_formulas_do_not_depend_on_is_refused(
    formulas: tuple[str, ...], option: tuple[str, ...]
) -> None:
    done = run("explain", "rmsnorm", *formulas, *option)
    assert (done.exit_code, done.stdout) == (exits.USAGE, "")
    assert f"do not depend on {option[0]}: omit it" in done.stderr


def test_the_summary_says_what_was_decided_and_why() -> None:
    done = run("explain", "rmsnorm.norm", "--size", "D=7168", "--size", "...=1024", "--dtype", "f16")
    assert (done.exit_code, done.stderr) == (exits.OK, ""), done.output
    for text in ("D = 7168", "f16", "H200", "rstd", "gradient dw[D]", "because"):
        assert text in done.stdout
    said = " ".join(done.stdout.split())
    figures = r"[0-9.]+ us, [0-9]+ GB/s"
    assert len(re.findall(rf"predicted: {figures}", said)) == 2
    assert len(re.findall(rf"(?:next best|skipped): \w+, [^:]+: {figures}", said)) == 4
    # Forward: x and w read, y and rstd written; nothing twice.
    least = 2 * (2 * 1024 * 7168 + 7168) + 4 * 1024
    assert f"{least / 1e6:.1f} MB moved, 1.000 times the minimum" in done.stdout


def test_the_plan_says_which_schedules_are_next_and_why_not_they() -> None:
    done = run("explain", "rmsnorm.norm", "--emit", "plan", "--size", "D=5120", "--dtype", "f16")
    assert (done.exit_code, done.stderr) == (exits.OK, "")
    shown = done.stdout.partition("schedules for ")[2].splitlines()
    assert shown[0] == "... = 32768, D = 5120 in f16, on NVIDIA H200"
    said = " ".join(" ".join(shown).split())
    beside = [each.count("GB/s") for each in said.split("predicted: ")[1:]]
    assert beside == [6, 6], "what is taken, and five a kernel"
    assert sum("because" in line for line in shown) == 2
    assert sum("schedules fit; `normgen tune` measures them" in line for line in shown) == 2


@pytest.mark.parametrize(
    ("name", "sizes", "why"),
    [
        ("rmsnorm", ("D=4096", "...=32768"), "normgen takes what was fastest in measurements"),
        (
            "layernorm",
            ("D=768", "...=512"),
            "normgen uses few schedules for batches of all sizes",
        ),
    ],
)
def test_a_faster_prediction_is_skipped_with_a_reason(name: str, sizes: tuple[str, str], why: str) -> None:
    """And what is called the next best is no faster than the schedule that is taken."""
    options = [word for size in sizes for word in ("--size", size)]
    shown = run("explain", name, *options, "--direction", "backward", "--emit", "plan").stdout
    said = " ".join(shown.split()).partition("predicted: ")[2]
    taken, *others = [float(us) for us in re.findall(r"([0-9.]+) us, ", said)]
    skipped = said.count("skipped: ")
    assert skipped > 0 and skipped + said.count("next best: ") == len(others) == 5
    assert max(others[:skipped]) < taken <= min([*others[skipped:], taken])
    assert said.count(why) == 1 and said.rindex("skipped: ") < said.index(why)
    assert ("(measured to be fast)" in said) == ("measurements" in why)


def test_the_plan_says_what_the_cache_keeps() -> None:
    done = run("explain", "rmsnorm.norm", "--emit", "plan", "--size", "D=4096", "--size", "...=32768")
    assert "loads are tagged evict_last, except in the last 3840 blocks" in done.stdout
    few = run("explain", "rmsnorm.norm", "--emit", "plan", "--size", "D=4096", "--size", "...=128")
    assert "evict_last" not in few.stdout


def test_a_strategy_that_does_not_fit_is_named_with_the_reason() -> None:
    places = ("--size", "B=256", "--size", "C=16", "--size", "...=131072")
    shown = run("explain", "batchnorm", *places, "--emit", "plan").stdout.splitlines()
    assert shown.count("  strategy whole not taken: no thread group holds its rows") == 2


def test_what_was_tuned_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    store.look_again()
    sizes = ("--size", "D=1024", "--size", "...=64")
    before = run("explain", "rmsnorm", *sizes).stdout
    path = keep()
    for stage in ((), ("--emit", "plan")):
        shown = " ".join(run("explain", "rmsnorm", *sizes, *stage).stdout.split())
        assert shown.count(f"tuned: 90.00 us measured, 100.00 without; kept in {path}") == 1
    monkeypatch.setenv("NORMGEN_TUNED", "0")
    assert run("explain", "rmsnorm", *sizes).stdout == before


def test_a_norm_without_kernels_still_explains_itself() -> None:
    done = run("explain", "extreme.norm")
    assert done.exit_code == exits.OK
    assert "no kernel yet" in done.stdout and "gradient dx" in done.stdout
    assert run("explain", "extreme.norm", "--emit", "grad").exit_code == exits.OK
    assert run("explain", "extreme.norm", "--emit", "cuda").exit_code == exits.FAULTS


def test_warnings_go_to_stderr() -> None:
    Path("unused.norm").write_text("norm unused\nattr k = 1\ninput x[D]\noutput y[D] = x * x\n")
    done = run("explain", "unused.norm", "--emit", "ir")
    assert done.exit_code == exits.OK
    assert "warning[" in done.stderr and "warning" not in done.stdout


def test_bools_are_written_as_in_python_too() -> None:
    values = ("true", "True", "false", "False")
    texts = [run("explain", "batchnorm", "--emit", "ir", "--attr", f"training={v}").stdout for v in values]
    assert texts[0] == texts[1] != texts[2] == texts[3] != ""


def test_an_architecture_and_a_direction_are_explained() -> None:
    ampere = run("explain", "rmsnorm", "--arch", "sm_80", "--direction", "forward", "--no-save").stdout
    assert "NVIDIA A100 (sm_80" in ampere and "backward" not in ampere
    assert (
        "save " not in ampere
        and "let rstd" in ampere
        and "rstd" not in ampere.partition(" -> ")[2].splitlines()[0]
    )
    plan = run("explain", "rmsnorm", "--emit", "plan", "--arch", "sm_100", "--direction", "backward").stdout
    assert "on NVIDIA B200" in plan and "\nforward\n" not in plan.partition("schedules for")[2]
    text = run("explain", "rmsnorm", "--emit", "cuda", "--arch", "sm_80", "--no-save").stdout
    assert "nvcc -arch=sm_80" in text and "on NVIDIA A100" in text
    old = run("explain", "rmsnorm", "--arch", "sm_75")
    assert (old.exit_code, old.stderr.count("compute capability 8.0 or newer")) == (exits.USAGE, 1)
    assert run("explain", "rmsnorm", "--emit", "cuda", "--direction", "both").exit_code == exits.USAGE
