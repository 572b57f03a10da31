"""Whether two kernels computed the same, as far as the order of float32 sums and one rounding may differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from normgen.counting import counted
from normgen.launching.launch import LaunchPlan
from normgen.measure.norms import Bench, Buffers
from normgen.measure.plans import run_plan

# Of the largest value of a tensor: what sums of thousands of terms in another order differ by at most is near
# 1e-6 of it, what one row in 16384 that is left out or taken twice makes is 1e-3 and more.
OF_LARGEST = 2.0**-14
UNWRITTEN = 0xFF  # of every byte: NaN in all types, which is like no number, zero included
UNITS = 2  # in the last place of the stored type

Array = NDArray[Any]


def disagreement(got: Array, wanted: Array) -> str:
    """Where two results differ by more than rounding, in words; "" where they agree.

    Equal bits are told by comparing them as integers, so that only what differs is looked at in full.
    """
    words = f"u{wanted.dtype.itemsize}"
    apart = np.flatnonzero(got.reshape(-1).view(words) != wanted.reshape(-1).view(words))
    if not apart.size:
        return ""
    a = got.reshape(-1)[apart].astype(np.float64)
    b = wanted.reshape(-1)[apart].astype(np.float64)
    # An infinity is like another of its sign alone: a share of it would allow any number.
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        apart_by = np.where(finite, np.abs(a - b), np.inf)
    allowed = UNITS * float(ml_dtypes.finfo(wanted.dtype).eps) * np.maximum(np.abs(a), np.abs(b))
    alike = (a == b) | (np.isnan(a) & np.isnan(b)) | (finite & (apart_by <= allowed))
    if alike.all():
        return ""
    alike |= apart_by <= OF_LARGEST * _largest(wanted)
    wrong = np.flatnonzero(~alike)
    if not wrong.size:
        return ""
    first = wrong[0]
    place = tuple(int(i) for i in np.unravel_index(apart[first], wanted.shape))
    return f"{counted(wrong.size, 'element')}, the first at {list(place)}: {a[first]:.6g}, not {b[first]:.6g}"


def _largest(values: Array) -> float:
    """The largest finite absolute value."""
    whole = np.abs(values.reshape(-1).astype(np.float32))
    return float(np.max(whole, initial=0.0, where=np.isfinite(whole)))


class Results:
    """The results of one set of arrays, as the default leaves them, to hold others against."""

    def __init__(
        self, bench: Bench, buffers: Buffers, updated: frozenset[str], numbers: Mapping[str, float]
    ) -> None:
        self._bench, self._buffers, self._numbers = bench, buffers, numbers
        # States are read and written: each run begins with the same ones.
        self._states = {name: buffers.operands[name].get() for name in sorted(updated)}
        self._wanted: dict[str, Any] = {}

    def settle(self, plan: LaunchPlan) -> None:
        """Take the results of this plan as right."""
        self._wanted = self._run(plan)

    def wrong(self, plan: LaunchPlan) -> str:
        """Which results of a plan are others, and where; "" where none is."""
        got = self._run(plan)
        said = {name: disagreement(got[name], wanted) for name, wanted in self._wanted.items()}
        return "; ".join(f"{name}: {text}" for name, text in said.items() if text)

    def _run(self, plan: LaunchPlan) -> dict[str, Any]:
        bench, buffers = self._bench, self._buffers
        context = bench.executor.context
        for name, content in self._states.items():
            context.copy_in(buffers.operands[name].pointer, np.ascontiguousarray(content).view(np.uint8))
        for array in buffers.results.values():
            context.copy_in(array.pointer, np.full(array.nbytes, UNWRITTEN, np.uint8))
        run_plan(bench.executor, bench.clock, plan, buffers.addresses, self._numbers)
        written = {**buffers.results, **{name: buffers.operands[name] for name in self._states}}
        return {name: array.get() for name, array in written.items()}
