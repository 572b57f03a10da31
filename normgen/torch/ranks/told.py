"""Calls of a rank by one kernel, which exchanges with the kernels of other ranks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from normgen.dtypes import DTYPES
from normgen.launching.machine import Machine
from normgen.launching.support import NoSchedule
from normgen.package.direction import Direction
from normgen.package.spread import StageRecord, ToldRecord
from normgen.runtime.norm import Norm
from normgen.runtime.ranks.steps import Along, LocalCall, Numbers, Values, layout
from normgen.torch.calls import Tensors
from normgen.torch.ranks.backend import IN_KERNEL, wish
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.local import LocalProgram

MOST_BYTES = 1 << 16  # of a row, which any block holds
REGISTER = 4  # bytes


class ToldCall:
    """Calls with the same shapes on all ranks, by such a kernel, and one that accumulates over rows."""

    def __init__(
        self,
        direction: Direction,
        call: LocalCall,
        found: Callable[[], ToldRecord | None],
        along: Along,
        constants: Numbers,
    ) -> None:
        """`call`: one of them; `found`: returns the kernel, compiled at the first call, or None; `constants`:
        the numbers that steps take in addition to those of calls."""
        self._direction, self._call, self._along = direction, call, along
        self._found, self._constants = found, dict(constants)
        self._kernel: LocalProgram | None = None
        self._rest: LocalProgram | None = None
        self._known = False
        self._share: float | None = None  # of the device that the kernel occupies, once known

    def run(self, ranks: ProcessRanks, tensors: Tensors, values: Values) -> Values | None:
        """The results of a call by name. None if the call takes other steps: ranks use no peer memory, or
        exchange too much for it, no kernel can hold the rows of all ranks, or the kernel would fill the
        device while it waits. `values`: those of the call."""
        like = next(each for each in tensors if each is not None)
        peers = ranks.within_kernels(like)
        if peers is None or not self._is_known():
            return None
        channel, kernel = peers.channel(self._exchanged), self._kernel
        if channel is None or kernel is None:
            return None
        values = {**values, **self._constants, self._channel: channel}
        try:
            if wish() != IN_KERNEL:
                read = sum(tensor.nbytes for tensor in (*tensors, channel) if tensor is not None)
                if not peers.leaves_room(self._occupied(peers.machine, kernel, values, read)):
                    return None
            values |= kernel(values)
        except NoSchedule:  # for example of rows that are not contiguous
            self._kernel = None
            return None
        return values if self._rest is None else {**values, **self._rest(values)}

    def _is_known(self) -> bool:
        """Whether there is a kernel."""
        if not self._known:
            self._known = True
            found = self._found() if all(length.all() for length in self._along.values()) else None
            if found is not None and self._longest(found) <= MOST_BYTES:
                self._make(found)
        return self._kernel is not None

    def _occupied(self, machine: Machine, kernel: LocalProgram, values: Values, read: int) -> float:
        """The share of the device that the blocks of the kernel occupy. Registers hold all that they `read`,
        in bytes, so that for many rows the kernel itself need not be planned."""
        if self._share is None:
            there = machine.multiprocessors * machine.registers_per_multiprocessor * REGISTER
            self._share = read / there if 2 * read > there else kernel.share(values)
        return self._share

    def _longest(self, found: ToldRecord) -> int:
        """The bytes of a row in all operands, on the rank with the longest rows."""
        call, (kernel,) = self._call, found.package.forward.kernels
        lengths = {**call.lengths.axes, **{axis: int(each.max()) for axis, each in self._along.items()}}
        given = [name for name, each in call.operands.items() if each is not None]
        read = [name for name in given if {*self._direction.operands[name].axes} & self._along.keys()]
        row = prod(lengths[axis] for axis in kernel.inner)
        return row * sum(DTYPES[call.types[name]].bytes for name in read)

    def _make(self, found: ToldRecord) -> None:
        counts = {name: float(self._along[axis][rank]) for name, axis, rank in found.counts}
        self._constants |= counts
        self._channel = found.channel
        self._exchanged = layout([(tensor, "sum") for tensor in found.told], self._call.lengths).size
        stage = StageRecord(found.package, handed=found.handed)
        kernel = LocalProgram(Norm(found.package), stage, self._call)
        self._kernel = None if kernel.is_idle else kernel
        if found.rest is not None and found.rest.package is not None:
            self._rest = LocalProgram(Norm(found.rest.package), found.rest, self._call)
