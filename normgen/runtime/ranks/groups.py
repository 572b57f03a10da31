"""A direction of a norm of whose dimensions `(G C)` ranks have runs: of whole groups, or not.

To a call it is one axis, of any length on each rank. Where runs are whole groups, and ranks have as many
where the spec fixes how many there are, they are runs of G. Otherwise they straddle groups (`straddling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgen import arrays
from normgen.launching.layout import Lengths, Shape, is_contiguous
from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.package.spread import PairRecord
from normgen.runtime.calls.assemble import Executors, Planner
from normgen.runtime.ranks.direction import Along, Compile, SpreadDirection
from normgen.runtime.ranks.division import Division, divisions
from normgen.runtime.ranks.group import RankCall
from normgen.runtime.ranks.stages import LocalCall, Numbers, Stages
from normgen.runtime.ranks.straddling import Programs, Straddling


@dataclass(frozen=True)
class Grouped:
    """Dimensions that are two axes, of which ranks have runs. `straddling`: makes the stages of blocks;
    `wholes`: whether ranks may have whole groups alone."""

    pairs: tuple[PairRecord, ...]
    straddling: Compile
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
        executors: Executors,
        planner: Planner,
    ) -> None:
        """`compiled`: makes the stages of runs of whole groups, if ranks can have such."""
        self.pairs, self.wholes, self._straddling = grouped.pairs, grouped.wholes, grouped.straddling
        self._apart: dict[tuple[str, ...], Stages] = {}
        names = tuple(pair.name for pair in self.pairs)
        stages = compiled if self.wholes else self._straddling
        super().__init__(package, direction, names, whole, stages, executors, planner)

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
                told = f"{members} in {division.pair.name} on all ranks"
                raise ValueError(f"{inner} is {own.axes[inner]} in an operand, and {told}")
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

    def parts(self, axis: str) -> tuple[str, ...]:
        """Both axes of a dimension that is two."""
        return next((pair.axes for pair in self.pairs if pair.name == axis), (axis,))

    def apart(self, call: LocalCall) -> Stages:
        """The stages of blocks, compiled when they are first asked for."""
        if not self.wholes:
            return self.stages(call)
        wanted = self.computed(call)
        with self._lock:
            if wanted not in self._apart:
                self._apart[wanted] = Stages(self._straddling(self.direction.name, wanted), *self._around)
            return self._apart[wanted]

    def run(self, call: LocalCall, along: Along) -> RankCall:
        """What makes the results of a call of kernels."""
        found = self.divided(along)
        if found:
            return (yield from self.straddled(call, found))
        return (yield from super().run(*self.by_groups(call, along)))

    def straddled(
        self, call: LocalCall, found: Sequence[Division], programs: Programs | None = None
    ) -> RankCall:
        """What makes the results of a call whose runs straddle groups: by kernels, or other `programs`."""
        stages = self.apart(call)
        by = programs or Kernels(stages, call)
        made = Straddling(stages.record, self.direction, found, call, by)
        return (yield from made.run())


def spread_direction(
    package: Package,
    direction: Direction,
    axes: tuple[str, ...],
    grouped: Grouped | None,
    whole: tuple[str, ...],
    compiled: Compile,
    executors: Executors,
    planner: Planner,
) -> SpreadDirection:
    """One direction of a norm whose `axes` are spread, or where it is `grouped`, such dimensions."""
    around = executors, planner
    if grouped is None:
        return SpreadDirection(package, direction, axes, whole, compiled, *around)
    return GroupedDirection(package, direction, grouped, whole, compiled, *around)


class Kernels:
    """The local programs of a call, run by kernels."""

    def __init__(self, stages: Stages, call: LocalCall) -> None:
        assert call.like is not None, "what kernels make"
        self._stages = (*stages.rounds, stages.merge, stages.apply)
        self._like, self._types = call.like, call.types

    def run(
        self, stage: int, hold: Mapping[str, Any], numbers: Numbers, lengths: Lengths, into: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `Programs`."""
        return self._stages[stage].run(hold, numbers, into, self._types, ())

    def zeros(self, shape: Shape, dtype: str) -> Any:
        """An array of this shape."""
        return arrays.zeros(self._like, shape, dtype, arrays.stream_of(self._like))

    def without_gaps(self, array: Any) -> bool:
        """Whether results can be written there."""
        seen = arrays.view(array)
        return is_contiguous(seen.shape, seen.strides)
