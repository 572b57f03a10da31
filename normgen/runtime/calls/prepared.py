"""A call without its addresses: all that is left to do is to fill them in and launch.

What the launches take lies in one list, the pool: the addresses of the operands and of the results that the
caller gives, the numbers, the addresses of the results made for it and of scratch memory, constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from normgen import arrays
from normgen.arrays.views import Library
from normgen.launching.launch import Buffer, DeviceKey, Fire, Launch
from normgen.launching.layout import Shape
from normgen.runtime.calls.workspace import Memory

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

    def memory(self, pool: Sequence[Any]) -> tuple[Buffer, ...]:
        """The memory that the launch touches."""
        return tuple(
            Buffer(pool[place] + first, size, itemsize, access)
            for place, first, size, itemsize, access in self.buffers
        )


class Variant(NamedTuple):
    """A way to run a call: its steps, and what must not overlap before they do."""

    steps: tuple[Step, ...]
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch arrays of a call: names and offsets."""

    offsets: tuple[tuple[str, int], ...] = ()  # in an arena
    size: int = 0  # bytes of the arena
    workspace: tuple[tuple[str, Shape, str], ...] = ()  # those that the caller may supply, with dtype
    zeros: tuple[tuple[str, int], ...] = ()  # those that are zeros between calls, in memory that always is
    zero_size: int = 0  # bytes of that memory


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
    usual: Variant
    repeated: Variant  # the same where scratch memory that it clears is kept clear
    supplied: Variant  # the same where scratch memory is the caller's
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

    def suits(self, addresses: list[int]) -> bool:
        """Whether results at these addresses are aligned as the launches count on."""
        return self.idle or not any(address & 15 for address in addresses)

    def results(self, given: list[Any], made: list[Any], library: Library, stream: int) -> tuple[Any, ...]:
        """Every result of the direction in order, as the caller is to get them."""
        if library.deliver is not None:
            made = [library.deliver(result, stream) for result in made]
        return self.fields([*given, *made, None])

    def place_scratch(
        self, memory: Memory, library: Library, owner: Any, stream: int, theirs: Mapping[str, int]
    ) -> tuple[list[int], Variant]:
        """The addresses of the scratch arrays, and what to run with them. `theirs`: of those that the caller
        supplies; the others lie in `memory`, made by the library of the array `owner`."""
        scratch, device = self.scratch, self.device
        kept, variant = theirs, self.supplied if theirs else self.usual
        if scratch.zeros and not theirs:
            base = memory.zeros(library, owner, device, stream, scratch.zero_size)
            if base:
                kept = {name: base + offset for name, offset in scratch.zeros}
                variant = self.repeated
        base = 0
        if len(kept) < len(scratch.offsets):
            base = memory.any(library, owner, device, stream, scratch.size)
        return [kept.get(name, base + offset) for name, offset in scratch.offsets], variant

    def clear(self, pool: list[Any], stream: int) -> None:
        """Set the results of an idle call to zero."""
        for place, size in self.cleared:
            arrays.clear(self.device, pool[place], size, stream)

    def ready(self, pool: list[Any], variant: Variant) -> list[Ready]:
        """The launches of a call whose pool is filled up to its constants, its memory checked."""
        for first, second, least, most, same, fault in variant.guards:
            if least < (distance := pool[second] - pool[first]) < most and distance != same:
                raise ValueError(fault)
        pool += self.constants
        launches = []
        for step in variant.steps:
            memory = step.memory(pool) if step.buffers else ()
            launches.append((step.fire, step.pack(*step.take(pool)), memory))
        return launches


def taking(indices: Sequence[int]) -> Take:
    """What takes these items of a list, as a tuple however many there are."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda pool: tuple([pool[index] for index in indices])
