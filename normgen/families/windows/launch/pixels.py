"""Pixels: each thread walks from channel to channel at one place of a plane, its neighbours its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from normgen.counting import counted
from normgen.families.windows.launch.schedule import (
    MOST_REGISTERS,
    Sizes,
    WindowSchedule,
    among,
    beyond,
    divided,
    images_of,
    room,
    wide,
    with_blocks,
)
from normgen.launching.call import INT_LIMIT, WORD, Call
from normgen.launching.machine import WARP
from normgen.package.kernels import WindowsRecord

PART = 4  # channels of a chunk that a thread works on together: with more it takes more registers
# Threads per block and channels of a chunk, the fastest first; the last is for wide windows. Evidence:
# bench/evidence/rules_others.csv.
_NESTED_CHUNKS = ((256, 8), (192, 12), (128, 8), (256, 4))
_CHUNKS = ((192, 12), (256, 8), (128, 8), (256, 4))
_BLOCKS, _PARTS = (64, 128, 192, 256, 384, 512), (4, 8, 12, 16)  # that walks may have of each
_MOST_WARPS = 48  # per multiprocessor
_MORE_REGISTERS = 12  # that the compiler of a hungry device takes beside
_LEAST_MOVED = 6  # bytes of a pixel from which these gain over a march that drifts
_NOT_MEASURED = 1.0  # what it costs where these do not: every march comes first
_FULL = 1.1  # threads for a pixel, at most, where blocks are full of them


def usual(record: WindowsRecord, call: Call) -> Iterator[Sizes]:
    """The sizes of walks that are compared, those that should be fastest first."""
    return _of_plane(record, call, _NESTED_CHUNKS if len(record.sums) > 1 else _CHUNKS)


def every(record: WindowsRecord, call: Call) -> Iterator[Sizes]:
    """The sizes that a walk may have."""
    return _of_plane(record, call, product(_BLOCKS, _PARTS))


def _of_plane(record: WindowsRecord, call: Call, found: Iterable[tuple[int, int]]) -> Iterator[Sizes]:
    """Blocks without a warp that has no pixel."""
    plane = -(-call.size(record.image[1:]) // WARP) * WARP
    return (Sizes(1, min(most, plane), chunk) for most, chunk in found)


def made(record: WindowsRecord, call: Call, sizes: Sizes) -> WindowSchedule | None:
    """The walk of such sizes, if there is one with few enough registers."""
    channels, plane = call.extents[record.image[0]], call.size(record.image[1:])
    if plane >= INT_LIMIT:
        return None
    s = WindowSchedule("pixels", 1, sizes.threads, "", lanes=plane, steps=channels, chunk=sizes.chunk)
    s = replace(s, registers=_registers(record, call, s), shared=staged_bytes(record, call, s))
    if s.registers > MOST_REGISTERS or s.shared > call.device.shared_per_block:
        return None
    s = with_blocks(call, s, room(call, s, _MOST_WARPS))
    s = divided(record, call, s, threads(s, images_of(record, call)))
    return replace(s, reason=f"a thread walks along {counted(channels, 'channel')} of its pixel{among(s)}")


def strips(s: WindowSchedule) -> int:
    """How many blocks the pixels of a plane take."""
    return -(-s.lanes // s.threads)


def threads(s: WindowSchedule, images: int) -> int:
    """Threads of all blocks."""
    return images * s.ranges * strips(s) * s.threads


def cost(record: WindowsRecord, call: Call, s: WindowSchedule) -> float:
    """What it costs beside other forms. Pixels gain over a march that drifts where enough bytes of each are
    moved and planes fill blocks. Evidence: bench/evidence/rules_others.csv."""
    moved = sum(map(call.itemsize, wide(record, call)))
    filled = strips(s) * s.threads
    pays = moved >= _LEAST_MOVED and filled <= _FULL * s.lanes
    return 1 - s.lanes / filled + (0.0 if pays else _NOT_MEASURED)


def past_the_end(record: WindowsRecord, s: WindowSchedule) -> int:
    """How far past the end of an image its last chunk reaches."""
    return (s.chunk + beyond(record)) * s.lanes


def staged_bytes(record: WindowsRecord, call: Call, s: WindowSchedule) -> int:
    """Bytes of two chunks of results: rows are as far apart as planes, in elements of a word, and begin
    anywhere in one."""
    found = 0
    for itemsize in map(call.itemsize, call.present(record.writes)):
        each = WORD // itemsize
        words = -(-(each - 1 + s.chunk * (s.threads + s.lanes % each)) // each)
        found += 2 * words * WORD
    return found


def _registers(record: WindowsRecord, call: Call, s: WindowSchedule) -> int:
    """Registers per thread: fitted from above to what nvcc does not spill with, for windows of 2 to 9
    channels, one and two levels, one to three operands, chunks of 4 to 12."""
    reads = sum(bool(o.inner) for o in call.read(record.reads))
    kept = sum(n * (high - low) for n, (low, high) in zip(record.sums, record.reaches, strict=True))
    own = 28 + _MORE_REGISTERS * call.device.hungry + 8 * (reads - 1) + 16 * (len(record.writes) - 1)
    return ceil((own + 1.5 * s.chunk * reads + kept * (2 + kept / 16)) / 8) * 8
