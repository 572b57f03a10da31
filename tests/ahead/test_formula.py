"""Formulas, and the conditions under which they stay the same."""

from __future__ import annotations

from math import prod
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from normgen.launching.case import Later, traced
from normgen.launching.formula import Formula
from normgen.launching.limits import MOST, Limit, limits_of
from normgen.launching.tracing import Trace, formula_of

SIZES = st.fixed_dictionaries({"N": st.integers(2, 5000), "M": st.integers(2, 50)})


def planned(n: Any, m: Any) -> list[Any]:
    """What planning does with lengths: among them are numbers that no formula tells."""
    tiles = -(-n // 8)
    blocks = min(tiles, 264) * m
    wide = n * m * 4096 >= 2**24
    shares = 1 << max(0, min(16, -(-blocks // 32)) - 1).bit_length()
    return [tiles, blocks, wide, shares, n * m // m, (n - 40) // 7, n * m % 16, (n + 3) * 2 // 4, abs(n - 9)]


@given(SIZES, SIZES)
def test_formulas_hold_wherever_their_conditions_do(here: dict[str, int], there: dict[str, int]) -> None:
    case = traced(here, here, lambda sizes: tuple(planned(sizes["N"], sizes["M"])))
    for sizes in (here, there) if case.limits.hold(there) else (here,):
        expected = tuple(planned(sizes["N"], sizes["M"]))
        assert case.at(sizes) == expected
        assert tuple(formula_of(each).value(sizes) for each in case.value) == expected


def test_records_and_calls_that_wait_are_made_with_lengths() -> None:
    def made(sizes: dict[str, int]) -> tuple[Any, ...]:
        return (
            Later(max, (sizes["N"], 50)),
            Later(max, (1, 2)),
            Limit(("N",), sizes["N"] * 2, 3),
            Limit((), 1, 2),
        )

    case = traced({"N": 12}, ("N",), made)
    assert case.at({"N": 12}) == (50, 2, Limit(("N",), 24, 3), Limit((), 1, 2))
    assert case.at({"N": 70}) == (70, 2, Limit(("N",), 140, 3), Limit((), 1, 2))
    assert case.limits == limits_of(())


@given(SIZES)
def test_limits_say_what_conditions_say(sizes: dict[str, int]) -> None:
    n, m = Formula.axis("N"), Formula.axis("M")
    tiles = (n * m + Formula.of(7)).over(8)
    conditions = [tiles - Formula.of(5), Formula.of(90) - tiles, m - Formula.of(3), n * n - m]
    expected = all(each.value(sizes) >= 0 for each in conditions)
    limits = limits_of(conditions)
    assert limits.hold(sizes) == expected
    assert limits.bounds == (Limit(("M",), 3, MOST), Limit(("M", "N"), 33, 720))
    for point in limits.beyond(sizes):
        assert prod(point.values()) > 720 or prod(point.values()) < 33 or point["M"] < 3


@pytest.mark.parametrize("divide", ["//", "/"])
@given(sizes=SIZES)
def test_texts_compute_the_same(divide: str, sizes: dict[str, int]) -> None:
    trace = Trace(sizes)
    for each in planned(trace.axis("N"), trace.axis("M")):
        formula = formula_of(each)
        text = formula.text(divide=divide).replace("/", "//").replace("////", "//")
        assert eval(text, dict(sizes)) == formula.value(sizes)
        assert "N" not in formula.text(str.lower)


def test_a_number_that_is_needed_pins_its_axes() -> None:
    trace = Trace({"N": 12, "M": 5})
    assert len(range(trace.axis("N"))) == 12  # type: ignore[arg-type]
    assert f"{trace.axis('M') * 2}" == "10"
    assert limits_of(trace.conditions).pinned == {"N", "M"}
