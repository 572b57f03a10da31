"""Exit codes, and what is said with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from normgen import __version__
from normgen.cli import commands, exits
from normgen.errors import DeviceMissing, ToolchainMissing
from tests.cli.commands import ROOT, run


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["compile", "rmsnorm", "--no-verify"], exits.OK, "wrote rmsnorm.py"),
        (["compile", "bad.norm"], exits.FAULTS, "bad.norm:3:"),
        (["compile", "needs.norm"], exits.FAULTS, "needs.norm:2:"),
        (["compile", "needs.norm", "--attr", "k=1.5"], exits.FAULTS, "k"),
        (["compile", "needs.norm", "--attr", "k=abc"], exits.FAULTS, "k"),
        (["compile", "rmsnorm.norm", "--attr", "eps=1e999"], exits.FAULTS, "eps"),
        (["compile", "extreme.norm"], exits.FAULTS, "unsupported"),
        (["explain", "bad.norm", "--emit", "ir"], exits.FAULTS, "bad.norm:4:"),
        (["check", "bad.norm"], exits.FAULTS, "bad.norm:4:"),
        (["compile", "rmsnorm.norm", "--check"], exits.FAULTS, "does not exist"),
        ([], exits.USAGE, "Usage"),
        (["compile"], exits.USAGE, "SPEC"),
        (["compile", "missing.norm"], exits.USAGE, "missing.norm: No such file or directory\n"),
        (["compile", "softmax.norm"], exits.USAGE, "directory (the bundled spec is called softmax)"),
        (["compile", "rmsnrm"], exits.USAGE, "no file rmsnrm.norm: did you mean rmsnorm"),
        (["compile", "LayerNorm"], exits.USAGE, "no file LayerNorm.norm: did you mean layernorm?"),
        (["compile", "nothing_like_it"], exits.USAGE, "normgen list"),
        (["compile", "latin.norm"], exits.USAGE, "not UTF-8"),
        (["compile", "."], exits.USAGE, "Is a directory"),
        (["compile", "rms\0norm"], exits.USAGE, "cannot read"),
        (["compile", "rmsnorm.norm", "--attr", "eps"], exits.USAGE, "eps=1e-6"),
        (["compile", "rmsnorm.norm", "--attr", "=1"], exits.USAGE, "eps=1e-6"),
        (["compile", "rmsnorm.norm", "--attr", "eps=1", "--attr", "eps=2"], exits.USAGE, "twice"),
        (["compile", "rmsnorm.norm", "-o", "out.py"], exits.USAGE, "directory"),
        (["compile", "rmsnorm.norm", "-o", "-", "--check"], exits.USAGE, "--check"),
        (["compile", "rmsnorm.norm", "-o", "-", "--emit", "cu", "--emit", "module"], exits.USAGE, "2"),
        (["compile", "rmsnorm.norm", "--emit", "cubin"], exits.USAGE, "--size D=4096"),
        (["compile", "rmsnorm.norm", "--emit", "cu", "--size", "D=512"], exits.USAGE, "--emit module, ptx"),
        (["compile", "rmsnorm", "--emit", "ptx", "--size", "D=4", "--arch", "sm90"], exits.USAGE, "sm_90"),
        (
            ["compile", "rmsnorm", "--emit", "ptx", "--size", "D=4", "--arch", "sm_75"],
            exits.USAGE,
            "8.0 or newer",
        ),
        (["compile", "rmsnorm", "--emit", "ptx", "--size", "D=0"], exits.USAGE, "D=0: there is nothing"),
        (["explain", "rmsnorm", "--size", "D"], exits.USAGE, "D=4096"),
        (["explain", "rmsnorm", "--size", "D=many"], exits.USAGE, "whole number"),
        (["explain", "rmsnorm", "--size", "Q=4"], exits.USAGE, "no axis"),
        (["explain", "rmsnorm", "--size", "...=0", "--emit", "plan"], exits.USAGE, "...=0: there is nothing"),
        (
            ["explain", "rmsnorm", "--size", f"D={2**32}", "--emit", "plan"],
            exits.USAGE,
            "the limit is 2130706432): split the arrays",
        ),
        (["check", "rmsnorm", "--size", "D=0"], exits.USAGE, "reduces over D, which must not be empty"),
        (
            ["check", "rmsnorm", "--size", "D=65536", "--size", "...=65536"],
            exits.USAGE,
            "would have 4294967296 el",
        ),
        (["check", "rmsnorm", "--size", "Q=4"], exits.USAGE, "there is no axis Q"),
        (["check", "rmsnorm", "--sample", "v=normal(0,1)"], exits.USAGE, "there is no tensor v"),
        (["check", "rmsnorm", "--sample", "x=uniform(2,1)"], exits.USAGE, "give the lower bound first"),
        (["check", "rmsnorm", "--sample", "x=gamma(2)"], exits.USAGE, "normal(0, 1)"),
        (["check", "rmsnorm", "--quick", "--thorough"], exits.USAGE, "--quick and --thorough"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_exit_codes(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
    assert "Traceback" not in done.output and done.stdout == ""


@pytest.mark.parametrize(
    ("fault", "code"),
    [(ToolchainMissing("no compiler"), exits.TOOLCHAIN), (DeviceMissing("no GPU"), exits.GPU)],
)
def test_a_missing_tool_and_a_missing_device_have_their_codes(
    fault: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise fault

    monkeypatch.setattr("normgen.cli.compile.read_spec", raises)
    done = run("compile", "rmsnorm.norm")
    assert (done.exit_code, done.stderr) == (code, f"{fault}\n")


EVERY_COMMAND = [
    ["compile", "rmsnorm"],
    ["explain", "rmsnorm"],
    ["check", "rmsnorm", "--json"],
    ["bench", "rmsnorm"],
    ["tune", "rmsnorm"],
    ["list"],
    ["cache", "info"],
    ["completion", "bash"],
]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        *((arguments, KeyError) for arguments in EVERY_COMMAND),
        *((["list"], fault) for fault in (AssertionError, RecursionError, MemoryError, OSError)),
    ],
)
def test_a_fault_of_normgen_is_told_from_one_of_the_spec(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], fault: type[Exception]
) -> None:
    """By every command: the callback of each raises."""

    def raises(**_: object) -> None:
        raise fault("impossible")

    command: Any = commands
    for word in arguments:
        if isinstance(command, click.Group):
            command = command.commands[word]
    monkeypatch.setattr(command, "callback", raises)
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (exits.INTERNAL, "")
    assert "impossible" in done.stderr and "bug in normgen" in done.stderr
    assert "please report it" in done.stderr and f"normgen {__version__}, Python" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_fault_of_normgen() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "normgen", "list"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (exits.USAGE, "cannot write: No space left on device\n")


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    codes = [code for code in vars(exits).values() if isinstance(code, int)]
    assert len(codes) == 7 and all(f"\n| {code} |" in text for code in codes)
    assert all(f"{code} " in run("--help").stdout for code in range(5))
