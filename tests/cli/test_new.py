"""`normgen new`: a spec that compiles as it is, and never over what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import normgen
from normgen.cli import exits
from tests.cli.commands import run


def test_it_writes_a_spec_that_loads_and_says_what_to_do_next() -> None:
    done = run("new", "my_norm")
    assert done.exit_code == exits.OK, done.output
    text = Path("my_norm.norm").read_text()
    assert done.stderr.startswith("wrote my_norm.norm\n")
    assert text.count("#") >= 5 and normgen.load("my_norm.norm").name == "my_norm"
    commands = [line.split() for line in done.stderr.splitlines() if line.startswith("  normgen ")]
    assert [words[1] for words in commands] == ["check", "explain"]
    assert run(*commands[1][1:]).exit_code == exits.OK


def test_a_file_that_is_there_is_left_as_it_is() -> None:
    Path("mine.norm").write_text("# mine\n")
    for name in ("mine", "mine.norm"):
        done = run("new", name)
        assert done.exit_code == exits.USAGE
        assert "mine.norm already exists" in done.stderr
    assert Path("mine.norm").read_text() == "# mine\n"
    Path("other").mkdir()
    assert run("new", "mine", "-o", "other").exit_code == exits.OK
    assert Path("other/mine.norm").exists()


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("two words", exits.USAGE, "is not a name"),
        ("../up", exits.USAGE, "is not a name"),
        ("norm", exits.FAULTS, "a spec begins with `norm` and its name"),
        ("RMS", exits.FAULTS, "lowercase letter: `rms`"),
    ],
)
def test_a_name_that_the_language_does_not_take(name: str, code: int, said: str) -> None:
    before = sorted(Path().iterdir())
    done = run("new", name)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
    assert sorted(Path().iterdir()) == before
