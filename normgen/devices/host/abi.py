"""The structures that the host runtime (templates/host/simt_launch.h) takes, field by field, for ctypes."""

from __future__ import annotations

import ctypes as c
import re
import struct
from dataclasses import dataclass
from functools import cache

READ_ONLY = 1
UNDEFINED = 2
WRITE_ONCE = 4


class Dimensions(c.Structure):
    """CUDA's dim3."""

    _fields_ = (("x", c.c_uint32), ("y", c.c_uint32), ("z", c.c_uint32))


class Array(c.Structure):
    """A static __shared__ array in the library's thread-local segment."""

    _fields_ = (("offset", c.c_uint64), ("bytes", c.c_uint64))


class Module(c.Structure):
    """A loaded kernel library."""

    _fields_ = (
        ("entry", c.c_void_p),
        ("shared_memory", c.c_void_p),
        ("base", c.c_void_p),
        ("image_bytes", c.c_uint64),
        ("segment_bytes", c.c_uint64),
        ("dynamic_offset", c.c_uint64),
        ("arrays", c.POINTER(Array)),
        ("array_count", c.c_uint64),
    )


class CheckedBuffer(c.Structure):
    """Memory that a launch may touch, and what it touched of it."""

    _fields_ = (
        ("address", c.c_void_p),
        ("bytes", c.c_uint64),
        ("item_bytes", c.c_uint32),
        ("flags", c.c_uint32),
        ("read_bytes", c.c_uint64),
        ("written_bytes", c.c_uint64),
        ("read_items", c.c_uint64),
        ("written_items", c.c_uint64),
    )


class HostLaunch(c.Structure):
    """One launch."""

    _fields_ = (
        ("module", c.POINTER(Module)),
        ("arguments", c.POINTER(c.c_void_p)),
        ("buffers", c.POINTER(CheckedBuffer)),
        ("buffer_count", c.c_uint64),
        ("first_block", c.c_uint64),
        ("end_block", c.c_uint64),
        ("maximum_seconds", c.c_double),
        ("grid", Dimensions),
        ("block", Dimensions),
        ("cluster", c.c_uint32),
        ("shared", c.c_uint32),
        ("order", c.c_uint32),
        ("seed", c.c_uint32),
        ("checked", c.c_uint32),
        ("early", c.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter as it is packed. `kind`: i integer, f float, p pointer, s structure."""

    offset: int
    bytes: int
    kind: str


@cache
def packed_parameters(packing: str) -> tuple[Parameter, ...]:
    """Where `struct.pack` puts each value of a format in native alignment: as C lays out parameters."""
    parameters: list[Parameter] = []
    end = 0
    for count, code in re.findall(r"(\d*)([A-Za-z?])", packing):
        size = struct.calcsize(code)
        alignment = struct.calcsize("c" + code) - size
        kind = "p" if code == "P" else "f" if code in "efd" else "i"
        for _ in range(int(count or 1)):
            offset = -(-end // alignment) * alignment
            parameters.append(Parameter(offset, size, kind))
            end = offset + size
    assert end == struct.calcsize(packing), packing
    return tuple(parameters)
