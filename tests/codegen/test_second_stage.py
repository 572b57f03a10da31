"""The second-stage kernel: how its warps share what blocks leave, and that nothing is lost or taken twice.

Operands are small whole numbers, whose sums have no roundings, in whatever order they are taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.norm import Norm
from tests.codegen.alone import subject
from tests.codegen.norms import package_of
from tests.codegen.ways import first, pipeline
from tests.host.mutation import Altered

SUMS = """norm sums
input x[..., D]
param b[D]
output y[..., D] = x + b
"""
MOMENTS = """norm moments
input x[..., D]
output top[D]: f32 = max[...](x)
output mean[D]: f32 = mean[...](x)
output spread[D]: f32 = mean[...]((x - mean)^2)
"""


@dataclass(frozen=True)
class Case:
    """How many columns, on a device of how many multiprocessors, and what follows from that: the columns of a
    tile, the warps that share one, and the threads of a block."""

    length: int
    multiprocessors: int
    tile: int
    shares: int
    threads: int

    @property
    def rows(self) -> int:
        return 501 if self.length > 500 else 9001

    def executor(self) -> Altered:
        return Altered(replace(HOST_MACHINE, multiprocessors=self.multiprocessors))

    def check(self, text: str) -> None:
        names = ("TILE", "SHARES", "THREADS")
        found = [int(re.search(rf"constexpr int {name} = (\d+);", text)[1]) for name in names]
        assert found == [self.tile, self.shares, self.threads]


def two_blocks(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Warps that have a row each, in two blocks per multiprocessor: as many partials of each sum."""
    return [replace(pipeline(shape, 32, stages=2, teams=8), blocks=2)]


def whole_numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-8, 9, shape).astype(np.float32)


BOTH = ("sums", "moments")


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (Case(7, 3, 8, 1, 32), BOTH),
        (Case(64, 3, 32, 1, 32), ("sums",)),  # tiles of 8 would be more than there are multiprocessors
        (Case(100, 100, 8, 2, 64), ("sums",)),  # vectors of 4 columns
        (Case(101, 100, 8, 2, 64), ("sums",)),  # of a row that is filled up
        (Case(101, 100, 8, 8, 256), ("moments",)),  # one by one
        (Case(101, 400, 8, 8, 256), ("sums",)),
        (Case(101, 400, 8, 16, 512), ("moments",)),  # more than a thread loads at once
        (Case(1000, 1, 32, 1, 256), ("moments",)),  # several tiles a block, of which the last block has fewer
        (Case(1000, 1, 128, 1, 256), ("sums",)),  # a vector of columns for each thread
        (Case(1001, 3, 128, 1, 64), ("sums",)),
    ],
    ids=str,
)
def test_sums_moments_and_maxima(case: Case, kinds: tuple[str, ...]) -> None:
    executor = case.executor()
    dy = whole_numbers(case.rows, case.length)
    if "sums" in kinds:
        with first(two_blocks):
            found = Norm(package_of(SUMS)).on(executor).backward(dy=dy, wrt=("b",))
        case.check(executor.texts["sums_backward_second_stage"])
        np.testing.assert_array_equal(found.db, dy.sum(axis=0))
    if "moments" in kinds:
        with first(two_blocks):
            found = subject(MOMENTS).norm.on(executor).forward(x=dy)
        case.check(executor.texts["moments_second_stage"])
        np.testing.assert_array_equal(found.top, dy.max(axis=0))
        roundings = case.rows * 2.0**-24  # of as many terms, one after the other
        np.testing.assert_allclose(found.mean, dy.mean(axis=0, dtype=np.float64), rtol=0, atol=roundings)
        np.testing.assert_allclose(found.spread, dy.var(axis=0, dtype=np.float64), rtol=roundings)
