"""Values as NumPy arrays: a dimension for each axis of a program, whatever order a tensor has them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # a NumPy array of any shape; NumPy's own annotations say no more than this


@dataclass(frozen=True, slots=True)
class Space:
    """Where values live: one array dimension an axis, in this order, behind one batch dimension.

    A value that does not vary over an axis has extent 1 there.
    """

    axes: tuple[str, ...]
    extents: Mapping[str, int]
    dtype: Any = np.float64

    def dimension(self, axis: str) -> int:
        return 1 + self.axes.index(axis)

    def spread(self, value: Array, axes: Iterable[str]) -> Array:
        """The value with these axes at full extent."""
        shape = list(value.shape)
        for axis in axes:
            shape[self.dimension(axis)] = self.extents[axis]
        return np.broadcast_to(value, shape)

    def align(self, array: Array, order: Sequence[str]) -> Array:
        """An array indexed by `order`, behind an optional batch dimension, as a value."""
        array = np.asarray(array, dtype=self.dtype)
        if array.ndim == len(order):
            array = array[None]
        kept = [axis for axis in self.axes if axis in order]
        array = array.transpose(0, *(1 + order.index(axis) for axis in kept))
        sizes = iter(array.shape[1:])
        return array.reshape(array.shape[0], *(next(sizes) if axis in order else 1 for axis in self.axes))

    def extract(self, value: Array, order: Sequence[str]) -> Array:
        """A value as an array indexed by the batch dimension and `order`."""
        value = self.spread(value, order)
        others = tuple(self.dimension(axis) for axis in self.axes if axis not in order)
        value = value.squeeze(others) if others else value
        kept = [axis for axis in self.axes if axis in order]
        return value.transpose(0, *(1 + kept.index(axis) for axis in order))

    def number(self, value: float) -> Array:
        """A value that varies over no axis."""
        return np.full([1] * (1 + len(self.axes)), value, dtype=self.dtype)

    def neighbours(self, value: Array, window: Iterable[tuple[str, int, int]]) -> Array:
        """The sum over i + low .. i + high along each axis; what lies outside adds nothing."""
        for axis, low, high in window:
            source = np.moveaxis(self.spread(value, (axis,)), self.dimension(axis), 0)
            size = len(source)
            total = np.zeros_like(source)
            for offset in range(max(low, 1 - size), min(high, size - 1) + 1):
                first, last = max(0, -offset), min(size, size - offset)
                total[first:last] += source[first + offset : last + offset]
            value = np.moveaxis(total, 0, self.dimension(axis))
        return value
