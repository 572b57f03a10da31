"""Calls of a rank that were made before: all that depends on no values is made once.

What ranks compare of a call is told by how its tensors lie, what is wanted, and its numbers. Its stages
depend on the lengths on all ranks beside, and then have tensors that lie alike: so each is prepared once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from normgen.arrays.views import packed
from normgen.launching.layout import Lengths
from normgen.locks import cached_property
from normgen.package.direction import Direction
from normgen.package.spread import SpreadRecord, StageRecord
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.agreement import Message, agreed
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.group import run_alone
from normgen.runtime.ranks.stages import layout
from normgen.torch import native, private
from normgen.torch.calls import Joined, Known, Numbers, Tensors, Wanted, prepare
from normgen.torch.dtypes import TYPES
from normgen.torch.ranks.group import ProcessRanks, numbers_on

_KEPT = 64  # lengths on all ranks, or numbers, of calls that are alike else
_STREAMS = 8

Along = Mapping[str, "np.ndarray[Any, Any]"]  # of each spread axis the lengths on all ranks


class StageNorms:
    """The local programs of a direction, each as a norm."""

    def __init__(self, record: SpreadRecord) -> None:
        self.record = record

    @cached_property
    def norms(self) -> dict[int, Norm]:
        """By the place among the rounds, then that of what merges, and of what makes results of it."""
        stages = (*self.record.rounds, self.record.merge, self.record.apply)
        return {k: Norm(each.package) for k, each in enumerate(stages) if each.package is not None}


class Outer(NamedTuple):
    """A call without its values, as its stages see it."""

    direction: Direction
    attrs: tuple[str, ...]
    results: tuple[str, ...]  # that are wanted
    given: frozenset[str]  # the operands that are there
    types: Mapping[str, str]  # of these, and of others that are told
    lengths: Lengths  # on this rank
    device: torch.device
    moved: frozenset[str]  # operands whose channels stages have as the last axis
    last: frozenset[str]  # results whose channels they make as the last axis


class Plan:
    """The stages of calls that differ in values alone, for given lengths on all ranks."""

    def __init__(self, outer: Outer, stages: StageNorms, along: Along) -> None:
        record, reads = stages.record, outer.direction.reads
        ranks = len(next(iter(along.values())))
        self._counts = _Counts([along[axis].tolist() for _, axis in record.counts], outer.device)
        constants = {name: float(along[axis].sum()) for name, axis in record.sizes}
        constants |= {name: float(outer.lengths.axes.get(axis, 0)) for name, axis in record.lengths}
        self._constants = tuple(constants.values())
        names = _Names((*reads, *(name for name, _ in record.counts)))
        numbers = {name: place for place, name in enumerate((*outer.attrs, *constants))}
        moved = frozenset(place + 1 for place, name in enumerate(reads) if name in outer.moved)
        self._rounds: list[tuple[_Stage | None, _Pieces]] = []
        for place, each in enumerate(record.rounds):
            stage = _stage(each, stages.norms.get(place), outer, names, numbers, moved)
            pieces = _Pieces(record, each, outer.lengths, names, ranks)
            names.add([*pieces.places, *pieces.own])
            self._rounds.append((stage, pieces))
        self._after = [
            stage
            for place, each in enumerate((record.merge, record.apply), len(record.rounds))
            if (stage := _stage(each, stages.norms.get(place), outer, names, numbers, moved)) is not None
        ]
        self._results = tuple(names.places[n] if n in outer.results else 0 for n in outer.direction.results)

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        """The results of a call in order, None for those that are not wanted."""
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
    """Calls whose tensors lie alike. `copied`: the results that are copied in the end, since their channels
    are to lie innermost and stages have made them otherwise."""

    def __init__(self, outer: Outer, stages: StageNorms, copied: frozenset[str]) -> None:
        self._outer, self._stages, self.copied = outer, stages, copied
        self.messages: Bounded[Numbers, Message] = Bounded(_KEPT)
        self._plans: Bounded[bytes, Plan] = Bounded(_KEPT)  # by what all ranks told
        self._by_lengths: Bounded[Any, Plan] = Bounded(_KEPT)

    def plan(self, along: Along) -> Plan:
        """The stages for these lengths."""
        key = tuple(each.tobytes() for each in along.values())
        found = self._by_lengths.get(key)
        if found is None:
            found = Plan(self._outer, self._stages, along)
            self._by_lengths.keep(key, found)
        return found

    def agreed(self, spread: SpreadDirection, ranks: ProcessRanks, told: Message) -> Plan:
        """The stages of a call, once ranks agree on it."""
        heads = ranks.gather(told.head)
        key = heads.tobytes()
        found = self._plans.get(key)
        if found is None:
            every = run_alone(agreed(spread.title, told, heads), ranks)
            found = self.plan(spread.along(self._outer.lengths, every))
            self._plans.keep(key, found)
        return found


class _Names:
    """Where in what a call holds everything lies while its plan is made: None, operands, counts, and what the
    stages make, one after the other."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places = {name: place + 1 for place, name in enumerate(names)}
        self._count = len(names) + 1

    def add(self, names: Iterable[str]) -> None:
        """What comes next."""
        for name in names:
            self.places[name] = self._count
            self._count += 1


