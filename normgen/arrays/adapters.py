"""Arrays of every library: look at one without a copy, make one of the same kind, find its owner's stream.

Which adapter looks at an object is found by its type, once for each type.  Device memory is never read, moved
or passed through the host; a library that is not imported yet is not imported here either.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from normgen.arrays.views import (
    Adapter,
    ArrayView,
    Glance,
    Shape,
    address_numpy,
    empty_numpy,
    in_elements,
    known_dtype,
    no_stream,
    plain_stream,
)
from normgen.devices.executors import context_of
from normgen.dtypes import DTYPES, real
from normgen.launching.launch import HOST, DeviceKey


def _look_numpy(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "numpy")
    strides = in_elements(array.strides, dtype)
    address = address_numpy(array)
    return ArrayView(address, dtype, array.shape, strides, not array.flags.writeable, HOST, "numpy", array)


def _look_number(number: Any) -> ArrayView:
    # NumPy's float64 is a Python float, and like that one a plain number without an element type to keep.
    if isinstance(number, (int, float, np.integer)):
        return _look_numpy(np.asarray(real(number, "a number"), np.float32))
    return _look_numpy(np.asarray(number, number.dtype))


def _glance_numpy(array: Any) -> tuple[int, Any]:
    pointer = address_numpy(array)
    return pointer, ("numpy", array.shape, array.strides, array.dtype, array.flags.writeable, pointer & 15)


def _glance_number(number: Any) -> tuple[Any, Any]:
    return number, type(number)


def _glance_none(none: Any) -> tuple[int, Any]:
    return 0, None


def _look_dlpack(array: Any) -> ArrayView:
    from normgen.arrays.dlpack import look

    return look(array)


def _look_either(array: Any) -> ArrayView:
    from normgen.arrays.device_array import INTERFACE

    try:
        return _look_dlpack(array)
    except TypeError:
        return INTERFACE.look(array)


def _empty_dlpack(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    if device == HOST:
        return empty_numpy(array, device, shape, dtype)
    from normgen.arrays.device_array import empty

    return empty(array, device, shape, dtype)


def _deliver_dlpack(result: Any, stream: int) -> Any:
    if isinstance(result, np.ndarray):
        return result
    from normgen.arrays.device_array import queued

    return queued(result, stream)


_NUMPY = Adapter("numpy", _look_numpy, empty_numpy, no_stream, _glance_numpy)
_NUMBER = Adapter("numpy", _look_number, empty_numpy, no_stream)
_DLPACK = Adapter("dlpack", _look_dlpack, _empty_dlpack, no_stream, deliver=_deliver_dlpack)
_EITHER = Adapter("dlpack", _look_either, _empty_dlpack, no_stream, deliver=_deliver_dlpack)

_by_type: dict[type, Adapter] = {}
_by_kind: dict[str, Adapter] = {"numpy": _NUMPY, "dlpack": _DLPACK}
# By type of argument, for arrays once one of their type was looked at.
_glances: dict[type, tuple[Glance, Callable[[], Any] | None]] = {
    type(None): (_glance_none, None),
    float: (_glance_number, None),
    int: (_glance_number, None),
}


def view(array: Any, name: str = "") -> ArrayView:
    """An array, or a number, as kernels see it. TypeError for anything else, naming the argument if told."""
    kind = type(array)
    adapter = _by_type.get(kind)
    try:
        if adapter is None:
            adapter = _adapter(array)
            _by_kind.setdefault(adapter.kind, adapter)
            _by_type[kind] = adapter
            if adapter.glance is not None:
                _glances[kind] = (adapter.glance, adapter.place)
        return adapter.look(array)
    except TypeError as fault:
        if name:
            raise TypeError(f"{name}: {fault}") from None
        raise


def glance(arguments: Iterable[Any]) -> tuple[list[Any], list[Any]] | None:
    """The arguments of a call in brief, or None where one of them takes a full look.

    The address of each array or value of each number; then what else a plan of the call depends on, as keys:
    one for each argument, and one more where a context that is current says where arrays lie.
    """
    values: list[Any] = []
    keys: list[Any] = []
    place = None
    try:
        for argument in arguments:
            look, where = _glances[type(argument)]
            value, key = look(argument)
            values.append(value)
            keys.append(key)
            if where is not None:
                place = where
    except (KeyError, AttributeError, TypeError, ValueError, RuntimeError):
        return None  # not met before, or not as it should be: the full look says what is wrong
    if place is not None:
        here = place()
        if here is None:
            return None
        keys.append(here)
    return values, keys


def adapter_of(view: ArrayView) -> Adapter:
    """What knows arrays of the same library."""
    return _by_kind[view.kind]


def allocate(like: ArrayView, shape: Shape, dtype: str) -> Any:
    """An uninitialised contiguous array of the same library on the same device."""
    return _by_kind[like.kind].empty(like.owner, like.device, shape, dtype)[0]


def zeros(like: ArrayView, shape: Shape, dtype: str, stream: int = 0) -> Any:
    """The same, filled with zeros on a stream."""
    array, address = _by_kind[like.kind].empty(like.owner, like.device, shape, dtype)
    clear(like.device, address, prod(shape) * DTYPES[dtype].bytes, stream)
    return array


def clear(device: DeviceKey, address: int, size: int, stream: int) -> None:
    """Fill memory with zeros, on a stream."""
    if size and device == HOST:
        ctypes.memset(address, 0, size)
    elif size:
        context_of(device).fill_zero(address, size, stream)


def scratch(adapter: Adapter, owner: Any, device: DeviceKey, size: int) -> tuple[int, Any]:
    """Raw memory next to an array, from the same library's allocator: its address, and what keeps it."""
    array, address = adapter.empty(owner, device, (-(-size // 4),), "f32")
    return address, array


def zero_scratch(
    adapter: Adapter, owner: Any, device: DeviceKey, size: int, stream: int
) -> tuple[int, Any] | None:
    """The same, all zeros when this returns. None while a graph is made of what is put into the stream, or
    into the one that the array's library works on: it would be cleared at each replay, and not now."""
    if device == HOST:
        found = scratch(adapter, owner, device, size)
        clear(device, found[0], size, 0)
        return found
    context, own = context_of(device), adapter.stream(owner, device)
    if context.capturing(stream) or context.capturing(own):
        return None
    found = scratch(adapter, owner, device, size)
    context.fill_zero(found[0], size, own)
    context.finish(own)
    return found


def scalar_view(like: ArrayView, dtype: str) -> ArrayView:
    """A 0-d array that does not exist yet, on the device of another."""
    return ArrayView(0, dtype, (), (), True, like.device, like.kind, None)


def stream_of(view: ArrayView, asked: Any = None) -> int:
    """The stream to run on: as asked for, or else the one that the array's owner works on now: its library's,
    its producer's, or the default."""
    return stream_for(_by_kind[view.kind], view.owner, view.device, view.stream if asked is None else asked)


def stream_for(adapter: Adapter, array: Any, device: DeviceKey, asked: Any) -> int:
    """The same for an array that was not looked at."""
    if device != HOST:
        return adapter.stream(array, device) if asked is None else stream_handle(asked)
    if asked is not None:
        raise TypeError("stream= is for device arrays; host arrays are computed when the call returns")
    return 0


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
    if type(array).__module__ == "normgen.arrays.device_array":
        # (not looked up in `sys.modules`, where another thread may have it half imported)
        from normgen.arrays.device_array import OWN, DeviceArray

        if isinstance(array, DeviceArray):
            return OWN
    from normgen.arrays.frameworks import FRAMEWORKS

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
        from normgen.arrays.device_array import INTERFACE

        return INTERFACE
    if isinstance(array, (list, tuple)):
        raise TypeError(f"expected an array, got a {type(array).__name__}: make it one with numpy.asarray")
    raise TypeError(f"expected an array, got {type(array).__name__}")
