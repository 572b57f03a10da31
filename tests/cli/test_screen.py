"""What the commands print on a screen of 80 columns: it fits, and no word is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgen import bundled
from normgen.cli import table, verdict, wrap
from normgen.verify.events import NO_GPU, NO_KERNELS, Row
from tests.cli.commands import run

COLUMNS = 80
NEEDS = {"groups": "groups=32", "head_dim": "head_dim=128"}
COMMANDS = ("bench", "cache", "check", "compile", "completion", "doctor", "explain", "list", "new", "tune")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def arguments(spec: str) -> list[str]:
    source = bundled.read(spec)
    assert source is not None
    return [spec, *(w for n, v in NEEDS.items() if f"{n}: int" in source.text for w in ("--attr", v))]


def too_long(text: str) -> list[str]:
    """The lines that do not fit, but for one word that is longer than a line."""
    return [line for line in text.splitlines() if len(line) > COLUMNS and " " in line.strip()]


# Screens as they are, to be read when they change.


@pytest.mark.parametrize("name", ["help", "list", "new", "explain"])
def test_a_screen(name: str, golden: Callable[[str, str], None]) -> None:
    commands = {
        "help": ["--help"],
        "list": ["list"],
        "new": ["new", "my_norm"],
        "explain": ["explain", "rmsnorm"],
    }
    done = run(*commands[name])
    text = done.stdout + done.stderr
    assert done.exit_code == 0 and not too_long(text)
    golden(f"screen/{name}.txt", text)


def kernels(status: str = "ok", direction: str = "forward", **more: Any) -> Row:
    about = {"attrs": "", "executor": "host, checked", "dtypes": "bf16, params f32", "drawn": "x N(0, 1)"}
    return Row("mine", stage="kernels", status=status, direction=direction, **(about | more))


GPU = Row("mine", "", "kernels", "skipped", executor="cuda", note="libcuda.so.1: not found", missing=NO_GPU)
LONG = "...=3x11 D=1000 +3 out +1 padded accumulate in place without p save=False"
CHECKS = {
    "passed": [
        Row("mine", "", "parse", "ok"),
        kernels(result="y", shape=LONG, worst=0.25),
        kernels(result="y", shape="D=7", worst=0.125, dtypes="f32"),
        kernels(direction="backward", result="dx", shape="D=33 wrt x", worst=0.5),
        GPU,
    ],
    "attrs": [
        Row("mine", "", "parse", "ok"),
        *(
            kernels(attrs=f"norm_before_gate={value}", result="y", shape="D=7 +1", worst=0.5)
            for value in ("false", "true")
        ),
    ],
    "failed": [
        kernels(result="y", shape="D=7", worst=0.125),
        kernels("failed", "backward", result="dx", shape=LONG, worst=3.0, note="dx[0] is 1.0, not 2.0"),
        GPU,
    ],
    "gaps": [
        kernels(result="y", shape="D=7", worst=0.125),
        Row("mine", "", "kernels", "skipped", note="3 of 61 cases have more than 2500000 elements"),
    ],
    "unsupported": [
        Row("mine", "", "check", "ok"),
        Row("mine", "", "kernels", "skipped", note="no kernel yet: of `x[D, E]`", missing=NO_KERNELS),
        GPU,
    ],
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("verbose", [False, True])
def test_the_screen_of_a_check(name: str, verbose: bool, golden: Callable[[str, str], None]) -> None:
    text = verdict.check_text(CHECKS[name], verbose)
    assert not too_long(text)
    golden(f"screen/check-{name}{'-verbose' if verbose else ''}.txt", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_its_summaries_are_whole(command: str) -> None:
    text = run(command, "--help").stdout
    assert not too_long(text)
    assert not re.search(r"\.\.\.$", text.partition("\n")[2], re.MULTILINE)


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("adaln_zero", "ir"),
        ("gated_rmsnorm", "grad"),
        ("batchnorm", "plan"),
        ("qk_norm", None),
        ("rmsnorm_quantized_group", None),
    ],
)
def test_long_explanations_fit(spec: str, stage: str | None) -> None:
    done = run("explain", *arguments(spec), *(["--emit", stage] if stage else []))
    assert done.exit_code == 0 and done.stdout and not too_long(done.stdout)


# How lines are broken.


@given(st.text("ab [],.-\n", max_size=300), st.integers(10, 40))
def test_words_stay_whole_and_in_order(text: str, columns: int) -> None:
    broken = wrap.wrapped(text, columns)
    assert broken.split() == text.split()
    for line in broken.splitlines():
        assert len(line) <= columns or " " not in re.sub(r"\[[^\[\]]*\]", "", line.strip())


def test_axes_are_not_torn_apart_and_lines_go_on_below_themselves() -> None:
    text = "  sum[B, C, ...](x) and more of it\n"
    assert wrap.wrapped(text, 16) == "  sum[B, C, ...](x)\n      and more\n      of it\n"


def test_a_table_goes_on_below_its_last_column() -> None:
    words = "word " * 20
    lines = table.columns_of(("NAME", "WHAT"), [("x", words), ("y", "short")])
    assert len(lines) == 4 and max(map(len, lines)) <= COLUMNS
    assert lines[2].startswith(" " * 6 + "word") and lines[3] == "y     short"