class _Stage:
    """A local program of a plan."""

    def __init__(
        self,
        norm: Norm,
        wanted: Wanted,
        operands: tuple[int, ...],
        numbers: tuple[int, ...],
        moved: frozenset[int],
        last: frozenset[str],
        joined: Joined | None,
    ) -> None:
        """`operands`, `numbers`: their places in what a call holds, and in its pool of numbers; `moved`: the
        places whose channels it takes as the last axis."""
        self._norm, self._wanted = norm, wanted
        self._operands, self._numbers = operands, numbers
        self._moved, self._last, self._joined = moved, last, joined
        self._known: Known | None = None
        self._fast: Any = None  # the same in the extension
        self._told = False  # the extension of it

    def run(self, hold: list[Any], pool: Numbers) -> tuple[Any, ...]:
        """All results, None for those that are not wanted, and for those that are within others."""
        tensors = tuple([hold[place] for place in self._operands])
        numbers = tuple([pool[place] for place in self._numbers])
        if self._fast is not None:
            made: tuple[Any, ...] | None = self._fast.run(numbers, tensors)
            if made is not None:
                return made
        given = [tensor for tensor in tensors if tensor is not None]
        known = self._known or self._prepare(tensors, numbers)
        if not self._told and native.EXTENSION.there:
            self._told = True
            if known.in_extension is not None:
                self._fast = known.in_extension(native.EXTENSION.loaded)
        return known.repeated(given[-1], tensors, numbers, [tensor.data_ptr() for tensor in given])

    def _prepare(self, tensors: Tensors, numbers: Numbers) -> Known:
        lying = tuple(
            tensor.movedim(1, -1) if place in self._moved and tensor is not None else tensor
            for place, tensor in zip(self._operands, tensors, strict=True)
        )
        known = prepare(self._norm, "forward", lying, numbers, self._wanted, self._last, self._joined)
        self._known = known
        return known


class _Pieces:
    """What ranks tell in a round, and the tensors that it is."""

    def __init__(
        self, record: SpreadRecord, stage: StageRecord, lengths: Lengths, names: _Names, ranks: int
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


def _stage(
    record: StageRecord,
    norm: Norm | None,
    outer: Outer,
    names: _Names,
    numbers: Mapping[str, int],
    moved: frozenset[int],
) -> _Stage | None:
    """A stage of a plan, whose results then have places; None where there is nothing to compute."""
    if norm is None:
        return None
    direction = norm.dispatcher("forward").direction
    told = [each.name for each, _ in record.told]
    asked = {*record.handed, *told, *outer.results}
    wanted = tuple(name for name in direction.results if name in asked)
    if not wanted and not direction.updated:
        return None
    operands = tuple(names.places.get(name, 0) for name in direction.reads)
    read = outer.given & {*direction.reads}
    types = {name: TYPES[dtype] for name, dtype in outer.types.items() if name not in read}
    joined = None
    if told:
        lies = layout(record.told, outer.lengths)
        joined = Joined({name: start for name, (start, _) in lies.places.items()}, lies.size)
    names.add(direction.results)
    return _Stage(
        norm,
        Wanted(wanted, tuple(types.items())),
        operands,
        tuple(numbers[attr.name] for attr in norm.package.attrs),
        moved,
        outer.last & {*direction.results},
        joined,
    )
