"""What shells are offered: through click's machinery for each of them, and by bash itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from normgen import bundled
from normgen.cli import commands
from tests.cli.commands import ROOT, run

GROUPED = """norm grouped
attr   groups: int >= 1 "of channels"
attr   eps >= 0 = 1e-5
attr   training: bool = true
axis   G = groups
input  x[B, (G C), ...]
output y[B, (G C), ...] = x + eps if training else x
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec, a broken one and another file, where the shell is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grouped.norm").write_text(GROUPED)
    (tmp_path / "broken.norm").write_text("norm ???")
    (tmp_path / "rmsnotes.txt").write_text("")
    (tmp_path / "rmsdata").mkdir()
    return tmp_path


def offered(*words: str) -> list[CompletionItem]:
    """What is offered for the last of the words."""
    *before, typed = words
    return ShellComplete(commands, {}, "normgen", "_NORMGEN_COMPLETE").get_completions(before, typed)


def values(*words: str) -> list[str]:
    return [item.value for item in offered(*words)]


@pytest.mark.parametrize("command", ["compile", "check", "explain", "bench", "tune"])
def test_what_every_command_is_offered(command: str) -> None:
    files, *names = offered(command, "rms")
    assert (files.type, files.value) == ("file", "rms")
    assert [item.value for item in names] == [name for name in bundled.names() if name.startswith("rms")]
    assert all(item.type == "plain" for item in names)
    assert set(bundled.names()) <= set(values(command, ""))
    # The attrs of a spec,
    every = ["groups=", "eps=", "training=true", "training=false"]
    assert values(command, "./grouped.norm", "--attr", "") == every
    assert values(command, "--attr", "eps=1", "grouped.norm", "--attr", "") == [
        v for v in every if v != "eps="
    ]
    assert values(command, "batchnorm", "--attr", "training=t") == ["training=true"]
    # and the axes that it does not fix.
    assert values(command, "grouped.norm", "--size", "") == ["B=", "C=", "...="]
    assert values(command, "grouped.norm", "--size", "B=4", "--size", "") == ["C=", "...="]
    assert values(command, "rmsnorm", "--size", "D") == ["D="]


@pytest.mark.parametrize("option", ["--attr", "--size"])
def test_specs_that_cannot_be_read_offer_nothing(option: str) -> None:
    for spec in ("broken.norm", "missing.norm", "nothing", "-", "rmsdata"):
        assert values("explain", spec, option, "") == []
    assert values("explain", option, "") == []


# ------------------------------------------------------------------------------------------------ shells


@pytest.mark.parametrize(
    ("shell", "wanted"),
    [
        ("bash", "plain,groups="),
        ("zsh", "plain\ngroups=\nof channels"),
        ("fish", "plain,groups=\tof channels"),
    ],
)
def test_each_shell_is_answered(shell: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the command answers to its script."""
    monkeypatch.setenv("COMP_WORDS", "\n".join(["normgen", "check", "grouped.norm", "--attr", "gr"]))
    monkeypatch.setenv("COMP_CWORD", "gr" if shell == "fish" else "4")
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    assert shell_class(commands, {}, "normgen", "_NORMGEN_COMPLETE").complete() == wanted
    assert "_NORMGEN_COMPLETE" in run("completion", shell).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["explain", "rms"], {"rmsnorm", "rmsnorm2d", "rmsnotes.txt", "rmsdata"}),
        (["explain", "grouped.norm", "--attr", "e"], {"eps="}),
    ],
)
def test_bash_offers_files_beside_words(words: list[str], wanted: set[str], folder: Path) -> None:
    program = folder / "normgen"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from normgen.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {code!r} "$@"\n')
    program.chmod(0o755)
    lines = [
        "compopt() { :; }",  # bash refuses it outside of a completion
        f"COMP_WORDS=(normgen {' '.join(words)}); COMP_CWORD={len(words)}",
        f"_normgen_completion {program} {words[-1]}",
        "printf '%s\n' \"${COMPREPLY[@]}\"",
    ]
    script = run("completion", "bash").stdout + "\n".join(lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "" and wanted <= set(done.stdout.split())
    assert all(word.startswith(words[-1]) for word in done.stdout.split())
