"""The comparison accepts exactly what rounds from a number within the bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgen.dtypes import DTYPES, round_to
from normgen.verify.compare import Comparison, compare, preimage

NARROW = ("f16", "bf16", "f8e4m3", "f8e5m2")
nan, inf = float("nan"), float("inf")


def worst(got: float, dtype: str, truth: float, bound: float) -> float:
    stored = np.array([got]).astype(DTYPES[dtype].numpy)
    return compare(stored, dtype, np.array([truth]), np.array([bound])).worst


@pytest.mark.parametrize(
    ("got", "dtype", "truth", "bound", "right"),
    [
        # float32: the error itself counts
        (1.0, "f32", 1.0, 0.0, True),
        (1.0 + 2**-20, "f32", 1.0, 2.0**-20, True),
        (1.0 + 2**-20, "f32", 1.0, 2.0**-21, False),
        # 16 bits: what rounds to the stored number is right without any bound
        (1.0, "bf16", 1.0 + 2**-9, 0.0, True),
        (1.0 + 2**-7, "bf16", 1.0 + 2**-9, 0.0, False),
        # either side of a tie, and no more
        (1.0 + 2**-7, "bf16", 1.0 + 2**-8 - 2**-22, 2.0**-21, True),
        (1.0 + 2**-7, "bf16", 1.0 + 2**-8 - 2**-19, 2.0**-21, False),
        (1.0, "f16", 1.0 + 2**-11 + 2**-23, 2.0**-22, True),
        # one ulp off is wrong in the middle
        (1.0 + 2**-10, "f16", 1.0, 2.0**-20, False),
        # fp8: equal, or a neighbour near a midpoint; saturation
        (1.0, "f8e4m3", 1.06, 0.0, True),
        (1.125, "f8e4m3", 1.0624999, 1e-6, True),
        (1.125, "f8e4m3", 1.05, 1e-6, False),
        (448.0, "f8e4m3", 1e6, 0.0, True),
        (416.0, "f8e4m3", 1e6, 0.0, False),
        (57344.0, "f8e5m2", inf, 0.0, True),
        # overflow of 16 bits
        (inf, "f16", 65520.0, 0.0, True),
        (65504.0, "f16", 65519.9, 0.0, True),
        (inf, "f16", 65519.9, 0.0, False),
        (65504.0, "f16", inf, 0.0, False),
        # NaN and infinities must meet their like
        (nan, "f32", nan, 0.0, True),
        (nan, "bf16", nan, 0.0, True),
        (nan, "f32", 1.0, 1.0, False),
        (1.0, "f32", nan, 1.0, False),
        (inf, "f32", inf, 0.0, True),
        (-inf, "f32", inf, 1.0, False),
        (inf, "bf16", 1.0, 1.0, False),
        (nan, "f8e4m3", nan, 0.0, True),
        (1.0, "f8e4m3", nan, 0.0, False),
        (-0.0, "f32", 0.0, 0.0, True),
    ],
)
def test_verdicts(got: float, dtype: str, truth: float, bound: float, right: bool) -> None:
    assert (worst(got, dtype, truth, bound) <= 1.0) is right


def test_unbounded_elements_are_counted_and_not_judged() -> None:
    found = compare(np.array([9.0, 1.0], np.float32), "f32", np.ones(2), np.array([inf, 0.0]))
    assert found.worst == 0.0
    assert found.unbounded == 1
    assert not found.ok, "half of the elements without a bound show nothing"


def test_the_worst_element_is_told() -> None:
    got = np.ones((2, 3), np.float32)
    got[1, 2] = 2.0
    found = compare(got, "f32", np.ones((2, 3)), np.full((2, 3), 0.5))
    assert (found.where, found.got, found.wanted, found.bound, found.worst) == ((1, 2), 2.0, 1.0, 0.5, 2.0)


@pytest.mark.parametrize("dtype", NARROW)
def test_preimages_are_those_of_rounding(dtype: str) -> None:
    """Just inside the interval of a number rounds to it, just outside does not: for every number of the
    dtype."""
    kind = DTYPES[dtype]
    bits = np.arange(2 ** (8 * kind.bytes), dtype=f"uint{8 * kind.bytes}")
    with np.errstate(invalid="ignore"):
        values = bits.view(kind.numpy).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    low, high = preimage(values, dtype)
    for edge, direction in ((low, 1.0), (high, -1.0)):
        held = np.isfinite(edge) & (np.abs(values) > 2.0**-120)  # float32 has numbers between
        inside = np.nextafter(edge[held].astype(np.float32), np.float32(direction * inf))
        outside = np.nextafter(edge[held].astype(np.float32), np.float32(-direction * inf))
        assert np.array_equal(round_to(inside, dtype).astype(np.float64), values[held])
        assert not np.any(round_to(outside, dtype).astype(np.float64) == values[held])


@given(st.floats(-1e4, 1e4), st.sampled_from(NARROW))
def test_correct_rounding_needs_no_bound(value: float, dtype: str) -> None:
    single = float(np.float32(value))
    assert worst(float(round_to(np.array([single]), dtype)[0]), dtype, single, 0.0) == 0.0


def test_the_verdict_is_tight() -> None:
    """An error just beyond its bound is wrong, and so is one element in fifty without a bound."""
    assert Comparison(1.0, 1, 0.0, 100).ok
    assert not Comparison(1.01, 0, 0.0, 100).ok and not Comparison(0.0, 2, 0.0, 100).ok
