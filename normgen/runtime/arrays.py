"""Arrays of every library: look at one without a copy, make one of the same kind, find its owner's stream.

Which adapter looks at an object is found by its type, once for each type.  Device memory is never read, moved
or passed through the host; a library that is not imported yet is not imported here either.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from normgen.dtypes import DTYPES
from normgen.runtime.views import (
    HOST,
    Adapter,
    ArrayView,
    DeviceKey,
    Shape,
    in_elements,
    known_dtype,
    packed,
    plain_stream,
)

__all__ = ["HOST", "ArrayView", "DeviceKey", "Shape", "packed"]


def _look_numpy(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "numpy")
    strides = in_elements(array.strides, dtype)
    address = array.__array_interface__["data"][0]
    return ArrayView(address, dtype, array.shape, strides, not array.flags.writeable, HOST, "numpy", array)


def _look_number(number: Any) -> ArrayView:
    # NumPy's float64 is a Python float, and like that one a plain number without an element type to keep.
    plain = isinstance(number, (int, float, np.integer))
    return _look_numpy(np.asarray(number, dtype=np.float32 if plain else number.dtype))


def _empty_numpy(like: ArrayView, shape: Shape, dtype: str) -> Any:
    return np.empty(shape, DTYPES[dtype].numpy)


def _look_dlpack(array: Any) -> ArrayView:
    from normgen.runtime.dlpack import look

    return look(array)


def _look_either(array: Any) -> ArrayView:
    from normgen.runtime.device_array import INTERFACE

    try:
        return _look_dlpack(array)
    except TypeError:
        return INTERFACE.look(array)


def _empty_dlpack(like: ArrayView, shape: Shape, dtype: str) -> Any:
    if like.device == HOST:
        return _empty_numpy(like, shape, dtype)
    from normgen.runtime.device_array import empty

    return empty(like, shape, dtype)


def _default(view: ArrayView) -> int:
    return view.stream or 0


_NUMPY = Adapter("numpy", _look_numpy, _empty_numpy, _default)
_NUMBER = Adapter("numpy", _look_number, _empty_numpy, _default)
_DLPACK = Adapter("dlpack", _look_dlpack, _empty_dlpack, _default)
_EITHER = Adapter("dlpack", _look_either, _empty_dlpack, _default)

_by_type: dict[type, Adapter] = {}
_by_kind: dict[str, Adapter] = {"numpy": _NUMPY, "dlpack": _DLPACK}


def view(array: Any, name: str = "") -> ArrayView:
    """An array, or a number, as kernels see it. TypeError for anything else, naming the argument if told."""
    kind = type(array)
    adapter = _by_type.get(kind)
    try:
        if adapter is None:
            adapter = _adapter(array)
            _by_kind.setdefault(adapter.kind, adapter)
            _by_type[kind] = adapter
        return adapter.look(array)
    except TypeError as fault:
        if name:
            raise TypeError(f"{name}: {fault}") from None
        raise


def allocate(like: ArrayView, shape: Shape, dtype: str) -> Any:
    """An uninitialised contiguous array of the same library on the same device."""
    return _by_kind[like.kind].empty(like, shape, dtype)


def address_of(made: Any) -> int:
    """The address of an array that `allocate` made."""
    if isinstance(made, np.ndarray):
        address: int = made.__array_interface__["data"][0]
        return address
    return view(made).pointer


def zeros(like: ArrayView, shape: Shape, dtype: str, stream: int = 0) -> Any:
    """The same, filled with zeros on a stream."""
    array = allocate(like, shape, dtype)
    size = prod(shape) * DTYPES[dtype].bytes
    if size and like.device == HOST:
        ctypes.memset(view(array).pointer, 0, size)
    elif size:
        from normgen.runtime.cuda import context_of

        context_of(like.device).fill_zero(view(array).pointer, size, stream)
    return array


def scratch(like: ArrayView, size: int) -> tuple[int, Any]:
    """Raw memory next to an array, from the same library's allocator: its address, and what keeps it."""
    array = allocate(like, (-(-size // 4),), "f32")
    return view(array).pointer, array


def deliver(like: ArrayView, result: Any, stream: int = 0) -> Any:
    """A result that `allocate` made, with all its work queued on `stream`, as the caller is to get it."""
    if type(result).__name__ == "DeviceArray":
        result.stream = stream
    if like.kind != "jax":
        return result
    from normgen.runtime.frameworks import deliver_jax

    return deliver_jax(result)


def scalar_view(like: ArrayView, dtype: str) -> ArrayView:
    """A 0-d array that does not exist yet, on the device of another."""
    return ArrayView(0, dtype, (), (), True, like.device, like.kind, None)


def stream_of(view: ArrayView) -> int:
    """The stream that the array's owner works on now: its library's, its producer's, or the default."""
    return _by_kind[view.kind].stream(view)


def stream_handle(stream: Any) -> int:
    """The handle of a stream given as a number or as any library's stream object."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        found: Any = stream
    elif hasattr(stream, "__cuda_stream__"):
        pair = stream.__cuda_stream__
        found = (pair() if callable(pair) else pair)[1]
    else:
        words = ("cuda_stream", "ptr", "handle")
        found = next((getattr(stream, word) for word in words if hasattr(stream, word)), None)
    try:
        handle = int(found)
    except (TypeError, ValueError):
        raise TypeError(
            f"stream must be a handle or a CUDA stream object, not {type(stream).__name__}"
        ) from None
    if handle < 0:
        raise ValueError(f"stream is {handle}, which is no stream handle")
    return plain_stream(handle)


def order(stream: int, views: Iterable[ArrayView]) -> None:
    """Let `stream` go on only after what the arrays' producers have queued on other streams."""
    others = {(v.device, v.stream) for v in views if v.stream is not None and v.stream != stream}
    for device, other in others:
        from normgen.runtime.cuda import context_of

        context_of(device).wait(stream, other)


def _adapter(array: Any) -> Adapter:
    """The adapter of an object of a type not met before."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported: give .filled() data")
    if isinstance(array, np.ndarray):
        return _NUMPY
    if isinstance(array, (int, float, np.floating, np.integer)) and not isinstance(array, bool):
        return _NUMBER
    if type(array).__module__.partition(".")[0] == "ml_dtypes" and isinstance(array, np.generic):
        return _NUMBER
    own = sys.modules.get("normgen.runtime.device_array")
    if own is not None and isinstance(array, own.DeviceArray):
        adapter: Adapter = own.OWN
        return adapter
    from normgen.runtime.frameworks import FRAMEWORKS

    for module, word, adapter in FRAMEWORKS:
        base = getattr(sys.modules.get(module), word, None)
        if isinstance(base, type) and isinstance(array, base):
            return adapter
    interface = hasattr(type(array), "__cuda_array_interface__") or hasattr(array, "__cuda_array_interface__")
    exchange = hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")
    if interface and exchange:
        return _EITHER
    if exchange:
        return _DLPACK
    if interface:
        from normgen.runtime.device_array import INTERFACE

        return INTERFACE
    if isinstance(array, (list, tuple)):
        raise TypeError(f"expected an array, got a {type(array).__name__}: make it one with numpy.asarray")
    raise TypeError(f"expected an array, got {type(array).__name__}")
