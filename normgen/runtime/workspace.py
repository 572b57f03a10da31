"""Scratch memory: one arena for each thread, device and stream, reused by every call there.

Launches of one stream run in order, so a call may reuse what the call before it used; another stream
may not, and neither may another thread, whose launches could come in between those of one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

GRANULE = 256


class Arenas:
    """Memory by (device, stream), apart for each thread. An arena only grows; outgrown memory is kept,
    because launches that are still queued may use it."""

    def __init__(self) -> None:
        self._local = threading.local()

    def address(self, key: tuple[Any, ...], size: int, allocate: Callable[[int], tuple[int, object]]) -> int:
        """The address of at least `size` bytes, aligned to 256; `allocate(size)` gives (address, owner)."""
        arenas: dict[tuple[Any, ...], tuple[int, int, list[object]]] | None = getattr(
            self._local, "arenas", None
        )
        if arenas is None:
            arenas = self._local.arenas = {}
        known = arenas.get(key)
        if known is None or known[1] < size:
            owners = known[2] if known is not None else []
            room = max(size, 2 * known[1]) if known is not None else size
            pointer, owner = allocate(room + GRANULE)
            owners.append(owner)
            known = arenas[key] = (align(pointer), room, owners)
        return known[0]


def align(size: int) -> int:
    """The next multiple of 256."""
    return -(-size // GRANULE) * GRANULE
