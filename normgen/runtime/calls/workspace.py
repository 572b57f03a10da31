"""Scratch memory: one arena for each thread, device and stream, reused by every call there, and one that is
zeros between calls.

Launches of one stream run in order, so a call may reuse what the call before it used; another stream
may not, and neither may another thread, whose launches could come in between those of one call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from normgen import arrays
from normgen.arrays.views import Library, View
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import Shape, is_contiguous

GRANULE = 256


class _Arena(NamedTuple):
    """Memory, and what keeps it and what it outgrew."""

    address: int
    size: int
    owners: tuple[object, ...]


class Memory:
    """Arenas by device and stream. An arena only grows; outgrown memory is kept, because launches that are
    still queued may use it."""

    def __init__(self, spare: bool = False) -> None:
        """`spare`: have zeros ready for a stream that is not known yet, since a stream that a graph is
        captured on is mostly seen then for the first time."""
        self._spare = spare
        self._arenas: dict[tuple[Any, ...], _Arena] = {}

    def any(self, library: Library, owner: Any, device: DeviceKey, stream: int, size: int) -> int:
        """The address of at least `size` bytes, aligned to 256, by the library of the array `owner`."""
        known = self._arenas.get((device, stream))
        if known is None or known.size < size:
            room = max(size, 2 * known.size) if known is not None else size
            pointer, kept = arrays.scratch(library, owner, device, room + GRANULE)
            owners = (*known.owners, kept) if known is not None else (kept,)
            known = self._arenas[device, stream] = _Arena(align(pointer), room, owners)
        return known.address

    def zeros(self, library: Library, owner: Any, device: DeviceKey, stream: int, size: int) -> int:
        """The same, of memory that is zeros whenever no call runs there. 0 where there is none, and none can
        be had now: a graph is being captured."""
        key, spare = (device, stream, "zeros"), (device, "spare")
        known = self._arenas.get(key)
        if known is not None and known.size >= size:
            return known.address

        def cleared() -> _Arena | None:
            made = arrays.zero_scratch(library, owner, device, size + GRANULE, stream)
            return made and _Arena(align(made[0]), size, (made[1],))

        found = self._arenas.pop(spare, None)
        if found is None or found.size < size:
            found = cleared()
        if found is None:
            return 0
        owners = (*known.owners, *found.owners) if known is not None else found.owners
        self._arenas[key] = found._replace(owners=owners)
        further = cleared() if self._spare else None
        if further is not None:
            self._arenas[spare] = further
        return found.address


class ThreadMemory(threading.local, Memory):
    """The same, apart for each thread."""


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
            raise ValueError(f"workspace needs {name!r}: {dtype} of shape {shape}")
        view = arrays.view(given[name], f"workspace[{name!r}]")
        if view.dtype != dtype or view.shape != shape or not is_contiguous(view.shape, view.strides):
            raise ValueError(f"workspace[{name!r}] must be contiguous {dtype} of shape {shape}")
        if view.device != like.device or view.readonly or view.pointer % 16:
            raise ValueError(
                f"workspace[{name!r}] must be writable, on the arrays' device and aligned to 16 bytes"
            )
        found[name] = view.pointer
    for name in given:
        if name not in found:
            raise ValueError(f"workspace: there is no {name!r}; this call uses {', '.join(found) or 'none'}")
    return found
