"""A direction of a norm of whose dimensions `(G C)` ranks have runs: of whole groups, or not.

To a call it is one axis, of any length on each rank. Where runs are whole groups, and ranks have as many
where the spec fixes how many there are, they are runs of G. Otherwise they straddle groups (`straddling`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgen.launching.layout import Lengths
from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.package.spread import PairRecord
from normgen.runtime.ranks.direction import Compile, SpreadDirection
from normgen.runtime.ranks.division import Division, divisions
from normgen.runtime.ranks.steps import Along, Computes, LocalCall, Stages


@dataclass(frozen=True)
class Grouped:
    """Dimensions that are two axes, of which ranks have runs. `wholes`: whether ranks may have whole groups
    alone."""

    pairs: tuple[PairRecord, ...]
    wholes: bool


class GroupedDirection(SpreadDirection):
    """One direction of which ranks have runs of dimensions that are two axes. Results have the placements of
    runs of whole groups, where ranks can have such, whatever runs they have."""

    def __init__(
        self,
        package: Package,
        direction: Direction,
        grouped: Grouped,
        whole: tuple[str, ...],
        compiled: Compile,
        computes: Computes,
    ) -> None:
        self.pairs, self.wholes = grouped.pairs, grouped.wholes
        names = tuple(pair.name for pair in self.pairs)
        super().__init__(package, direction, names, whole, compiled, computes)

    def stages_of(self, wanted: tuple[str, ...], blocks: bool = False) -> Stages:
        """The stages that give these results."""
        return super().stages_of(wanted, blocks or not self.wholes)

    @property
    def uncompared(self) -> frozenset[str]:
        """The axes whose lengths differ between ranks."""
        outer = (pair.outer for pair in self.pairs if pair.groups is None)
        return frozenset((*self.axes, *outer))

    def along(self, own: Lengths, every: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Of each dimension the lengths on all ranks. ValueError where these together are no whole groups, or
        have nothing to reduce."""
        found = super().along(own, every)
        for division in divisions(self.pairs, found):
            inner, members = division.pair.inner, division.members
            if own.axes.get(inner, members) != members:
                told = f"{members} in {division.pair.name} over all ranks"
                raise ValueError(f"{inner} is {own.axes[inner]} in an operand but {told}")
        return found

    def divided(self, along: Along) -> tuple[Division, ...]:
        """The runs of all ranks, where they straddle groups; none where they are runs of whole groups."""
        found = divisions(self.pairs, along)
        return found if not self.wholes or any(each.straddles for each in found) else ()

    def by_groups(self, call: LocalCall, along: Along) -> tuple[LocalCall, Along]:
        """A call whose runs are whole groups as one of runs of the outer axes."""
        lengths, outer = dict(call.lengths.axes), {}
        for each in divisions(self.pairs, along):
            outer[each.pair.outer] = np.array(each.whole_groups)
            lengths[each.pair.outer], lengths[each.pair.inner] = each.whole_groups[call.rank], each.members
        return replace(call, lengths=Lengths(lengths, call.lengths.rest)), outer


def spread_direction(
    package: Package,
    direction: Direction,
    axes: tuple[str, ...],
    grouped: Grouped | None,
    whole: tuple[str, ...],
    compiled: Compile,
    computes: Computes,
) -> SpreadDirection:
    """One direction of a norm whose `axes` are spread, or where it is `grouped`, such dimensions."""
    if grouped is None:
        return SpreadDirection(package, direction, axes, whole, compiled, computes)
    return GroupedDirection(package, direction, grouped, whole, compiled, computes)
