"""Arrays of every library: view one without a copy, allocate one on its device, find its current stream.

The library of an object is looked up by its type, once per type. The first array that is not NumPy's imports
the registry, which host calls do not need.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from normgen.arrays.numpy import NUMPY
from normgen.arrays.views import Library, View, is_a, plain_stream
from normgen.devices.executors import context_of
from normgen.dtypes import DTYPES
from normgen.launching.launch import HOST, DeviceKey, StreamObject
from normgen.launching.layout import Shape

Glance = Callable[[Any], tuple[Any, Any]]


def _glance_number(number: Any) -> tuple[Any, Any]:
    return number, type(number)


_by_type: dict[type, Library] = {np.ndarray: NUMPY}
# By type of argument, for arrays once one of their type was looked at: its glance, and its library's place.
_glances: dict[type, tuple[Glance, Callable[[], Any] | None]] = {
    type(None): (lambda none: (0, None), None),
    float: (_glance_number, None),
    int: (_glance_number, None),
    np.ndarray: (NUMPY.glance, None),
}


def library_of(array: Any) -> Library:
    """The library that an array is of; TypeError for anything else."""
    kind = type(array)
    library = _by_type.get(kind)
    if library is None:
        library = _by_type[kind] = _library_of(array)
        if library.glance is not None:
            _glances[kind] = (library.glance, library.place)
    return library


def view(array: Any, name: str = "", written: bool = False) -> View:
    """An array, or a number, as kernels see it. TypeError for anything else, naming the argument if told."""
    try:
        library = _by_type.get(type(array)) or library_of(array)
        found = library.look(array)
        return found if library.own is None or not written else found._replace(pointer=library.own(array))
    except TypeError as fault:
        if name:
            raise TypeError(f"{name}: {fault}") from None
        raise


def glance(arguments: Iterable[Any], written: Iterable[Any] = ()) -> tuple[list[Any], list[Any]] | None:
    """The arguments of a call in brief, or None where one of them takes a full look. `written`: those that
    the call writes.

    The address of each array or value of each number; then what else a plan of the call depends on, as keys:
    one for each argument, and one more where a context that is current says where arrays lie.
    """
    values: list[Any] = []
    keys: list[Any] = []
    place = None
    try:
        for argument in written:
            if (own := _by_type[type(argument)].own) is not None:
                own(argument)
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


def _library_of(array: Any) -> Library:
    from normgen.arrays.registry import LIBRARIES

    for library in LIBRARIES:
        if library.knows(array):
            return library
    word = type(array).__name__
    if isinstance(array, (list, tuple)):
        raise TypeError(f"expected an array, got a {word}: convert it with numpy.asarray")
    raise TypeError(f"expected an array, got {word}: pass one of NumPy, PyTorch, CuPy or another library")


def allocate(like: View, shape: Shape, dtype: str) -> Any:
    """An uninitialised contiguous array of the same library on the same device."""
    return like.library.empty(like.owner, like.device, shape, dtype)[0]


def zeros(like: View, shape: Shape, dtype: str, stream: int = 0) -> Any:
    """The same, filled with zeros on a stream."""
    array, address = like.library.empty(like.owner, like.device, shape, dtype)
    clear(like.device, address, prod(shape) * DTYPES[dtype].bytes, stream)
    return array


def clear(device: DeviceKey, address: int, size: int, stream: int) -> None:
    """Fill memory with zeros, on a stream."""
    if size and device == HOST:
        ctypes.memset(address, 0, size)
    elif size:
        context_of(device).fill_zero(address, size, stream)


def stream_of(view: View, asked: Any = None) -> int:
    """The stream to run on: as asked for, or else the one that the array's owner works on now: its library's,
    its producer's, or the default."""
    return stream_for(view.library, view.owner, view.device, view.stream if asked is None else asked)


def stream_for(library: Library, array: Any, device: DeviceKey, asked: Any) -> int:
    """The same for an array that was not looked at."""
    if device != HOST:
        return library.stream(array, device) if asked is None else stream_handle(asked)
    if asked is not None:
        raise TypeError("stream= is for arrays on a CUDA device: a call on host arrays is synchronous")
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
        raise ValueError(f"stream is {handle}, which is not a stream handle")
    return StreamObject(handle, stream) if is_a(stream, "pycuda._driver", "Stream") else plain_stream(handle)


def order(stream: int, views: Iterable[View]) -> None:
    """Let `stream` go on only after what the arrays' producers have queued on other streams."""
    others = {(v.device, v.stream) for v in views if v.stream is not None and v.stream != stream}
    for device, other in others:
        context_of(device).wait(stream, other)
