"""What an element's expression has of its row, gathered into leaves."""

from __future__ import annotations

from collections import Counter

import pytest

from normgen.ir.expr import Expr, add, call, load, mul, scalar
from normgen.kernel.rates import Rates

ELEMENT = call("abs", load("x", frozenset("D")))
A, B, R = (load(name, frozenset()) for name in "abr")
LEVEL = mul(B, add(A, B))


@pytest.mark.parametrize(
    ("given", "row", "element"),
    [
        (add(A, mul(R, add(ELEMENT, LEVEL))), add(A, mul(R, LEVEL)), mul(R, ELEMENT)),
        (add(A, mul(-1, R, add(ELEMENT, LEVEL))), add(A, mul(-1, R, LEVEL)), mul(-1, R, ELEMENT)),
    ],
    ids=["plus", "minus"],
)
def test_what_a_row_adds_is_added_once(given: Expr, row: Expr, element: Expr) -> None:
    rates = Rates(frozenset("D"), {}, Counter())
    found = rates.hoist(given)
    assert found == add(scalar(f"%{row.key}"), element)
    assert rates.leaves[scalar(f"%{row.key}")] == row
