"""Runs one kernel text on the host executor with arguments given as Python values and arrays."""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

import numpy as np

from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import Buffer, Launch


class Array(NamedTuple):
    """An array argument and what the kernel may do with it."""

    array: np.ndarray
    access: str


read, write, update = (partial(Array, access=access) for access in ("read", "write", "update"))


def run(
    executor: HostExecutor,
    source: str,
    entry: str,
    grid: int,
    block: int,
    *arguments: Array | int | float | np.int64,
    shared: int = 0,
    cluster: int = 1,
    early: bool = False,
) -> None:
    """int is a C int, float a C float, np.int64 a long long."""
    values: list[int | float] = []
    packing = ""
    buffers: list[Buffer] = []
    for argument in arguments:
        if isinstance(argument, Array):
            array = argument.array
            packing += "P"
            values.append(array.ctypes.data)
            buffers.append(Buffer(array.ctypes.data, array.nbytes, array.itemsize, argument.access))
        else:
            packing += "f" if isinstance(argument, float) else "q" if isinstance(argument, np.int64) else "i"
            values.append(argument)
    function = executor.function(source, entry, shared)
    launch = Launch(source, entry, (grid, 1, 1), (block, 1, 1), shared, packing, (), (), (), cluster, early)
    executor.launch(function, launch, struct.pack(packing, *values), tuple(buffers), 0)
