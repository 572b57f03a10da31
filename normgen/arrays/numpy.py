"""NumPy's arrays, and numbers as arrays without dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgen.arrays.views import Library, View, in_elements, known_dtype
from normgen.dtypes import DTYPES, real
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Shape


class Numpy(Library):
    """Arrays on the host."""

    name = "numpy"

    def knows(self, array: Any) -> bool:
        if not isinstance(array, np.ndarray):
            return False
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("masked arrays are not supported: pass .filled()")
        return True

    def look(self, array: Any) -> View:
        dtype = known_dtype(array.dtype, self)
        strides = in_elements(array.strides, dtype)
        pointer = array.__array_interface__["data"][0]
        return View(pointer, dtype, array.shape, strides, not array.flags.writeable, HOST, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        pointer = array.__array_interface__["data"][0]
        key = ("numpy", array.shape, array.strides, array.dtype, array.flags.writeable, pointer & 15)
        return pointer, key

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        made = np.empty(shape, DTYPES[dtype].numpy)
        return made, made.__array_interface__["data"][0]


NUMPY = Numpy()


class Number(Library):
    """Numbers of Python, NumPy and ml_dtypes, each a new array without dimensions. (NumPy's float64 is a
    Python float, and like that one has no element type to keep.)"""

    name = "number"
    empty = NUMPY.empty

    def knows(self, array: Any) -> bool:
        if isinstance(array, np.generic) and type(array).__module__.partition(".")[0] == "ml_dtypes":
            return True
        numbers = (int, float, np.floating, np.integer)
        return isinstance(array, numbers) and not isinstance(array, bool)

    def look(self, array: Any) -> View:
        if isinstance(array, (int, float, np.integer)):
            return NUMPY.look(np.asarray(real(array, "a number"), np.float32))
        return NUMPY.look(np.asarray(array, array.dtype))
