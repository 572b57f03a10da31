"""Arrays as a case lays them out: any element offset, rows at any pitch, on the host or on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DTYPES, round_to

Shape = tuple[int, ...]

# How far apart rows of the last dimension lie, and what is around them, in elements.
PACKED, PADDED, ROUNDED, ODD_ROWS, ODD_OUTER = PITCHES = ("", "padded", "rounded", "odd rows", "odd outer")
_ROUNDED_TO = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of an array lie in a flat buffer, counted in elements."""

    shape: Shape
    strides: Shape
    offset: int

    @property
    def length(self) -> int:
        """Elements that the buffer must have; one more, so that nothing ends where memory does."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + (last if prod(self.shape) else 0) + 2


def layout(shape: Shape, offset: int = 0, pitch: str = PACKED) -> Layout:
    """Rows of the last dimension one after the other: packed, `PADDED` by one element each, or with strides
    that are `ROUNDED` up. Of the other two, one stride alone is odd and the others are rounded up: that from
    row to row, or that of the outermost dimension."""
    odd = {ODD_ROWS: len(shape) - 2, ODD_OUTER: 0}.get(pitch)
    strides = [1] * len(shape)
    for at in range(len(shape) - 2, -1, -1):
        step = strides[at + 1] * max(shape[at + 1], 1)
        if pitch == PADDED:
            step += at == len(shape) - 2
        elif pitch:
            step = step | 1 if at == odd else -(-step // _ROUNDED_TO) * _ROUNDED_TO
        strides[at] = step
    return Layout(shape, tuple(strides), offset)


@dataclass(frozen=True, slots=True)
class Memory:
    """How to make arrays of one kind: `upload` a flat NumPy buffer as a view with a layout, `fetch` it
    back."""

    name: str
    upload: Callable[[NDArray[Any], Layout], Any]
    fetch: Callable[[Any], NDArray[Any]]

    def place(self, values: NDArray[Any], dtype: str, shape: Shape, offset: int, pitch: str) -> Any:
        """An array that holds `values`, rounded to `dtype`. What lies between its elements is NaN."""
        where = layout(shape, offset, pitch)
        buffer = _blank(where.length, dtype)
        _view(buffer, where)[...] = np.asarray(round_to(values, dtype)).reshape(shape)
        return self.upload(buffer, where)

    def blank(self, dtype: str, shape: Shape, offset: int) -> Any:
        """An array of NaN, to be written."""
        where = layout(shape, offset)
        return self.upload(_blank(where.length, dtype), where)


def _blank(length: int, dtype: str) -> NDArray[Any]:
    return np.full(length, np.nan).astype(DTYPES[dtype].numpy)


def _view(buffer: NDArray[Any], where: Layout) -> NDArray[Any]:
    if prod(where.shape) == 0:
        return np.empty(where.shape, buffer.dtype)
    steps = tuple(s * buffer.itemsize for s in where.strides)
    # Not as_strided: it writes the element type as text, of which f8e5m2's is none that NumPy reads back.
    raw, start = buffer.view(np.uint8), where.offset * buffer.itemsize
    view: NDArray[Any] = np.ndarray(where.shape, buffer.dtype, raw, start, steps)
    return view


HOST = Memory("host", _view, np.asarray)


def cuda() -> Memory:
    """Arrays of our own on the first CUDA device."""
    from normgen.arrays.device_array import DeviceArray

    def upload(buffer: NDArray[Any], where: Layout) -> DeviceArray:
        return DeviceArray.of(buffer).window(where.offset, where.shape, where.strides)

    return Memory("cuda", upload, lambda array: np.asarray(array.get()))
