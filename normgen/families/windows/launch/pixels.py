"""Pixels: each thread walks from channel to channel at one place of a plane, its neighbours its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from normgen.counting import counted
from normgen.families.windows.launch.schedule import (
    MOST_REGISTERS,
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
_MOST_WARPS = 48  # per multiprocessor
_MORE_REGISTERS = 12  # that the compiler of a hungry device takes beside
_LEAST_MOVED = 6  # bytes of a pixel from which these gain over a march that drifts
_NOT_MEASURED = 1.0  # what it costs where these do not: every march comes first
_FULL = 1.1  # threads for a pixel, at most, where blocks are full of them


def schedules(record: WindowsRecord, call: Call) -> Iterator[WindowSchedule]:
    """Walks with few enough registers, those that should be fastest first."""
    for block, chunk in _chunks(record, call):
        if s := _in_blocks(record, call, block, chunk):
            yield s


def like(record: WindowsRecord, call: Call, s: WindowSchedule) -> WindowSchedule | None:
    """The walk with the blocks and chunks of another schedule, if there is one."""
    given = s.threads, s.chunk
    return _in_blocks(record, call, *given) if given in _chunks(record, call) else None


def _chunks(record: WindowsRecord, call: Call) -> list[tuple[int, int]]:
    """Threads of a block and channels of a chunk."""
    plane = -(-call.size(record.image[1:]) // WARP) * WARP
    return [(min(most, plane), n) for most, n in (_NESTED_CHUNKS if len(record.sums) > 1 else _CHUNKS)]


def _in_blocks(record: WindowsRecord, call: Call, block: int, chunk: int) -> WindowSchedule | None:
    """The walk by blocks of so many threads and in such chunks of channels, if there is one."""
    channels, plane = call.extents[record.image[0]], call.size(record.image[1:])
    if plane >= INT_LIMIT:
        return None
    s = WindowSchedule("pixels", 1, block, "", lanes=plane, steps=channels, chunk=chunk)
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
