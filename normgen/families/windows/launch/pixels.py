"""Pixels: each thread walks from channel to channel at one place of a plane, its neighbours its own."""

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
    beyond,
    ranged,
    room,
    with_blocks,
)
from normgen.families.windows.launch.shape import WindowShape
from normgen.launching.call import INT_LIMIT, WORD
from normgen.launching.machine import WARP
from normgen.package.kernels import WindowsRecord

PART = 4  # channels of a chunk that a thread works on together: with more it takes more registers
_BLOCKS, _PARTS = (64, 128, 192, 256, 384, 512), (4, 8, 12, 16)  # threads per block, and channels of a chunk
_MOST_WARPS = 48  # per multiprocessor
_MORE_REGISTERS = 12  # that the compiler of a hungry device takes beside


def sizes(shape: WindowShape) -> Iterator[Sizes]:
    """The sizes that a walk may have: blocks without a warp that has no pixel."""
    plane = -(-shape.plane // WARP) * WARP
    return (Sizes(1, min(most, plane), chunk) for most, chunk in product(_BLOCKS, _PARTS))


def made(record: WindowsRecord, shape: WindowShape, sizes: Sizes) -> WindowSchedule | None:
    """The walk of such sizes, if there is one with few enough registers."""
    channels, plane = shape.channels, shape.plane
    if plane >= INT_LIMIT:
        return None
    s = WindowSchedule("pixels", 1, sizes.threads, "", lanes=plane, steps=channels, chunk=sizes.chunk)
    s = replace(s, registers=_registers(record, shape, s), shared=staged_bytes(shape, s))
    if s.registers > MOST_REGISTERS or s.shared > shape.device.shared_per_block:
        return None
    s = replace(s, reason=f"a thread walks along {counted(channels, 'channel')} of its pixel")
    return with_blocks(shape.device, ranged(s, 1), room(shape.device, s, _MOST_WARPS))


def strips(s: WindowSchedule) -> int:
    """How many blocks the pixels of a plane take."""
    return -(-s.lanes // s.threads)


def threads(s: WindowSchedule, images: int) -> int:
    """Threads of all blocks."""
    return images * s.ranges * strips(s) * s.threads


def past_the_end(record: WindowsRecord, s: WindowSchedule) -> int:
    """How far past the end of an image its last chunk reaches."""
    return (s.chunk + beyond(record)) * s.lanes


def staged_bytes(shape: WindowShape, s: WindowSchedule) -> int:
    """Bytes of two chunks of results: rows are as far apart as planes, in elements of a word, and begin
    anywhere in one."""
    found = 0
    for itemsize in shape.write_sizes:
        each = WORD // itemsize
        words = -(-(each - 1 + s.chunk * (s.threads + s.lanes % each)) // each)
        found += 2 * words * WORD
    return found


def _registers(record: WindowsRecord, shape: WindowShape, s: WindowSchedule) -> int:
    """Registers per thread: fitted from above to what nvcc does not spill with, for windows of 2 to 9
    channels, one and two levels, one to three operands, chunks of 4 to 12."""
    reads = len(shape.read_sizes)
    kept = sum(n * (high - low) for n, (low, high) in zip(record.sums, record.reaches, strict=True))
    own = 28 + _MORE_REGISTERS * shape.device.hungry + 8 * (reads - 1) + 16 * (len(record.writes) - 1)
    return ceil((own + 1.5 * s.chunk * reads + kept * (2 + kept / 16)) / 8) * 8
