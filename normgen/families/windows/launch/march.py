"""Marches: threads walk an image from one end to the other, with the sums of several steps under way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from normgen.counting import counted
from normgen.families.windows.launch.schedule import (
    MOST_REGISTERS,
    Sizes,
    WindowSchedule,
    ranged,
    room,
    with_blocks,
)
from normgen.families.windows.launch.shape import WindowShape
from normgen.launching.machine import WARP
from normgen.package.kernels import WindowsRecord

_BLOCKS = (32, 64, 128, 256)  # threads per block
_BYTES_AHEAD = 49152  # of all operands, that a multiprocessor should have on their way
_LEAST_AHEAD, _MOST_AHEAD = 3, 6  # steps that operands are fetched ahead
_COPIED = 4  # bytes that the hardware copies into shared memory at least
_FEWEST_USEFUL = 8  # lanes of a warp beside those that are there for their neighbours only
_MOST_WARPS = 24  # per multiprocessor; more would have too few registers
_MOST_SLOTS = 24  # steps that are unrolled


def sizes(shape: WindowShape) -> Iterator[Sizes]:
    """The sizes that a march may have."""
    return (Sizes(vector, threads) for vector, threads in product(shape.vectors, _BLOCKS))


def made(record: WindowsRecord, shape: WindowShape, sizes: Sizes) -> WindowSchedule | None:
    """The march of such sizes, if there is one with few enough registers."""
    vector = sizes.vector
    plane, reach = shape.plane, reach_of(record)
    lanes = (plane + vector // 2) // vector
    drift = plane - lanes * vector
    ghosts = -(-(abs(drift) * reach + sum(record.across)) // vector)
    rows = not any(record.across) or plane % vector == 0
    if not (lanes and rows and WARP - 2 * ghosts >= _FEWEST_USEFUL):
        return None
    team = min(WARP, lanes + 2 * ghosts) if ghosts else 1
    steps = -(-shape.size // (lanes * vector))
    s = WindowSchedule("march", vector, sizes.threads, "", 0, lanes, drift, team, ghosts, steps=steps)
    s = _with_pipeline(record, shape, s)
    if s.shared > shape.device.shared_per_block or s.registers > MOST_REGISTERS or s.slots > _MOST_SLOTS:
        return None
    along = f", drifting by {drift}" if drift else ""
    return replace(
        ranged(s, 1), reason=f"images take {counted(steps, 'step')} of {counted(lanes, 'lane')}{along}"
    )


def reach_of(record: WindowsRecord) -> int:
    """How many steps the windows of all levels reach between them, to either side."""
    return sum(max(-low, high) for low, high in record.reaches)


def strips(s: WindowSchedule) -> int:
    """How many thread groups the lanes of an image take."""
    return -(-s.lanes // (s.team - 2 * s.ghosts))


def threads(s: WindowSchedule, images: int) -> int:
    """Threads of a march whose steps are not divided yet, or are: whole warps."""
    return -(-images * s.ranges * strips(s) // (WARP // s.team)) * WARP


def _with_pipeline(record: WindowsRecord, shape: WindowShape, s: WindowSchedule) -> WindowSchedule:
    """The steps ahead that keep enough bytes on their way, and what a multiprocessor then has room for."""
    itemsizes = shape.read_sizes
    s = replace(s, registers=_registers(record, s, itemsizes))
    lag, fitting = sum(high for _, high in record.reaches), room(shape.device, s, _MOST_WARPS)
    wanted = -(-_BYTES_AHEAD // max(1, fitting * s.threads * s.vector * sum(itemsizes)))
    ahead = max(_LEAST_AHEAD, min(_MOST_AHEAD, wanted))
    waiting = record.reaches[-1][1] + 1 if record.early else 1
    slots = -(-max(ahead + lag + 1, *_depths(record)) // waiting) * waiting
    copied = sum(s.vector * itemsize for itemsize in itemsizes if s.vector * itemsize >= _COPIED)
    shared = s.threads * (slots * copied + waiting * record.early * s.vector * 4)
    return with_blocks(shape.device, replace(s, ahead=slots - lag - 1, slots=slots, shared=shared), fitting)


def _depths(record: WindowsRecord) -> list[int]:
    """How many sums of each level are under way: from one that begins to that whose results are stored."""
    after = [sum(high for _, high in record.reaches[k:]) for k in range(len(record.reaches))]
    return [lag - low + 1 for lag, (low, _) in zip(after, record.reaches, strict=True)]


def _registers(record: WindowsRecord, s: WindowSchedule, itemsizes: tuple[int, ...]) -> int:
    """Registers per thread: fitted from above to what nvcc reports for kernels of one to three operands."""
    # what waits in shared memory for the last sums takes the place of earlier ones
    depths = [high - low + 1 for low, high in record.reaches] if record.early else _depths(record)
    sums = sum(n * depth for n, depth in zip(record.sums, depths, strict=True))
    passing = max(len(record.reaches), len(itemsizes)) + 0.25
    kept = sum(_MOST_AHEAD + 3 for itemsize in itemsizes if s.vector * itemsize < _COPIED)
    own = 30 + 4 * (len(record.writes) - 1) + (0 if s.ghosts else 4)
    return ceil((own + kept + s.vector * (sums + passing)) / 8) * 8
