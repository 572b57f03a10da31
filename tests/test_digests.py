"""Digests of every kernel's text, of the launches of a covering sample of calls, and of what is offered.

A change that means to move code, and not kernels, leaves them as they are. One that means to change kernels
writes them anew with `--update-golden`, and its commit says which lines changed and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from normgen import bundled
from tests.digests import DIGESTS, ROOT, digest, parts_of, write_since
from tests.kinds import of_all

FILE = ROOT / DIGESTS
Digests = Mapping[str, Mapping[str, str]]


def read() -> dict[str, dict[str, str]]:
    """By norm and direction, then by what they are of. A line is `rmsnorm forward: plans 1234abcd, ...`."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    found = (line.split(": ") for line in lines)
    return {key: dict(each.split() for each in rest.split(", ")) for key, rest in found}


def write(name: str, made: Digests) -> None:
    """Put the lines of a norm in place of those that are there. Norms that are no more have none."""
    others = set(bundled.names()) - {name}
    lines = {key: parts for key, parts in read().items() if key.split()[0] in others} | made
    text = (
        f"{key}: {', '.join(' '.join(each) for each in parts.items())}\n"
        for key, parts in sorted(lines.items())
    )
    FILE.write_text("".join(text), encoding="utf-8")


def changed(before: Digests, after: Digests) -> list[str]:
    """A line for each direction that is not as it was."""
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, {}), after.get(key, {})
        said = {
            "changed": [part for part in new if part in old and old[part] != new[part]],
            "new": [part for part in new if part not in old],
            "gone": [part for part in old if part not in new],
        }
        told = [f"{word}: {', '.join(parts)}" for word, parts in said.items() if parts]
        lines += [f"{key}: {'; '.join(told)}"] if told else []
    return lines


@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_texts_and_plans_are_as_they_were(name: str, request: pytest.FixtureRequest) -> None:
    made = {
        key: {part: digest(text) for part, text in parts.items()} for key, parts in parts_of(name).items()
    }
    if request.config.getoption("--update-golden"):
        write(name, made)
        return
    lines = changed({key: parts for key, parts in read().items() if key.split()[0] == name}, made)
    if lines:
        said = [
            f"other than in {DIGESTS}:",
            *(f"    {line}" for line in lines),
            f"python -m tests.digests {name}    shows the difference",
            f"python -m pytest '{request.node.nodeid}' --update-golden    if it is meant",
        ]
        pytest.fail("\n".join(said), pytrace=False)


def test_no_norm_that_is_gone_has_digests() -> None:
    assert {key.split()[0] for key in read()} == set(bundled.names())


def test_what_is_said_of_a_change() -> None:
    before = {"a forward": {"rows.split": "1", "plans": "2"}, "a backward": {"plans": "3"}}
    after = {"a forward": {"rows.batch": "1", "plans": "4"}, "a backward": {"plans": "3"}}
    assert changed(before, after) == ["a forward: changed: plans; new: rows.batch; gone: rows.split"]


def test_what_digests_are_of_is_written_of_a_commit(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("there is no commit to compare with: this tree is not of git")
    write_since("HEAD", tmp_path / "then", ["dyt"])
    names = {path.name for path in (tmp_path / "then").iterdir()}
    assert {"dyt.forward.rows.registers", "dyt.forward.plans", "dyt.backward.offers"} <= names
