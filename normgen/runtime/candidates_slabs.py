"""Candidates for short rows that lie side by side and begin anywhere: a block moves several together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType

from normgen.runtime.calling import WORD
from normgen.runtime.candidates_clusters import lates
from normgen.runtime.schedule import Schedule, Shape

WARP = 32
# Lanes of a row, the fewest first, and the elements of each, of all operands that change from row to row,
# with which it takes rows by itself: what a thread does once a row, and what lanes exchange, count less the
# more it has. 83 million elements, us, in 2, 4, 8 and 16 lanes (without slabs): exponentials of 151 columns
# 84, 82, 82, 93 (127); moments of 129 columns 91, 98, 119, 137 (174); of 257 in 4 lanes 97, then 111, 114
# (158); of 513 in 8 110, then 106 (154).
USUAL_ELEMENTS: Mapping[int, int] = MappingProxyType({1: 40, 2: 66, 4: 66, 8: 50, 16: 50, 32: 80})
MOST_ELEMENTS = 80
SLAB_WARPS = (4, 8, 16)  # of a block: with 8 or 16 of them the same rows take 1 to 20 % more
# The longest rows that come in slabs by themselves, of elements of 2 bytes that are read one at a time.
# Longer ones keep vectors busy that are cut out of words (moments of 767 columns 93 us, in slabs 107); wider
# accesses, and elements of 4 bytes, were not measured.
USUAL_LENGTH = 640


def slabs(shape: Shape) -> list[Schedule]:
    """The fewest lanes for a row that have not too many elements each."""
    short = (shape.narrowest, shape.vector) == (2, 1) and shape.length <= USUAL_LENGTH
    return list(islice(any_slab(shape, USUAL_ELEMENTS), int(short)))


def any_slab(shape: Shape, most: Mapping[int, int] = MappingProxyType({})) -> Iterator[Schedule]:
    """All lanes that may have a row, each with so many elements at most, the fewest first. What rows share is
    loaded late first: registers for it would leave room for fewer blocks.
    """
    for lanes in USUAL_ELEMENTS if shape.slab else ():
        items = -(-shape.length // (shape.vector * lanes))
        few = items * shape.vector * shape.streams <= most.get(lanes, MOST_ELEMENTS)
        for teams in (WARP // lanes * warps for warps in SLAB_WARPS):
            for late in reversed(lates(shape)):
                if few and teams * shape.length * shape.narrowest % WORD == 0:
                    yield Schedule("slab", shape.vector, lanes, teams, items, 0, late=late)
