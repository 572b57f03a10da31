"""Candidates for short rows that lie side by side and begin anywhere: a block moves several together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from normgen.runtime.candidates_clusters import lates
from normgen.runtime.schedule import Schedule, Shape

WARP = 32
LANES = (1, 2, 4, 8, 16, 32)  # of a row
# Elements of a lane, of all operands that change from row to row: what a thread does once a row, and what
# lanes exchange, count less the more there are. Instructions for each element of exponentials of 151 columns,
# in 4 lanes 18, in 8 23, in 16 33, in 32 (as read from memory) 51; moments of 33 columns, in one lane 20, in
# 32 137.
SLAB_ELEMENTS, MOST_ELEMENTS = 40, 80
SLAB_WARPS, USUAL_WARPS = (4, 8, 16), 8  # of a block
# The longest rows that come in slabs by themselves, by the bytes of an element and the elements that a lane
# may move at once, estimated: longer rows of 2-byte elements keep vectors busy that are cut out of words, or
# are moved fast enough as they are. (None of 4 bytes is among them: element by element 151 columns reach 0.96
# of a copy's speed.)
SLAB_LENGTHS: Mapping[tuple[int, int], int] = MappingProxyType({(2, 1): 640, (2, 2): 640, (2, 4): 64})


def slabs(shape: Shape) -> list[Schedule]:
    """The fewest lanes for a row that have not too many elements each."""
    short = shape.length <= SLAB_LENGTHS.get((shape.narrowest, shape.vector), 0)
    return list(islice(any_slab(shape, SLAB_ELEMENTS), int(short)))


def any_slab(shape: Shape, most: int = MOST_ELEMENTS) -> Iterator[Schedule]:
    """All lanes that may have a row, each with so many elements at most, the fewest first. What rows share is
    loaded late first: registers for it would leave room for fewer blocks.
    """
    for lanes in LANES if shape.slab else ():
        items = -(-shape.length // (shape.vector * lanes))
        # as many warps as a row has lanes keep the lanes of a warp on different banks (slab.cuh)
        for warps in sorted(SLAB_WARPS, key=lambda warps: abs(warps - min(USUAL_WARPS, lanes))):
            for late in reversed(lates(shape)):
                if items * shape.vector * shape.streams <= most:
                    yield Schedule("slab", shape.vector, lanes, WARP // lanes * warps, items, 0, late=late)
