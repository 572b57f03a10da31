"""Arrays of any library, by the protocols that they support: DLPack and `__cuda_array_interface__`."""

from __future__ import annotations

from contextlib import suppress
from operator import index
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
        try:
            masked = interface.get("mask") is not None
            typestr, stream = interface["typestr"], interface.get("stream")
            shape = tuple(index(size) for size in interface["shape"])
            address, readonly = interface["data"]
            pointer = index(address or 0)
            strides = interface.get("strides")
            strides = None if strides is None else tuple(index(step) for step in strides)
            pending = None if stream is None else index(stream)
            if strides is not None and len(strides) != len(shape):
                raise ValueError(f"{len(strides)} strides for {len(shape)} dimensions")
        except KeyError as missing:
            raise TypeError(f"its __cuda_array_interface__ has no {missing}") from None
        except (AttributeError, TypeError, ValueError) as fault:
            raise TypeError(f"its __cuda_array_interface__ is malformed: {fault}") from None
        if masked:
            raise TypeError("masked arrays are not supported: pass an array without a mask")
        if pending == 0:
            raise TypeError(
                "its __cuda_array_interface__ has stream 0, which is not valid: 1 is the default stream"
            )
        dtype = self._element(array, typestr)
        steps = packed(shape) if strides is None else in_elements(strides, dtype)
        pending = None if pending is None else plain_stream(pending)
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
