"""PyCUDA's arrays."""

from __future__ import annotations

from typing import Any

from normgen.arrays.views import Library, View, in_elements, is_a, known_dtype
from normgen.devices.executors import context_of, current_context, current_device
from normgen.dtypes import DTYPES
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import Shape


class PyCuda(Library):
    """GPUArrays. They lie in the context that is current, or else in the primary one of their device."""

    name = "pycuda"
    place = staticmethod(current_context)

    def knows(self, array: Any) -> bool:
        return is_a(array, "pycuda.gpuarray", "GPUArray")

    def look(self, array: Any) -> View:
        dtype = known_dtype(array.dtype, self)
        pointer = _pointer(array)
        where = current_device(pointer)
        strides = in_elements(array.strides, dtype)
        return View(pointer, dtype, tuple(array.shape), strides, False, where, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        memory = array.gpudata
        pointer = int(memory) if memory is not None else 0
        return pointer, ("pycuda", array.shape, array.strides, array.dtype, pointer & 15)

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        with context_of(device):
            made = type(like)(shape, DTYPES[dtype].numpy, allocator=like.allocator)
        return made, _pointer(made)


def _pointer(array: Any) -> int:
    # An array without elements has no memory.
    return int(array.gpudata) if array.gpudata is not None else 0
