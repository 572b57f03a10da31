"""cuLaunchKernelEx: what it takes, as the driver's header has it. The host executor has one of its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from normgen.launching.launch import Launch

# What the header calls CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END: a launch's arguments as one
# buffer in their native layout.
_BUFFER, _SIZE, _END = 1, 2, 0
_EARLY_START = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, with a value that is a number."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Configuration(ctypes.Structure):
    """CUlaunchConfig. The size of clusters is part of a kernel, so that it takes no attribute."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Extra(ctypes.Structure):
    """The arguments of a launch, after the words that say what comes."""

    _fields_ = (
        ("buffer", ctypes.c_size_t),
        ("packed", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("bytes", ctypes.c_void_p),
        ("end", ctypes.c_size_t),
    )


class Told(ctypes.Structure):
    """All that a launch is told."""

    _anonymous_ = ("configuration", "extra")
    _fields_ = (("configuration", Configuration), ("extra", Extra))


# (configuration, function, None, extra) -> a code: 0 where it is queued.
LaunchKernel = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Configuration),
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
)
# The same by plain addresses, which Python gives sooner.
_Addressed = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_EARLY = Attribute(_EARLY_START, 0, 1)


def starter(address: int, launch: Launch) -> Callable[[int, bytes, int], int]:
    """What queues a launch by the `LaunchKernel` at an address: (function, arguments, stream) -> a code."""
    launch_kernel, early = _Addressed(address), launch.programmatic
    size = ctypes.c_size_t(struct.calcsize(launch.format))
    attributes = ctypes.addressof(_EARLY) if early else None
    usual = bytes(
        Told(
            Configuration(launch.grid, launch.block, launch.shared, None, attributes, early),
            Extra(_BUFFER, None, _SIZE, ctypes.addressof(size), _END),
        )
    )
    after = Told.extra.offset

    # (`size` is there to be kept: its address is all that a launch has of it)
    def start(function: int, packed: bytes, stream: int, size: Any = size) -> int:
        told = Told.from_buffer_copy(usual)
        told.packed, told.stream = packed, stream
        where = ctypes.addressof(told)
        code: int = launch_kernel(where, function, None, where + after)
        return code

    return start


def arguments(extra: Any) -> bytes:
    """The arguments of a launch that is asked for in this way."""
    size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t)).contents.value
    return ctypes.string_at(extra[1], size)


def address_of(function: Any) -> int:
    """The address of a function, for compiled code."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0
