"""A call without its addresses: all that is left to do is to fill them in and launch.

What the launches take lies in one list, the pool: the addresses of the operands and of the results that the
caller gives, the numbers, the addresses of the results made for it and of scratch memory, constants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from normgen import arrays
from normgen.arrays.views import Library
from normgen.launching.launch import Buffer, DeviceKey, Fire, Launch
from normgen.launching.layout import Shape
from normgen.launching.machine import Machine
from normgen.runtime.calls.workspace import MEMORY, Lent, Memory

NOTHING: Mapping[str, int] = MappingProxyType({})

# Picks items out of a list.
Take = Callable[[Sequence[Any]], tuple[Any, ...]]
# What launches, its arguments, and the memory that they touch.
Ready = tuple[Fire, bytes, tuple[Buffer, ...]]
# Two tensors, one of them written: the places of their addresses in the pool. They overlap where the second
# is further from the first than the one distance and less far than the other; the last distance is allowed
# all the same. Then what to say of it.
Guard = tuple[int, int, int, int, int | None, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A launch with its function, and where its arguments come from."""

    launch: Launch
    function: Any  # the executor's
    fire: Fire
    pack: Callable[..., bytes]
    places: tuple[int, ...]  # of its arguments in the pool
    take: Take  # what picks them out
    # (place in the pool, first byte, bytes, bytes of an element, access) of the memory that the launch
    # touches, where the executor wants to know.
    buffers: tuple[tuple[int, int, int, int, str], ...]

    def share(self, device: Machine) -> float:
        """What the launch takes of the places that the device has for its blocks."""
        launch, report = self.launch, self.function.report
        shared = launch.shared + report.shared
        return device.share(prod(launch.grid), prod(launch.block), report.registers, shared)

    def memory(self, pool: Sequence[Any]) -> tuple[Buffer, ...]:
        """The memory that the launch touches."""
        return tuple(
            Buffer(pool[place] + first, size, itemsize, access)
            for place, first, size, itemsize, access in self.buffers
        )


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch arrays of a call: names and offsets."""

    offsets: tuple[tuple[str, int], ...] = ()  # in an arena
    size: int = 0  # bytes of the arena
    workspace: tuple[tuple[str, Shape, str], ...] = ()  # those that the caller may supply, with dtype
    zeros: tuple[tuple[str, int], ...] = ()  # those that are zeros between calls, in memory that always is
    zero_size: int = 0  # bytes of that memory


class Placed(NamedTuple):
    """Where the scratch arrays of a call lie, in order."""

    addresses: tuple[int, ...] = ()
    cleared: bool = False  # those that are zeros between calls are so now
    supplied: bool = False  # the caller has them
    lent: tuple[Lent, ...] = ()  # what they lie in
    lock: threading.Lock | None = None  # held while launches are queued, where calls share it


NOWHERE = Placed()


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call without its addresses."""

    device: DeviceKey
    operands: tuple[str, ...]  # the pool begins with these,
    given: tuple[str, ...]  # the results that the caller gives,
    numbers: tuple[str, ...]  # the numbers,
    made: tuple[tuple[Shape, str], ...]  # and the results to make; then comes scratch memory
    constants: tuple[Any, ...]  # and, last, what the launches take beside
    fields: Take  # every result of the direction in order, out of the given, the made and a None
    scratch: Scratch
    steps: tuple[Step, ...]
    guards: tuple[Guard, ...]  # what must not overlap
    supplied: tuple[Guard, ...]  # the same where scratch memory is the caller's
    idle: bool  # nothing is launched
    cleared: tuple[tuple[int, int], ...]  # (place in the pool, bytes) that an idle call sets to zero

    def make(self, library: Library, owner: Any) -> tuple[list[Any], list[int]]:
        """The results that the caller did not give, of the library of the array `owner`; their addresses."""
        made, addresses = [], []
        for shape, dtype in self.made:
            array, address = library.empty(owner, self.device, shape, dtype)
            made.append(array)
            addresses.append(address)
        return made, addresses

    def share(self, device: Machine) -> float:
        """What the largest launch takes of the places that the device has for its blocks; 0 on the host."""
        return 0.0 if device.host else max((each.share(device) for each in self.steps), default=0.0)

    def suits(self, addresses: list[int]) -> bool:
        """Whether results at these addresses are aligned as the launches count on."""
        return self.idle or not any(address & 15 for address in addresses)

    def results(self, given: list[Any], made: list[Any], library: Library, stream: int) -> tuple[Any, ...]:
        """Every result of the direction in order, as the caller is to get them."""
        if library.deliver is not None:
            made = [library.deliver(result, stream) for result in made]
        return self.fields([*given, *made, None])

    def place_scratch(
        self,
        memory: Memory,
        library: Library,
        owner: Any,
        stream: int,
        theirs: Mapping[str, int] = NOTHING,
        lasting: bool = False,
    ) -> Placed:
        """Where the scratch arrays lie of a call on a stream that has some. `theirs`: those that the caller
        supplies; the others are in `memory`, for this call or for all, or made by the library of the array
        `owner`."""
        scratch, device = self.scratch, self.device
        lent: list[Lent] = []
        kept = dict(theirs)
        zeros = None
        if scratch.zeros and not theirs:
            zeros = memory.zeros(device, stream, scratch.zero_size)
        if zeros is not None:
            lent.append(zeros)
            kept |= {name: zeros.address + offset for name, offset in scratch.zeros}
        base = 0
        if len(kept) < len(scratch.offsets):
            lend = memory.lasting if lasting else memory.passing
            lent.append(lend(library, owner, device, stream, scratch.size))
            base = lent[-1].address
        addresses = tuple([kept.get(name, base + offset) for name, offset in scratch.offsets])
        lock = next((each.lock for each in lent if each.lock is not None), None)
        return Placed(addresses, zeros is not None, bool(theirs), tuple(lent), lock)

    def run(
        self,
        library: Library,
        owner: Any,
        stream: int,
        pool: list[Any],
        theirs: Mapping[str, int] = NOTHING,
    ) -> None:
        """Launch a call on a stream. `pool`: filled up to its scratch memory; `theirs`: what of that the
        caller supplies. The rest is made beside the array `owner`."""
        placed = NOWHERE
        if self.scratch.size:
            placed = self.place_scratch(MEMORY, library, owner, stream, theirs)
            pool += placed.addresses
        launches = self.ready(pool, placed)
        if self.idle:
            self.clear(pool, stream)
        fire(launches, placed, self.device, stream)

    def clear(self, pool: list[Any], stream: int) -> None:
        """Set the results of an idle call to zero."""
        for place, size in self.cleared:
            arrays.clear(self.device, pool[place], size, stream)

    def ready(self, pool: list[Any], placed: Placed) -> list[Ready]:
        """The launches of a call whose pool is filled up to its constants, its memory checked."""
        for first, second, least, most, same, fault in self.supplied if placed.supplied else self.guards:
            if least < (distance := pool[second] - pool[first]) < most and distance != same:
                raise ValueError(fault)
        pool += self.constants
        return [
            (step.fire, step.pack(*step.take(pool)), step.memory(pool) if step.buffers else ())
            for step in self.steps
            if not (placed.cleared and step.launch.clears)
        ]


def fire(launches: list[Ready], placed: Placed, device: DeviceKey, stream: int) -> None:
    """Queue the launches of a call."""
    lock = placed.lock
    if lock is None:
        for run, packed, buffers in launches:
            run(packed, buffers, stream)
    else:
        with lock:
            try:
                for run, packed, buffers in launches:
                    run(packed, buffers, stream)
            except BaseException:
                # What has begun may have left words in zeros that no kernel clears any more.
                if placed.cleared:
                    zeros, *_ = placed.lent
                    arrays.clear(device, zeros.address, zeros.size, stream)
                raise


def taking(indices: Sequence[int]) -> Take:
    """What takes these items of a list, as a tuple however many there are."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda pool: tuple([pool[index] for index in indices])
