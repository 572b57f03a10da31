"""Compare what a kernel stored with the float64 truth, element by element, under an error bound.

A kernel holds a float32 value and rounds it once, to the element type of the output.  So a stored element
is right when some float32 value within the bound of the truth rounds to it.  This one rule covers half an
ulp at 16 bits, either side of a tie, the neighbouring fp8 code near a midpoint, saturation and overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DTYPES, round_to

FloatArray = NDArray[np.float64]

WORST = 1.0  # the largest error that is right, in bounds
_KNOWN = 100  # of so many elements, one at most may have no bound


@dataclass(frozen=True, slots=True)
class Comparison:
    """`worst`: the largest error as a multiple of its bound (at most 1 where right; infinite for a wrong
    class).

    `unbounded`: elements that are not the truth and for which no finite bound exists, where anything passes.
    `equal`: the share of elements that are the truth, correctly rounded.  `where`, `got`, `wanted`, `bound`
    describe the worst element.
    """

    worst: float
    unbounded: int
    equal: float
    count: int
    where: tuple[int, ...] = ()
    got: float = 0.0
    wanted: float = 0.0
    bound: float = 0.0

    @property
    def ok(self) -> bool:
        """Within the bound everywhere, and the bound says something nearly everywhere."""
        return self.worst <= WORST and self.unbounded * _KNOWN <= self.count


# An array of the wrong shape or element type.
WRONG = Comparison(float("inf"), 0, 0.0, 0, bound=float("nan"))


def compare(got: NDArray[Any], dtype: str, truth: FloatArray, bound: FloatArray) -> Comparison:
    """Compare `got`, stored as `dtype`, with the float64 `truth` under the absolute error `bound`."""
    assert got.shape == truth.shape, f"shape {got.shape} where {truth.shape} was expected"
    if got.size == 0:
        return Comparison(0.0, 0, 1.0, 0)
    bound = np.broadcast_to(np.asarray(bound, dtype=np.float64), truth.shape)
    with np.errstate(all="ignore"):
        values = got.astype(np.float64)
        error = distance(values, dtype, truth)
        ratio = np.where(error == 0.0, 0.0, error / bound)
        ratio[np.isinf(bound)] = 0.0
        ratio[np.isnan(ratio)] = np.inf
        same = np.asarray(round_to(truth, dtype)).astype(np.float64)
        equal = (values == same) | (np.isnan(values) & np.isnan(same))
        unbounded = np.isinf(bound) & ~equal & (error != 0.0)
    place = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    return Comparison(
        worst=float(ratio[place]),
        unbounded=int(np.count_nonzero(unbounded)),
        equal=float(np.mean(equal)),
        count=int(got.size),
        where=tuple(int(i) for i in place),
        got=float(values[place]),
        wanted=float(truth[place]),
        bound=float(bound[place]),
    )


def distance(values: FloatArray, dtype: str, truth: FloatArray) -> FloatArray:
    """How far the truth is from the nearest number that rounds to what was stored; NaN must meet NaN."""
    low, high = preimage(values, dtype)
    inside = (low <= truth) & (truth <= high)
    gap = np.where(inside, 0.0, np.maximum(low - truth, truth - high))
    both = np.isnan(values) & np.isnan(truth)
    either = np.isnan(values) | np.isnan(truth)
    wrong_infinity = np.isinf(truth) & ~inside
    return np.where(both, 0.0, np.where(either | wrong_infinity, np.inf, gap))


def preimage(values: FloatArray, dtype: str) -> tuple[FloatArray, FloatArray]:
    """The interval of numbers that round to each of `values`; f32 and f64 count as unrounded, so that error
    shows."""
    if dtype in ("f32", "f64"):
        return values, values
    codes, edges = _rounding_table(dtype)
    stray = ~(np.abs(values) <= codes[-1])  # NaN, or an infinity that the dtype never stores
    index = np.searchsorted(codes, np.where(stray, 0.0, values))
    return np.where(stray, values, edges[index]), np.where(stray, values, edges[index + 1])


@cache
def _rounding_table(dtype: str) -> tuple[FloatArray, FloatArray]:
    """Every number of a narrow dtype in order, and the n + 1 midpoints around them."""
    kind = DTYPES[dtype]
    bits = np.arange(2 ** (8 * kind.bytes), dtype=f"uint{8 * kind.bytes}")
    every = bits.view(kind.numpy).astype(np.float64)
    codes = np.unique(every[np.isfinite(every)])
    edges = np.empty(len(codes) + 1)
    edges[1:-1] = (codes[1:] + codes[:-1]) / 2
    edges[0], edges[-1] = -np.inf, np.inf
    if kind.saturates:
        return codes, edges
    overflow = codes[-1] + (codes[-1] - codes[-2]) / 2
    return (
        np.concatenate([[-np.inf], codes, [np.inf]]),
        np.concatenate([[-np.inf, -overflow], edges[1:-1], [overflow, np.inf]]),
    )
