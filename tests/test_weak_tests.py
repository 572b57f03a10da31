"""Which tests `make lint` finds weak."""

from __future__ import annotations

import ast

import pytest

from tools import weak_tests

HELPERS = """
def check(x): assert x
def prove(x): check(x)
def draw(x): return x
"""
WEAK = {
    "nothing is looked at": "draw(1)",
    "what is drawn may be nothing": "for x in draw(1): assert x",
    "a loop over nothing": "for x in (): assert x",
    "one branch": "if draw(1): assert draw(2)",
    "an early end": "if draw(1): return\nassert draw(2)",
    "behind the end": "return\nassert draw(1)",
    "an end where something is raised": "try: draw(1)\nexcept ValueError: return\nassert draw(2)",
    "going on": "for x in (1, 2):\n try: check(x)\n except ValueError: continue",
    "passing": "try: check(1)\nexcept ValueError: pass",
    "drawing anew": "try: check(1)\nexcept ValueError:\n  assume(False)",
    "suppressing": "with suppress(ValueError): check(1)",
    "either": "assert 'a' in draw(1) or 'b' in draw(1)",
}
SOUND = {
    "an assertion": "assert draw(1)",
    "a function that has one": "prove(1)",
    "what is raised": "with pytest.raises(ValueError): draw(1)",
    "a loop over a literal": "for x in (1, 2): assert x",
    "a loop over a constant": "for x, y in enumerate(CASES[:3]): check(x)",
    "a loop over items of a literal": "for x, y in {1: 2}.items(): assert x",
    "both branches": "if draw(1): assert draw(2)\nelse: check(3)",
    "an end of a branch that judged": "if draw(1):\n  assert draw(2)\n  return\ncheck(3)",
    "a test within": "def each(x): check(x)\neach(draw(1))",
    "a look at what was raised": "try: check(1)\nexcept ValueError as error: assert error.args",
    "one of two things": "assert draw(1) == 2 or 'a' in draw(1)",
}


@pytest.mark.parametrize("name", [*WEAK, *SOUND])
def test_what_is_found(name: str) -> None:
    body = (WEAK | SOUND)[name].replace("\n", "\n    ")
    helpers, tree = ast.parse(HELPERS), ast.parse(f"def test_it():\n    {body}")
    found = list(weak_tests.faults(tree, weak_tests.judging([helpers, tree])))
    assert bool(found) == (name in WEAK), found
