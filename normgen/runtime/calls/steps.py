"""A launch made ready: compiled, with the places of its arguments known, so that running it is a matter
of filling in.

The addresses and numbers of a call lie in one list, its pool, whose layout the steps of the call share.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from normgen.devices.executors import Executor
from normgen.launching.launch import Buffer, Fire, Launch, Slot

Take = Callable[[Sequence[Any]], tuple[Any, ...]]


class Layout:
    """Where in the pool of a call everything lies, while its steps are made.

    `places` by name; the first `length` items are the call's, then come the `constants` of its launches.
    """

    def __init__(self, places: Mapping[str, int], length: int) -> None:
        self.places = places
        self.length = length
        self.constants: list[Any] = []

    def place(self, value: Any) -> int:
        """The place of an argument. An address that has none is null: an operand left out, a result not
        wanted."""
        if isinstance(value, Slot):
            if value.name in self.places:
                return self.places[value.name]
            assert value.kind == "pointer", value
            value = 0
        self.constants.append(value)
        return self.length + len(self.constants) - 1


@dataclass(frozen=True, slots=True)
class Step:
    """A launch with its function, and where its arguments come from.

    `take`: its arguments out of the pool. `buffers`: (place in the pool, first byte, bytes, bytes of an
    element, access) of the memory that the launch touches, where the executor wants to know.
    """

    fire: Fire
    pack: Callable[..., bytes]
    take: Take
    buffers: tuple[tuple[int, int, int, int, str], ...]


# What launches, its arguments, and the memory that they touch.
Ready = tuple[Fire, bytes, tuple[Buffer, ...]]


def launch(steps: Iterable[Step], pool: Sequence[Any], stream: int) -> None:
    """Run the steps in order."""
    for item in steps:
        buffers = _buffers(item, pool) if item.buffers else ()
        item.fire(item.pack(*item.take(pool)), buffers, stream)


def ready(steps: Iterable[Step], pool: Sequence[Any]) -> list[Ready]:
    """The steps with what they take from a pool, to be run again and again."""
    return [
        (item.fire, item.pack(*item.take(pool)), _buffers(item, pool) if item.buffers else ())
        for item in steps
    ]


def _buffers(item: Step, pool: Sequence[Any]) -> tuple[Buffer, ...]:
    return tuple(
        Buffer(pool[place] + first, size, itemsize, access)
        for place, first, size, itemsize, access in item.buffers
    )


def step(
    executor: Executor,
    item: Launch,
    layout: Layout,
    memory: Mapping[str, tuple[int, int, int]],
    added: Collection[str] = (),
) -> Step:
    """A launch, compiled. `memory`: (first byte, bytes, bytes of an element) by name; `added`: results
    added to."""
    both = [name for name in item.writes if name in item.reads or name in added]
    access = dict.fromkeys(item.reads, "read") | dict.fromkeys(item.writes, "write")
    access |= dict.fromkeys(both, "update")
    # Only the host looks at buffers; elsewhere there is nothing to be gained from telling them.
    told = access if executor.device.host else {}
    return Step(
        fire=executor.prepare(executor.function(item.source, item.entry, item.shared), item),
        pack=struct.Struct(item.format).pack,
        take=taking([layout.place(value) for value in item.values]),
        buffers=tuple(
            (layout.places[name], *memory[name], access[name])
            for name in told
            if name in memory and name in layout.places
        ),
    )


def taking(indices: Sequence[int]) -> Take:
    """What takes these items of a list, as a tuple however many there are."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda pool: tuple([pool[index] for index in indices])
