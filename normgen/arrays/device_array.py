"""Device memory of our own, for results where the library of the caller's arrays makes none for us."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from normgen.arrays import capsule
from normgen.arrays.numpy import NUMPY
from normgen.arrays.views import Library, View, known_dtype, packed, plain_stream
from normgen.devices.executors import context_of
from normgen.dtypes import DTYPES
from normgen.launching.launch import DEFAULT_STREAM, HOST, LEGACY_STREAM, DeviceKey
from normgen.launching.layout import Shape


class DeviceArray:
    """An array on a CUDA device, contiguous unless it is a `window`. `get()` copies it to NumPy. Any library
    takes it through DLPack or the CUDA array interface."""

    def __init__(self, shape: Shape, dtype: str, device: DeviceKey) -> None:
        self.shape = shape
        self.strides = packed(shape)  # in elements
        self.element = dtype
        self.device = device
        self.stream = DEFAULT_STREAM  # where all work on it is queued
        self._context = context_of(device)
        self._length = prod(shape)
        self._memory = self._context.allocate(self._length * DTYPES[dtype].bytes)
        self.pointer = self._memory.pointer

    @classmethod
    def of(cls, array: Any, device: DeviceKey = ("cuda", 0)) -> DeviceArray:
        """A copy of a NumPy array."""
        made = cls(array.shape, known_dtype(array.dtype, NUMPY), device)
        if array.size:
            made._context.copy_in(made.pointer, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return made

    def window(self, offset: int, shape: Shape, strides: Shape) -> DeviceArray:
        """A view of the same memory that starts `offset` elements in, with strides in elements."""
        view = object.__new__(DeviceArray)
        view.__dict__.update(self.__dict__)
        view.shape, view.strides = shape, strides
        view.pointer = self.pointer + offset * DTYPES[self.element].bytes
        return view

    @property
    def dtype(self) -> Any:
        return DTYPES[self.element].numpy

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPES[self.element].bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self._steps,
            "stream": self.stream or LEGACY_STREAM,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (capsule.CUDA, self.device[1])

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:
            consumer = plain_stream(LEGACY_STREAM if stream is None else stream)
            if consumer != self.stream:
                self._context.wait(consumer, self.stream)
        return capsule.write(self.pointer, self.element, self.shape, self.strides, self.device[1], self)

    def get(self) -> Any:
        """A NumPy array with the contents, once everything before is done."""
        whole = np.empty(self._length, self.dtype).view(np.uint8)
        self._context.synchronize()
        if whole.size:
            self._context.copy_out(whole, self._memory.pointer)
        if not prod(self.shape):
            return np.empty(self.shape, self.dtype)
        # as_strided would write the element type as text, of which f8e5m2's is none that NumPy reads back
        return np.ndarray(self.shape, self.dtype, whole, self.pointer - self._memory.pointer, self._steps)

    @property
    def _steps(self) -> Shape:
        # Strides in bytes.
        return tuple(step * DTYPES[self.element].bytes for step in self.strides)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


class Foreign(Library):
    """A library whose arrays we only read: results are arrays of our own, or NumPy's on the host."""

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        if device == HOST:
            return NUMPY.empty(like, device, shape, dtype)
        made = DeviceArray(shape, dtype, device)
        return made, made.pointer

    def deliver(self, result: Any, stream: int) -> Any:
        if isinstance(result, DeviceArray):
            result.stream = stream
        return result


class Own(Foreign):
    """Our own arrays."""

    name = "device"

    def knows(self, array: Any) -> bool:
        return isinstance(array, DeviceArray)

    def look(self, array: DeviceArray) -> View:
        return View(
            array.pointer, array.element, array.shape, array.strides, False, array.device, self, array
        )

    def glance(self, array: DeviceArray) -> tuple[Any, Any]:
        pointer = array.pointer
        return pointer, ("device", array.shape, array.strides, array.element, array.device, pointer & 15)

    def stream(self, array: DeviceArray, device: DeviceKey) -> int:
        return array.stream


OWN = Own()
