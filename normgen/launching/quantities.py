"""Quantities of schedules: plain numbers, known before anything runs, by which schedules are compared.

Every family fills in those that it has, for all candidates of a kernel at once: one array a quantity, one
place a schedule. What depends on the device is relative to what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgen.launching.machine import REGISTERS_PER_THREAD, Machine, bandwidth_of, number_of

Array = NDArray[np.float64]
# Microseconds in which kernels wait for peers, of which timings of one GPU know nothing: they come on top.
WAITED = "waited"
_SHARE = 1.5  # of a multiprocessor that runs alone, over its part of the bandwidth
_LATENCY = 0.8  # microseconds from a load to its arrival


class Placed(NamedTuple):
    """How the blocks of kernels find place."""

    blocks: Array  # in all
    resident: Array  # per multiprocessor, at most
    threads: Array  # of a block
    turns: Array  # of work that a block has, one after the other
    launches: Array = np.array(1.0)  # one after the other


def placed(grid: Placed, moved: Array | float, in_flight: Array, device: Machine) -> Mapping[str, Array]:
    """What follows from how blocks find place, the bytes that they move in all, and those that one has on
    their way."""
    waves = grid.blocks / (grid.resident * device.multiprocessors)
    active = np.minimum(1.0, grid.blocks / device.multiprocessors)
    resident = np.minimum(grid.resident, np.ceil(grid.blocks / device.multiprocessors))
    on_their_way = resident * in_flight
    return {
        "bytes": log2(moved / bandwidth_of(device)),
        "bound": np.log(bound(moved, active, on_their_way, device, grid.launches)),
        "launches": grid.launches,
        "waves": log2(waves),
        "last wave": np.minimum(4.0, np.ceil(waves) / waves),
        "turns": log2(grid.turns),
        "last turn": np.ceil(grid.turns) / grid.turns,
        "active": active,
        "resident": resident * grid.threads,
        "occupancy": grid.resident * grid.threads,
        "in flight": log2(on_their_way),
        "in flight of a block": log2(in_flight),
        "registers there": registers_there(grid, device),
        "architecture": np.array(float(number_of(device.arch))),
    }


def registers_there(grid: Placed, device: Machine) -> Array:
    """Registers that a thread may have where so many blocks are to find place."""
    threads = np.maximum(1.0, grid.resident) * grid.threads
    return np.asarray(np.minimum(REGISTERS_PER_THREAD, device.registers(threads)))


def bound(
    moved: Array | float, active: Array, on_their_way: Array, device: Machine, launches: Array
) -> Array:
    """Microseconds that nothing can be faster than by much: what memory, the multiprocessors that have a
    block, and the bytes on their way leave of the bandwidth."""
    speed = np.minimum(1.0, _SHARE * active)
    arriving = on_their_way * active * device.multiprocessors / _LATENCY
    beside = device.launch_latency * launches
    return np.asarray(beside + moved / np.minimum(bandwidth_of(device) * speed, arriving))


def log2(value: Array | float) -> Array:
    """The logarithm of what is no less than nothing."""
    return np.asarray(np.log2(np.maximum(np.asarray(value, float), 1e-3)))
