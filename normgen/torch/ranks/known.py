"""Calls of a rank that were made before: all that depends on no values is made once.

What ranks compare of a call is told by how its tensors lie, what is wanted, and its numbers. Its stages
depend on the lengths on all ranks beside, and then have tensors that lie alike: so each is prepared once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from normgen.arrays.views import packed
from normgen.launching.layout import Lengths
from normgen.locks import cached_property
from normgen.package.spread import SpreadRecord, StageRecord
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.agreement import Message, agreed
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.group import run_alone
from normgen.runtime.ranks.stages import layout
from normgen.torch import private
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.ranks.group import ProcessRanks, numbers_on
from normgen.torch.ranks.local import Along, Names, Outer, Stage, stage_of
from normgen.torch.ranks.told import ToldCall, ToldNorm

_KEPT = 64  # lengths on all ranks, or numbers, of calls that are alike else
_STREAMS = 8

Told = Callable[[], ToldNorm | None]


class StageNorms:
    """The local programs of a direction, each as a norm."""

    def __init__(self, record: SpreadRecord) -> None:
        self.record = record

    @cached_property
    def norms(self) -> dict[int, Norm]:
        """By the place among the rounds, then that of what merges, and of what makes results of it."""
        stages = (*self.record.rounds, self.record.merge, self.record.apply)
        return {k: Norm(each.package) for k, each in enumerate(stages) if each.package is not None}


class KnownPlan(Protocol):
    """What makes the results of calls that differ in values alone."""

    copied: frozenset[str]  # results that are laid anew in the end

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        """The results of a call in order, None for those that are not wanted."""


class Plan:
    """The stages of calls that differ in values alone, for given lengths on all ranks. `copied`: the results
    that are copied in the end, since their channels are to lie innermost and stages have made them
    otherwise."""

    def __init__(
        self, outer: Outer, stages: StageNorms, told: Told | None, along: Along, copied: frozenset[str]
    ) -> None:
        self.copied = copied
        record, reads = stages.record, outer.direction.reads
        ranks = len(next(iter(along.values())))
        self._counts = _Counts([along[axis].tolist() for _, axis in record.counts], outer.device)
        constants = {name: float(along[axis].sum()) for name, axis in record.sizes}
        constants |= {name: float(outer.lengths.axes.get(axis, 0)) for name, axis in record.lengths}
        self._constants = tuple(constants.values())
        self._told = None if told is None else ToldCall(outer, told, along, constants)
        names = Names((*reads, *(name for name, _ in record.counts)))
        numbers = {name: place for place, name in enumerate((*outer.attrs, *constants))}
        moved = frozenset(place + 1 for place, name in enumerate(reads) if name in outer.moved)
        self._rounds: list[tuple[Stage | None, _Pieces]] = []
        for place, each in enumerate(record.rounds):
            stage = stage_of(each, stages.norms.get(place), outer, names, numbers, moved)
            pieces = _Pieces(record, each, outer.lengths, names, ranks)
            names.add([*pieces.places, *pieces.own])
            self._rounds.append((stage, pieces))
        self._after = [
            stage
            for place, each in enumerate((record.merge, record.apply), len(record.rounds))
            if (stage := stage_of(each, stages.norms.get(place), outer, names, numbers, moved)) is not None
        ]
        self._results = tuple(names.places[n] if n in outer.results else 0 for n in outer.direction.results)

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        """The results of a call in order, None for those that are not wanted."""
        if self._told is not None and (made := self._told.run(ranks, tensors, numbers)) is not None:
            return made
        hold: list[Any] = [None, *tensors, *self._counts.now()]
        pool = (*numbers, *self._constants)
        for stage, pieces in self._rounds:
            if stage is not None:
                hold += stage.run(hold, pool)
            hold += pieces.of(hold, ranks)
        for stage in self._after:
            hold += stage.run(hold, pool)
        return tuple([hold[place] for place in self._results])


class KnownCall:
    """Calls whose tensors lie alike, on a rank that has such lengths of axes. `made`: their stages, by the
    lengths on all ranks."""

    def __init__(self, lengths: Lengths, made: Callable[[Along], KnownPlan]) -> None:
        self._lengths, self._made = lengths, made
        self.messages: Bounded[Numbers, Message] = Bounded(_KEPT)
        self._plans: Bounded[bytes, KnownPlan] = Bounded(_KEPT)  # by what all ranks told
        self._by_lengths: Bounded[Any, KnownPlan] = Bounded(_KEPT)

    def plan(self, along: Along) -> KnownPlan:
        """The stages for these lengths."""
        key = tuple(each.tobytes() for each in along.values())
        found = self._by_lengths.get(key)
        if found is None:
            found = self._made(along)
            self._by_lengths.keep(key, found)
        return found

    def agreed(self, spread: SpreadDirection, ranks: ProcessRanks, told: Message) -> KnownPlan:
        """The stages of a call, once ranks agree on it."""
        heads = ranks.gather(told.head)
        key = heads.tobytes()
        found = self._plans.get(key)
        if found is None:
            every = run_alone(agreed(spread.title, told, heads), ranks)
            found = self.plan(spread.along(self._lengths, every))
            self._plans.keep(key, found)
        return found


class _Pieces:
    """What ranks tell in a round, and the tensors that it is."""

    def __init__(
        self, record: SpreadRecord, stage: StageRecord, lengths: Lengths, names: Names, ranks: int
    ) -> None:
        lies = layout(stage.told, lengths)
        self.places, self._size, self._ranks = lies.places, lies.size, ranks
        self.own = {called: lies.places[name] for called, name in record.own if name in lies.places}
        self._told = names.places[next(iter(lies.places))]  # the first one is all of them

    def of(self, hold: list[Any], ranks: ProcessRanks) -> list[Any]:
        """Of each tensor those of all ranks, with a first axis of ranks; then this rank's own ones by which
        later stages call them."""
        told = hold[self._told]
        every = ranks.gather(told)
        first, size, own = every.storage_offset(), self._size, told.storage_offset()
        return [
            *[
                every.as_strided((self._ranks, *shape), (size, *packed(shape)), first + start)
                for start, shape in self.places.values()
            ],
            *[told.as_strided(shape, packed(shape), own + start) for start, shape in self.own.values()],
        ]


class _Counts:
    """The lengths of spread axes on all ranks, as tensors."""

    def __init__(self, values: list[list[int]], device: torch.device) -> None:
        self._values, self._device = values, device
        self._known: Bounded[int, list[torch.Tensor]] = Bounded(_STREAMS)

    def now(self) -> list[torch.Tensor]:
        """Those for a call on the current stream: what another one fills may not be there yet, and what a
        graph takes is to be its own."""
        if not self._values:
            return []
        stream = private.stream_name(self._device)
        found = None if stream is None else self._known.get(stream)
        if found is None:
            found = [numbers_on(self._device, each) for each in self._values]
            if stream is not None:
                self._known.keep(stream, found)
        return found
