"""Device memory of our own, for results where the caller's arrays come from a library we know little of.

Also the adapter of `__cuda_array_interface__`, by which any library takes such an array and gives its own.
"""

from __future__ import annotations

from math import prod
from typing import Any

from normgen.arrays import dlpack
from normgen.arrays.views import (
    Adapter,
    ArrayView,
    Shape,
    in_elements,
    known_dtype,
    no_stream,
    packed,
    plain_stream,
    unsupported,
)
from normgen.devices.executors import context_of, device_holding
from normgen.dtypes import DTYPES
from normgen.launching.launch import DEFAULT_STREAM, LEGACY_STREAM, DeviceKey

_TYPE_STRINGS = {"<f8": "f64", "<f4": "f32", "<f2": "f16", "<V2": "bf16", "|V2": "bf16"}


class DeviceArray:
    """An array on a CUDA device, contiguous unless it is a `window`. `get()` copies it to NumPy."""

    def __init__(self, shape: Shape, dtype: str, device: DeviceKey) -> None:
        self.shape = shape
        self.strides = packed(shape)
        self.element = dtype
        self.device = device
        self.stream = DEFAULT_STREAM
        self._context = context_of(device)
        self._memory = self._context.allocate(prod(shape) * DTYPES[dtype].bytes)
        self._length = prod(shape)
        self.pointer = self._memory.pointer

    @classmethod
    def of(cls, array: Any, device: DeviceKey = ("cuda", 0)) -> DeviceArray:
        """A copy of a NumPy array."""
        import numpy as np

        made = cls(array.shape, known_dtype(array.dtype, "numpy"), device)
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
        size = DTYPES[self.element].bytes
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": tuple(step * size for step in self.strides),
            "stream": self.stream or LEGACY_STREAM,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_tuple(self.device[1])

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:
            consumer = plain_stream(LEGACY_STREAM if stream is None else stream)
            if consumer != self.stream:
                self._context.wait(consumer, self.stream)
        return dlpack.write(self.pointer, self.element, self.shape, self.strides, self.device[1], self)

    def get(self) -> Any:
        """A NumPy array with the contents, once everything before is done."""
        import numpy as np

        size = DTYPES[self.element].bytes
        whole = np.empty(self._length, self.dtype)
        self._context.synchronize()
        if whole.size:
            self._context.copy_out(whole.view(np.uint8), self._memory.pointer)
        if not prod(self.shape):
            return np.empty(self.shape, self.dtype)
        begin = self.pointer - self._memory.pointer
        steps = tuple(step * size for step in self.strides)
        # as_strided would write the element type as text, of which f8e5m2's is none that NumPy reads back
        return np.ndarray(self.shape, self.dtype, whole.view(np.uint8), begin, steps)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"


def _look_own(array: DeviceArray) -> ArrayView:
    return ArrayView(
        array.pointer, array.element, array.shape, array.strides, False, array.device, "device", array
    )


def _glance_own(array: DeviceArray) -> tuple[int, Any]:
    pointer = array.pointer
    return pointer, ("device", array.shape, array.strides, array.element, array.device, pointer & 15)


def _stream_own(array: DeviceArray, device: DeviceKey) -> int:
    return array.stream


def empty(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[DeviceArray, int]:
    """A new array of ours, and its address."""
    made = DeviceArray(shape, dtype, device)
    return made, made.pointer


def queued(result: Any, stream: int) -> Any:
    """A result; where it is of ours, with the stream noted that all work on it is queued on."""
    if isinstance(result, DeviceArray):
        result.stream = stream
    return result


def _look_interface(array: Any) -> ArrayView:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError("masked arrays are not supported")
    dtype = _element(array, interface["typestr"])
    shape = tuple(int(size) for size in interface["shape"])
    pointer, readonly = interface["data"]
    strides = interface.get("strides")
    stream = interface.get("stream")
    if stream == 0:
        raise TypeError("its __cuda_array_interface__ gives stream 0, which the protocol does not allow")
    return ArrayView(
        int(pointer or 0),
        dtype,
        shape,
        packed(shape) if strides is None else in_elements(tuple(strides), dtype),
        bool(readonly),
        device_holding(int(pointer or 0)),
        "cuda",
        array,
        None,
        None if stream is None else plain_stream(int(stream)),
    )


def _element(array: Any, typestr: str) -> str:
    """The element type: from `dtype` where there is a NumPy one, since type strings do not tell fp8 apart."""
    own = getattr(array, "dtype", None)
    if own is not None:
        try:
            return known_dtype(own, "numpy")
        except TypeError:
            if typestr not in _TYPE_STRINGS:
                raise
    if typestr not in _TYPE_STRINGS:
        if typestr.startswith(">"):
            known_dtype(typestr, "")  # of another machine's byte order
        raise unsupported(typestr.lstrip("<|="), "")
    return _TYPE_STRINGS[typestr]


OWN = Adapter("device", _look_own, empty, _stream_own, _glance_own, deliver=queued)
INTERFACE = Adapter("cuda", _look_interface, empty, no_stream, deliver=queued)
