"""A call without its addresses, and how it runs once they are there.

All that its launches take lies in one list, the pool: the addresses of the operands and of the results that
the caller gives, the numbers, the addresses of the results made for it and of scratch memory, constants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from normgen import arrays
from normgen.arrays.views import Library
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import Shape
from normgen.runtime.calls.binding import Range, check_overlaps
from normgen.runtime.calls.steps import Ready, Step, Take, launch, ready

_NOTHING: Mapping[str, int] = MappingProxyType({})

# Two extents, one of them written: their places in the pool. They overlap where the second address is further
# from the first than the one distance and less far than the other; the last distance is allowed all the same.
Guard = tuple[int, int, int, int, int | None]


@dataclass(frozen=True, slots=True)
class Extent:
    """The memory of a tensor: first and one past the last byte, counted from the address at `place` in the
    pool. `text` is how messages call it."""

    name: str
    text: str
    written: bool
    place: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch arrays of a call: name and offset of each in an arena of `size` bytes. `workspace`: those
    of them that the caller may supply, with shape and dtype. `zeros`: those that are zeros between calls, and
    where in memory of `zero_size` bytes that always is, if there is such."""

    offsets: tuple[tuple[str, int], ...] = ()
    size: int = 0
    workspace: tuple[tuple[str, Shape, str], ...] = ()
    zeros: tuple[tuple[str, int], ...] = ()
    zero_size: int = 0

    def addresses(self, base: int, theirs: Mapping[str, int] = _NOTHING) -> list[int]:
        """Where each is: in an arena at `base`, or where the caller says."""
        return [theirs.get(name, base + offset) for name, offset in self.offsets]

    def in_zeros(self, base: int) -> dict[str, int]:
        """Where those are that are zeros between calls, in memory at `base` which is; none at address 0."""
        return {name: base + offset for name, offset in self.zeros} if base else {}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call without its addresses.

    The pool begins with `operands`, `given` results and `numbers`, by name; then come the results that are
    `made`, by shape and dtype, and scratch memory. `fields`: every result of the direction in order, out of
    the given, the made and a None. `guards`: what must not overlap; `workspace_guards`: the same where
    scratch memory is the caller's. `repeated`: the steps where scratch memory that they clear is kept clear.
    An `idle` call launches nothing: `cleared` are (place in the pool, bytes) that it sets to zero.
    """

    device: DeviceKey
    operands: tuple[str, ...]
    given: tuple[str, ...]
    numbers: tuple[str, ...]
    made: tuple[tuple[Shape, str], ...]
    fields: Take
    scratch: Scratch
    extents: tuple[Extent, ...]
    in_place: frozenset[tuple[str, str]]
    guards: tuple[Guard, ...]
    workspace_guards: tuple[Guard, ...]
    idle: bool
    cleared: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    repeated: tuple[Step, ...]
    constants: tuple[Any, ...]

    def make(self, adapter: Library, owner: Any) -> tuple[list[Any], list[int]]:
        """The results that the caller did not give, of the library of the array `owner`; their addresses."""
        made, addresses = [], []
        for shape, dtype in self.made:
            array, address = adapter.empty(owner, self.device, shape, dtype)
            made.append(array)
            addresses.append(address)
        return made, addresses

    def suits(self, addresses: list[int]) -> bool:
        """Whether results at these addresses are aligned as the launches count on."""
        return self.idle or not any(address & 15 for address in addresses)

    def results(self, given: list[Any], made: list[Any], adapter: Library, stream: int) -> tuple[Any, ...]:
        """Every result of the direction in order, as the caller is to get them."""
        if adapter.deliver is not None:
            made = [adapter.deliver(result, stream) for result in made]
        return self.fields([*given, *made, None])

    def placed(
        self, theirs: Mapping[str, int], zeros: Callable[[int], int], arena: Callable[[int], int]
    ) -> tuple[list[int], tuple[Step, ...]]:
        """The addresses of scratch arrays, and the steps to take with them. `theirs`: of those that the
        caller supplies; `zeros` and `arena` give so many bytes of memory that is zeros between calls (0 where
        there is none), and of any."""
        scratch, kept = self.scratch, theirs
        if scratch.zeros and not theirs:
            kept = scratch.in_zeros(zeros(scratch.zero_size))
        base = arena(scratch.size) if len(kept) < len(scratch.offsets) else 0
        return scratch.addresses(base, kept), self.repeated if kept and not theirs else self.steps

    def run(self, pool: list[Any], stream: int, guards: tuple[Guard, ...], steps: tuple[Step, ...]) -> None:
        """Check the memory of a call whose pool is filled up to its constants, and launch."""
        self._check(pool, guards)
        if self.idle:
            for place, size in self.cleared:
                arrays.clear(self.device, pool[place], size, stream)
            return
        pool += self.constants
        launch(steps, pool, stream)

    def ready(self, pool: list[Any], guards: tuple[Guard, ...], steps: tuple[Step, ...]) -> list[Ready]:
        """The launches of such a call, its memory checked. Not of an idle one."""
        self._check(pool, guards)
        return ready(steps, [*pool, *self.constants])

    def _check(self, pool: list[Any], guards: tuple[Guard, ...]) -> None:
        for first, second, least, most, same in guards:
            if least < (distance := pool[second] - pool[first]) < most and distance != same:
                self._refuse(pool)

    def _refuse(self, pool: list[Any]) -> NoReturn:
        """Say which memory overlaps."""
        ranges: dict[bool, list[Range]] = {True: [], False: []}
        for extent in self.extents:
            start = pool[extent.place]
            ranges[extent.written].append((extent.name, extent.text, start + extent.low, start + extent.high))
        check_overlaps(ranges[True], ranges[False], self.in_place)
        raise AssertionError(f"the guards of a call refuse what its ranges allow: {self.extents} {pool}")


def guards(extents: Sequence[Extent], in_place: Collection[tuple[str, str]]) -> tuple[Guard, ...]:
    """Every pair of extents of which one is written."""
    seen = [extent for extent in extents if not extent.written]
    found: list[Guard] = []
    for extent in extents:
        if extent.written:
            for other in seen:
                alike = extent.high - extent.low == other.high - other.low
                same = extent.low - other.low if alike and (extent.name, other.name) in in_place else None
                distances = (extent.low - other.high, extent.high - other.low)
                found.append((extent.place, other.place, *distances, same))
            seen.append(extent)
    return tuple(found)
