"""Calls of a rank by one kernel, which exchanges with the kernels of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from normgen.dtypes import DTYPES
from normgen.launching.machine import Machine
from normgen.launching.support import NoSchedule
from normgen.package.spread import StageRecord, ToldRecord
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.stages import layout
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.ranks.backend import IN_KERNEL, wish
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.local import Along, Names, Outer, Stage, stage_of

MOST_BYTES = 1 << 16  # of a row, which any block holds
REGISTER = 4  # bytes


class ToldNorm:
    """The local programs of a direction: the kernel that exchanges, and one that accumulates over rows."""

    def __init__(self, record: ToldRecord) -> None:
        self.record, self.norm = record, Norm(record.package)
        rest = None if record.rest is None else record.rest.package
        self.rest = None if rest is None else Norm(rest)


class ToldCall:
    """Calls with the same shapes on all ranks, by such a kernel."""

    def __init__(
        self, outer: Outer, found: Callable[[], ToldNorm | None], along: Along, constants: Mapping[str, float]
    ) -> None:
        """`found`: returns the kernel, compiled at the first call, or None; `constants`: the numbers that
        stages take in addition to those of calls."""
        self._outer, self._found, self._along, self._given = outer, found, along, constants
        self._stage: Stage | None = None
        self._rest: Stage | None = None
        self._known = False
        self._share: float | None = None  # of the device that the kernel occupies, once known

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...] | None:
        """The results of a call in order, None for those that are not wanted. None if the call takes stages
        instead: ranks use no peer memory, or exchange too much for it, no kernel can hold the rows of all
        ranks, or the kernel would fill the device while it waits."""
        like = next(each for each in tensors if each is not None)
        if not ranks.tells_within(like) or not self._is_known():
            return None
        channel, stage = ranks.channel(self._exchanged), self._stage
        if channel is None or stage is None:
            return None
        hold = [None, *tensors, channel]
        try:
            pool = (*numbers, *self._constants)
            if wish() != IN_KERNEL and not ranks.leaves_room(self._held(ranks.machine, stage, hold, pool)):
                return None
            made = stage.run(hold, pool)
        except NoSchedule:  # for example of rows that are not contiguous
            self._stage = None
            return None
        hold += made
        if self._rest is not None:
            hold += self._rest.run(hold, pool)
        return tuple([hold[place] for place in self._results])

    def _is_known(self) -> bool:
        """Whether there is a kernel."""
        if not self._known:
            self._known = True
            found = self._found() if all(length.all() for length in self._along.values()) else None
            if found is not None and self._longest(found) <= MOST_BYTES:
                self._make(found)
        return self._stage is not None

    def _held(self, machine: Machine, stage: Stage, hold: list[Any], pool: Numbers) -> float:
        """The share of the device that the blocks of the kernel occupy. Registers hold all that they read, so
        that for many rows the kernel itself need not be planned."""
        if self._share is None:
            read = sum(tensor.nbytes for tensor in hold if tensor is not None)
            there = machine.multiprocessors * machine.registers_per_multiprocessor * REGISTER
            self._share = read / there if 2 * read > there else stage.share(hold, pool)
        return self._share

    def _longest(self, found: ToldNorm) -> int:
        """The bytes of a row in all operands, on the rank with the longest rows."""
        outer, (kernel,) = self._outer, found.record.package.forward.kernels
        lengths = {**outer.lengths.axes, **{axis: int(each.max()) for axis, each in self._along.items()}}
        operands = {name: {*outer.direction.operands[name].axes} for name in outer.given}
        read = [name for name, axes in operands.items() if axes & self._along.keys()]
        row = prod(lengths[axis] for axis in kernel.inner)
        return row * sum(DTYPES[outer.types[name]].bytes for name in read)

    def _make(self, found: ToldNorm) -> None:
        outer, record, direction = self._outer, found.record, self._outer.direction
        counts = {name: float(self._along[axis][rank]) for name, axis, rank in record.counts}
        constants = {**self._given, **counts}
        self._constants = tuple(constants.values())
        names = Names((*direction.reads, record.channel))
        numbers = {name: place for place, name in enumerate((*outer.attrs, *constants))}
        told = [(tensor, "sum") for tensor in record.told]
        self._exchanged = layout(told, outer.lengths).size
        stage = StageRecord(record.package, handed=record.handed)
        self._stage = stage_of(stage, found.norm, outer, names, numbers, frozenset())
        if record.rest is not None:
            self._rest = stage_of(record.rest, found.rest, outer, names, numbers, frozenset())
        self._results = tuple(names.places[n] if n in outer.results else 0 for n in direction.results)
