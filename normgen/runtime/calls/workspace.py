"""Scratch memory: whose it is, and how long it lives. Whoever knows an address of it holds its owner.

Where memory that is let go is given out again in the order of a stream, as on the host and by PyTorch, each
call has memory of its own; while a graph is made, that is of the graph's pool. Other calls of a stream share
an arena. Kernels that need zeros and leave zeros have an arena of zeros per stream, and none within a graph,
which clears its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from normgen import arrays
from normgen.arrays.views import Library, View
from normgen.devices.executors import context_of, keeps_calls
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Shape, is_contiguous
from normgen.locks import new_lock

GRANULE = 256


class Lent(NamedTuple):
    """Memory that is there for as long as this is held."""

    address: int  # a multiple of 256
    size: int
    owner: object
    # Where calls share the memory: held while launches of one call are queued, so that none come in between.
    lock: threading.Lock | None = None


class Memory:
    """Arenas by device and stream. An arena only grows; outgrown memory is kept, because launches that are
    still queued may use it."""

    def __init__(self) -> None:
        self._guard = new_lock()
        self._arenas: dict[tuple[Any, ...], Lent] = {}
        self._of_graphs: list[Lent] = []
        keeps_calls(self)

    def forget(self) -> None:
        """Let go of memory in contexts of another driver."""
        with self._guard:
            self._arenas.clear()

    def passing(self, library: Library, owner: Any, device: DeviceKey, stream: int, size: int) -> Lent:
        """Memory for the launches of one call, by the library of the array `owner`."""
        if device == HOST or (library.in_order and stream == library.stream(owner, device)):
            return _made(library, owner, device, size)
        return self.lasting(library, owner, device, stream, size)

    def lasting(self, library: Library, owner: Any, device: DeviceKey, stream: int, size: int) -> Lent:
        """Memory for all calls on a stream; while a graph is made, for this one, by the library."""
        name = _name_of(device, stream)
        if name is not None:
            own = device in (HOST, _primary(device))
            make = partial(_block, device) if own else partial(_made, library, owner, device)
            return self._arena((device, name), size, make)
        made = _made(library, owner, device, size)
        self._of_graphs.append(made)  # replays write there
        return made

    def zeros(self, device: DeviceKey, stream: int, size: int) -> Lent | None:
        """Memory that is zeros whenever no kernel of the stream runs. None while a graph is made: its kernels
        run beside those of the stream; and in a context of the caller's, which may end before the process."""
        name = _name_of(device, stream)
        if name is None or device not in (HOST, _primary(device)):
            return None

        def make(room: int) -> Lent:
            made = _block(device, room)
            arrays.clear(device, made.address, room, stream)
            if device != HOST:
                context_of(device).finish(stream)
            return made

        return self._arena((device, name, "zeros"), size, make)

    def _arena(self, key: tuple[Any, ...], size: int, make: Callable[[int], Lent]) -> Lent:
        """An arena of at least so many bytes."""
        with self._guard:
            known = self._arenas.get(key)
            if known is not None and known.size >= size:
                return known
            room = size if known is None else max(size, 2 * known.size)
            made = make(room)
            lock = new_lock() if known is None else known.lock
            self._arenas[key] = made._replace(owner=(made.owner, known), lock=lock)
            return self._arenas[key]


MEMORY = Memory()  # of the process


def _name_of(device: DeviceKey, stream: int) -> int | None:
    """A number that no other stream gets, as a handle may; None while a graph is made."""
    return 0 if device == HOST else context_of(device).name_of(stream)


def _primary(device: DeviceKey) -> DeviceKey:
    """The key of a device's primary context. Other contexts live as long as arrays of their library."""
    return ("cuda", device[1])


def _block(device: DeviceKey, size: int) -> Lent:
    """Memory of our own."""
    if device == HOST:
        array = np.empty(size + GRANULE, np.uint8)
        return Lent(align(array.__array_interface__["data"][0]), size, array)
    memory = context_of(device).allocate(size + GRANULE)
    return Lent(align(memory.pointer), size, memory)


def _made(library: Library, owner: Any, device: DeviceKey, size: int) -> Lent:
    array, address = library.empty(owner, device, (-(-(size + GRANULE) // 4),), "f32")
    return Lent(align(address), size, array)


def align(size: int) -> int:
    """The next multiple of 256."""
    return -(-size // GRANULE) * GRANULE


def supplied(
    needed: tuple[tuple[str, Shape, str], ...], given: Mapping[str, object], like: View
) -> dict[str, int]:
    """The addresses of a caller's scratch arrays, after checking that they are what `workspace` told."""
    found: dict[str, int] = {}
    for name, shape, dtype in needed:
        if name not in given:
            raise ValueError(
                f"workspace is missing {name!r}: pass a contiguous {dtype} array of shape {shape}"
            )
        view = arrays.view(given[name], f"workspace[{name!r}]", written=True)
        if view.dtype != dtype or view.shape != shape or not is_contiguous(view.shape, view.strides):
            raise ValueError(f"workspace[{name!r}] must be a contiguous {dtype} array of shape {shape}")
        if view.device != like.device or view.readonly or view.pointer % 16:
            raise ValueError(
                f"workspace[{name!r}] must be writable, on the arrays' device and aligned to 16 bytes"
            )
        found[name] = view.pointer
    for name in given:
        if name not in found:
            raise ValueError(f"workspace: there is no {name!r}; this call uses {', '.join(found) or 'none'}")
    return found
