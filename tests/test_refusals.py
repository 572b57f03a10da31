"""Each operand of a condition before a diagnostic is needed by an example, or by a spec that is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refusals import every_operand

PARTS = 6
# What no example tells from its absence yet, and why.
SPARED = {
    "default.axes": "a number that is known has no axes",
    "not asked": "a let that only `gradient` names",
    "not condition.poisoned": "the mistake of a condition is told once",
    "built_in(word)": "a primitive whose name stands for a value, or has a value's arguments",
    "built_in(name.text) or name.text in scope.functions": "names that are called and are no function",
    "_bits(coefficient) > MOST_BITS": "products of numbers that take long to multiply",
    "site is None": "integers within functions that are called",
}


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.thorough if part else ()) for part in range(PARTS)]
)
def test_each_operand_is_needed(part: int) -> None:
    assert SPARED.keys() <= {operand for _, operand in every_operand()} and len(every_operand()) > 70
    command = [sys.executable, "-m", "tests.refusals", str(part), str(PARTS)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missed = [operand for _, operand in json.loads(done.stdout)]
    assert not set(missed) - SPARED.keys(), "write specs into tests/diagnostics.md that need them"
