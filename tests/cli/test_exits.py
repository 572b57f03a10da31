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
from tests.cli.commands import ROOT, run


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
        (["compile", "extreme.norm"], exits.FAULTS, "unsupported"),
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
        (["explain", "rmsnorm", "--size", "D=0"], exits.USAGE, "D=0: there is nothing to run"),
        (["explain", "rmsnorm", "--size", "...=0", "--emit", "plan"], exits.USAGE, "...=0: there is nothing"),
        (["compile", "rmsnorm", "--emit", "ptx", "--size", "D=0"], exits.USAGE, "D=0: there is nothing"),
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
    from normgen.errors import DeviceMissing, ToolchainMissing

    for fault, code in (
        (ToolchainMissing("no compiler"), exits.TOOLCHAIN),
        (DeviceMissing("no GPU"), exits.GPU),
    ):

        def raises(*_: object, fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr(stages, "read_spec", raises)
        done = run("compile", "rmsnorm.norm")
        assert (done.exit_code, done.stderr) == (code, f"{fault}\n")


EVERY_COMMAND = [
    ["compile", "rmsnorm"],
    ["compile", "rmsnorm", "--emit", "cu", "-o", "-"],
    ["compile", "rmsnorm", "--check"],
    ["explain", "rmsnorm"],
    *(["explain", "rmsnorm", "--emit", stage] for stage in ("ast", "ir", "grad", "plan", "cuda")),
    ["check", "rmsnorm"],
    ["check", "rmsnorm", "--json"],
    ["bench", "rmsnorm"],
    ["bench", "rmsnorm", "--json"],
    ["tune", "rmsnorm"],
    ["tune", "rmsnorm", "--json"],
    ["list"],
    ["list", "--json"],
    ["cache", "info"],
    ["completion", "bash"],
]


@pytest.mark.parametrize("arguments", EVERY_COMMAND, ids=" ".join)
@pytest.mark.parametrize("fault", [AssertionError, RecursionError, MemoryError, OSError, KeyError])
def test_a_fault_of_normgen_is_told_from_one_of_the_spec(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], fault: type[Exception]
) -> None:
    """By every command, whatever it prints: the callback of each raises."""

    def raises(**_: object) -> None:
        raise fault("impossible")

    command: Any = commands
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        command = command.commands[word]
    monkeypatch.setattr(command, "callback", raises)
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (exits.INTERNAL, "")
    assert "impossible" in done.stderr and "fault of normgen" in done.stderr
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
