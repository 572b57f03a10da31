"""What tuning takes for the same result: a rounding apart, and no more."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.dtypes import DEVICE_DTYPES, DTYPES
from normgen.measure import agreement
from normgen.measure.agreement import Results, disagreement


def values(dtype: str) -> Any:
    """Numbers from 1 to 2 and their opposites."""
    magnitudes = 1 + np.random.default_rng(1).random(1000)
    return (magnitudes * np.where(np.arange(1000) % 2, 1, -1)).astype(DTYPES[dtype].numpy)


def moved(wanted: Any, place: int, steps: int) -> Any:
    """The same with one number that many steps of its type further from zero."""
    got = wanted.copy()
    got.view(f"u{wanted.dtype.itemsize}")[place] += steps
    return got


def test_equal_bits_agree_and_so_do_nans() -> None:
    for dtype in DEVICE_DTYPES:
        wanted = values(dtype)
        assert disagreement(wanted.copy(), wanted) == ""
        wanted[3] = np.nan
        assert disagreement(wanted.copy(), wanted) == ""
        assert disagreement(values(dtype), wanted).startswith("1 element, the first at [3]")
        assert disagreement(wanted, values(dtype)).endswith(f"nan, not {float(values(dtype)[3]):.6g}")


def test_two_units_in_the_last_place_are_the_bound_of_a_narrow_type() -> None:
    for dtype in (name for name in DEVICE_DTYPES if DTYPES[name].bytes < 4):
        wanted = values(dtype)
        wanted[7] = 1  # where a step is one unit
        assert disagreement(moved(wanted, 7, 2), wanted) == ""
        assert disagreement(moved(wanted, 7, 5), wanted).startswith("1 element, the first at [7]")


@pytest.mark.parametrize(("dtype", "by"), [("f32", 0.03), ("f16", -0.03), ("bf16", 0.03)])
def test_three_per_cent_are_an_error_wherever_they_are(dtype: str, by: float) -> None:
    """Of one element, of all, of the smallest and of the largest."""
    wanted = values(dtype)
    all_of_them = (wanted.astype(np.float64) * (1 + by)).astype(wanted.dtype)
    assert disagreement(all_of_them, wanted).startswith("1000 elements")
    for place in (0, int(np.argmin(np.abs(wanted))), int(np.argmax(np.abs(wanted)))):
        one = wanted.copy()
        one[place] = all_of_them[place]
        assert disagreement(one, wanted).startswith(f"1 element, the first at [{place}]")


def test_sums_in_another_order_agree_and_a_row_left_out_does_not() -> None:
    rows = np.random.default_rng(2).random((16384, 64), np.float32)
    wanted, backwards = np.zeros(64, np.float32), np.zeros(64, np.float32)
    for row, other in zip(rows, rows[::-1], strict=True):
        wanted += row
        backwards += other
    assert (wanted != backwards).any() and disagreement(backwards, wanted) == ""
    assert disagreement(wanted - 2 * rows[:2].sum(0), wanted)


def test_what_is_small_beside_the_largest_may_differ_by_its_rounding() -> None:
    wanted = np.array([1024, 1e-4, -3], np.float32)
    assert disagreement(wanted + np.float32([0, 1e-2, 0]), wanted) == ""
    assert disagreement(wanted + np.float32([0, 0.2, 0]), wanted).startswith("1 element, the first at [1]")


def test_an_infinity_is_no_measure_of_the_others() -> None:
    wanted = np.array([np.inf, 1, 2], ml_dtypes.bfloat16)
    assert disagreement(wanted.copy(), wanted) == ""
    assert disagreement((wanted * 1.03).astype(wanted.dtype), wanted).startswith("2 elements")
    assert disagreement(-wanted, wanted).startswith("3 elements")
    assert disagreement(wanted, np.array([1e38, 1, 2], wanted.dtype)).startswith("1 element")


# --------------------------------------------------------------------------- plans


class Array:
    """Memory of the host, as an array of a device."""

    def __init__(self, content: Any) -> None:
        self.content = np.array(content)
        self.pointer, self.nbytes = self.content.ctypes.data, self.content.nbytes

    def get(self) -> Any:
        return self.content.copy()


def copied_in(pointer: int, content: Any) -> None:
    ctypes.memmove(pointer, content.ctypes.data, content.nbytes)


@pytest.mark.parametrize("dtype", DEVICE_DTYPES)
@pytest.mark.parametrize("right", ["numbers", "zeros"])
def test_plans_that_write_too_little(dtype: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, all but one element, the result without the state, the state without the result."""
    kind = DTYPES[dtype].numpy
    wanted = values(dtype) if right == "numbers" else np.zeros(1000, kind)
    y, state = Array(np.ones(1000, kind)), Array(np.full(3, 2, np.float32))
    bench = SimpleNamespace(
        executor=SimpleNamespace(context=SimpleNamespace(copy_in=copied_in)), clock=SimpleNamespace(stream=0)
    )
    buffers = SimpleNamespace(operands={"s": state}, results={"y": y}, addresses={})

    def whole() -> None:
        y.content[:] = wanted
        state.content[:] += 1

    def all_but_one() -> None:
        y.content[1:] = wanted[1:]
        state.content[:] += 1

    def no_state() -> None:
        y.content[:] = wanted

    def no_result() -> None:
        state.content[:] += 1

    monkeypatch.setattr(agreement, "run_plan", lambda executor, clock, plan, addresses, numbers: plan())
    results: Any = Results(bench, buffers, frozenset({"s"}), {})  # type: ignore[arg-type]
    results.settle(whole)
    assert results.wrong(whole) == ""
    told = ((all_but_one, "y: 1 "), (no_state, "s: 3 "), (no_result, "y: 1000 "), (int, "y: 1000 "))
    for plan, name in told:
        assert results.wrong(plan).startswith(name)
