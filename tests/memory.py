"""Arrays of NumPy that lie where a test wants them."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def sparse(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array of zeros of any size, which takes no memory until it is touched."""
    kind = np.dtype(dtype)
    without_reserve = 0x4000  # MAP_NORESERVE, which the module lacks in older Pythons
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | without_reserve
    memory = mmap.mmap(-1, int(np.prod(shape)) * kind.itemsize, flags=flags)
    return np.frombuffer(memory, kind).reshape(shape)


def at_offset(offset: int, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """An array, not yet written, that starts so many bytes behind a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.zeros(size + 128, np.uint8)
    start = -whole.ctypes.data % 64 + offset
    return whole[start : start + size].view(dtype).reshape(shape)
