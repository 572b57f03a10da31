"""Scratch memory: one arena for each thread, device and stream, reused by every call there, and one that is
zeros between calls.

Launches of one stream run in order, so a call may reuse what the call before it used; another stream
may not, and neither may another thread, whose launches could come in between those of one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from normgen import arrays
from normgen.arrays.views import View
from normgen.launching.layout import Shape, is_contiguous
from normgen.launching.machine import Machine

GRANULE = 256


class Arenas:
    """Memory by (device, stream), apart for each thread. An arena only grows; outgrown memory is kept,
    because launches that are still queued may use it."""

    def __init__(self) -> None:
        self._local = threading.local()

    def address(self, key: tuple[Any, ...], size: int, allocate: Callable[[int], tuple[int, object]]) -> int:
        """The address of at least `size` bytes, aligned to 256; `allocate(size)` gives (address, owner)."""
        arenas = self._own()
        known = arenas.get(key)
        if known is None or known.size < size:
            room = max(size, 2 * known.size) if known is not None else size
            pointer, owner = allocate(room + GRANULE)
            owners = (*known.owners, owner) if known is not None else (owner,)
            known = arenas[key] = _Arena(align(pointer), room, owners)
        return known.address

    def zeros(
        self, device: object, stream: int, size: int, allocate: Callable[[int], tuple[int, object] | None]
    ) -> int:
        """The same, of memory that is zeros whenever no call runs there. 0 where there is none and `allocate`
        gives none now. One is always ready for a stream that is not known yet, since a stream that a graph is
        captured on is mostly seen then for the first time."""
        arenas = self._own()
        key, spare = (device, stream, "zeros"), (device, "spare")
        known = arenas.get(key)
        if known is None or known.size < size:
            found = arenas.pop(spare, None)
            if found is None or found.size < size:
                found = _zeros(size, allocate)
            if found is None:
                return 0
            owners = (*known.owners, *found.owners) if known is not None else found.owners
            known = arenas[key] = found._replace(owners=owners)
            further = _zeros(size, allocate)
            if further is not None:
                arenas[spare] = further
        return known.address

    def _own(self) -> dict[tuple[Any, ...], _Arena]:
        arenas: dict[tuple[Any, ...], _Arena] | None = getattr(self._local, "arenas", None)
        if arenas is None:
            arenas = self._local.arenas = {}
        return arenas


class _Arena(NamedTuple):
    """Memory, and what keeps it and what it outgrew."""

    address: int
    size: int
    owners: tuple[object, ...]


def _zeros(size: int, allocate: Callable[[int], tuple[int, object] | None]) -> _Arena | None:
    made = allocate(size + GRANULE)
    return made and _Arena(align(made[0]), size, (made[1],))


def align(size: int) -> int:
    """The next multiple of 256."""
    return -(-size // GRANULE) * GRANULE


def with_multiprocessors(device: Machine, sm_count: int | None) -> Machine:
    """The device with so many multiprocessors to plan for; with its own where that is None."""
    if sm_count is None:
        return device
    if isinstance(sm_count, bool) or not isinstance(sm_count, int):
        raise TypeError(f"sm_count must be an int but is a {type(sm_count).__name__}")
    if sm_count < 1:
        raise ValueError(f"sm_count must be positive but is {sm_count}")
    return replace(device, multiprocessors=sm_count)


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
