"""A launch made ready: compiled, with the places of its arguments known, so that running it is a matter
of filling in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from normgen.runtime.executors import Executor
from normgen.runtime.launches import Buffer, Launch, Slot


@dataclass(frozen=True, slots=True)
class Step:
    """A launch with its function, and where its arguments come from.

    `addresses` and `numbers`: (position among the arguments, name). `buffers`: (name, first byte,
    bytes, bytes of an element, access) of the memory that the launch touches.
    """

    function: Any
    launch: Launch
    pack: Callable[..., bytes]
    addresses: tuple[tuple[int, str], ...]
    numbers: tuple[tuple[int, str], ...]
    buffers: tuple[tuple[str, int, int, int, str], ...]


def launch(
    executor: Executor,
    steps: Iterable[Step],
    addresses: Mapping[str, int],
    numbers: Mapping[str, float | int],
    stream: int,
) -> None:
    """Run the steps in order. An address that nothing has is null: an operand left out, a result not
    wanted."""
    for item in steps:
        values: list[Any] = list(item.launch.values)
        for position, name in item.addresses:
            values[position] = addresses.get(name, 0)
        for position, name in item.numbers:
            values[position] = numbers[name]
        buffers = tuple(
            [
                Buffer(addresses[name] + first, size, itemsize, access)
                for name, first, size, itemsize, access in item.buffers
                if name in addresses
            ]
        )
        executor.launch(item.function, item.launch, item.pack(*values), buffers, stream)


def step(
    executor: Executor,
    item: Launch,
    memory: Mapping[str, tuple[int, int, int]],
    added: Collection[str] = (),
) -> Step:
    """A launch, compiled. `memory`: (first byte, bytes, bytes of an element) by name; `added`: results
    added to."""
    slots = [(i, value) for i, value in enumerate(item.values) if isinstance(value, Slot)]
    both = [name for name in item.writes if name in item.reads or name in added]
    access = dict.fromkeys(item.reads, "read") | dict.fromkeys(item.writes, "write")
    access |= dict.fromkeys(both, "update")
    # Only the host looks at buffers; elsewhere there is nothing to be gained from telling them.
    told = access if executor.device.arch == "host" else {}
    return Step(
        function=executor.function(item.source, item.entry, item.shared),
        launch=item,
        pack=struct.Struct(item.format).pack,
        addresses=tuple((i, slot.name) for i, slot in slots if slot.kind == "pointer"),
        numbers=tuple((i, slot.name) for i, slot in slots if slot.kind == "scalar"),
        buffers=tuple((name, *memory[name], access[name]) for name in told if name in memory),
    )
