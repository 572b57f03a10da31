"""Arrays of any library, by the protocols that they speak: DLPack and `__cuda_array_interface__`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from normgen.arrays import capsule
from normgen.arrays.device_array import Foreign
from normgen.arrays.views import View, in_elements, known_dtype, packed, plain_stream
from normgen.devices.executors import device_holding


class Dlpack(Foreign):
    """Anything with `__dlpack__`, on the host or a CUDA device."""

    name = "dlpack"

    def knows(self, array: Any) -> bool:
        return hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")

    def look(self, array: Any) -> View:
        try:
            return capsule.look(array, self)
        except TypeError:
            if INTERFACE.knows(array):
                return INTERFACE.look(array)
            raise


class Interface(Foreign):
    """Anything with `__cuda_array_interface__`, on the device that its memory lies on."""

    name = "cuda"

    def knows(self, array: Any) -> bool:
        # The type first: of an object, a property would run, which may refuse with an error of its own.
        return any(hasattr(each, "__cuda_array_interface__") for each in (type(array), array))

    def look(self, array: Any) -> View:
        interface = array.__cuda_array_interface__
        if interface.get("mask") is not None:
            raise TypeError("masked arrays are not supported")
        dtype = self._element(array, interface["typestr"])
        shape = tuple(int(size) for size in interface["shape"])
        address, readonly = interface["data"]
        strides = interface.get("strides")
        stream = interface.get("stream")
        if stream == 0:
            raise TypeError("its __cuda_array_interface__ gives stream 0, which the protocol does not allow")
        pointer = int(address or 0)
        steps = packed(shape) if strides is None else in_elements(tuple(strides), dtype)
        pending = None if stream is None else plain_stream(int(stream))
        where = device_holding(pointer)
        return View(pointer, dtype, shape, steps, bool(readonly), where, self, array, None, pending)

    def _element(self, array: Any, typestr: str) -> str:
        """The element type: from `dtype` where there is a NumPy one, since type strings do not tell fp8
        apart."""
        own = getattr(array, "dtype", None)
        if own is not None:
            with suppress(TypeError):
                return known_dtype(own, self)
        return "bf16" if typestr in ("<V2", "|V2") else known_dtype(typestr, self)


INTERFACE = Interface()
