"""CuPy's arrays."""

from __future__ import annotations

import sys
from typing import Any

from normgen.arrays.device_array import OWN
from normgen.arrays.views import Library, View, in_elements, is_a, known_dtype, plain_stream
from normgen.dtypes import DTYPES
from normgen.launching.launch import DeviceKey
from normgen.launching.layout import Shape


class Cupy(Library):
    """Arrays on CUDA devices. Results of element types that CuPy does not have are normgen's arrays."""

    name = "cupy"
    deliver = OWN.deliver

    def knows(self, array: Any) -> bool:
        return is_a(array, "cupy", "ndarray")

    def look(self, array: Any) -> View:
        dtype = known_dtype(array.dtype, self)
        strides = in_elements(array.strides, dtype)
        where = ("cuda", int(array.device.id))
        return View(array.data.ptr, dtype, tuple(array.shape), strides, False, where, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        pointer = array.data.ptr
        return pointer, ("cupy", array.shape, array.strides, array.dtype, array.device.id, pointer & 15)

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device[1]):
            try:
                made = cupy.empty(shape, dtype=DTYPES[dtype].numpy)
            except TypeError:
                return OWN.empty(like, device, shape, dtype)
        return made, made.data.ptr

    def stream(self, array: Any, device: DeviceKey) -> int:
        return plain_stream(int(sys.modules["cupy"].cuda.get_current_stream(device[1]).ptr))

    def cast(self, element: str) -> str:
        return super().cast(element).replace("numpy", "cupy")
