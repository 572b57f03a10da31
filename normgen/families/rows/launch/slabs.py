"""Candidates for short rows that lie side by side and begin anywhere: a block moves several together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from normgen.families.rows.launch.clusters import lates
from normgen.families.rows.launch.schedule import Schedule, Shape
from normgen.launching.call import WORD

WARP = 32
LANES = (1, 2, 4, 8, 16, 32)  # of a row
# Lanes of a row, the fewest first, and the elements of each, of all operands that change from row to row,
# with which it takes rows by itself: what a thread does once a row, and what lanes exchange, count less the
# more it has. 83 million elements, us, in 2, 4, 8 and 16 lanes (without slabs): exponentials of 151 columns
# 84, 82, 82, 93 (127); moments of 129 columns 91, 98, 119, 137 (174); of 257 in 4 lanes 97, then 111, 114
# (158); of 513 in 8 110, then 106 (154).
MANY: Mapping[int, int] = MappingProxyType({1: 40, 2: 66, 4: 66, 8: 50, 16: 50, 32: 80})
# The same of wider accesses, whose lanes have little to do for an element: moments of 130 columns in 2, 4, 8
# and 16 lanes 102, 90, 100, 123 (121), one sum over 1026 in 16 and 32 84 (162), over 1538 in 32 85 (149).
FEW: Mapping[int, int] = MappingProxyType({1: 40, 2: 40, 4: 40, 8: 40, 16: 40, 32: 68})
MOST_ELEMENTS = 80
SLAB_WARPS = (4, 8, 16)  # of a block: with 8 or 16 of them the same rows take 1 to 20 % more


class Usual(NamedTuple):
    """Elements of a lane, at most, and columns, from the least to the most, of rows that come in slabs by
    themselves."""

    elements: Mapping[int, int]
    least: int
    most: int


# By the bytes of an element and how many are read at once. Longer rows keep vectors busy that are cut out of
# words: moments of 767 columns of 2 bytes 93 us, in slabs 107; one sum over 1023 of 4 bytes 84 and 88. Rows
# that may be read 8 bytes at once do as well so, but those of 4-byte elements that are short (130 columns 92,
# in slabs 88). The least are the shortest that were measured, or follow from those.
USUAL: Mapping[tuple[int, int], Usual] = MappingProxyType(
    {
        (2, 1): Usual(MANY, 1, 640),
        (2, 2): Usual(FEW, 34, 2176),
        (4, 1): Usual(FEW, 33, 640),
        (4, 2): Usual(FEW, 130, 256),
    }
)


def slabs(shape: Shape) -> list[Schedule]:
    """The fewest lanes for a row that have not too many elements each."""
    usual = USUAL.get((shape.narrowest, shape.vector))
    if usual is None or not usual.least <= shape.length <= usual.most:
        return []
    return list(islice(any_slab(shape, usual.elements), 1))


def any_slab(shape: Shape, most: Mapping[int, int] = MappingProxyType({})) -> Iterator[Schedule]:
    """All lanes that may have a row, each with so many elements at most, the fewest first. What rows share is
    loaded late first: registers for it would leave room for fewer blocks.
    """
    for lanes in LANES if shape.slab else ():
        items = -(-shape.length // (shape.vector * lanes))
        few = items * shape.vector * shape.streams <= most.get(lanes, MOST_ELEMENTS)
        for teams in (WARP // lanes * warps for warps in SLAB_WARPS):
            for late in reversed(lates(shape)):
                if few and teams * shape.length * shape.narrowest % WORD == 0:
                    yield Schedule("slab", shape.vector, lanes, teams, items, 0, late=late)
