"""Candidates for sums over rows in one block: persistent, the rows to come in a pipeline."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import NamedTuple

from normgen.families.rows.launch.rings import pairs
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.facts import power_of_two
from normgen.launching.machine import LINE, WARP, Machine

PAIRED = 320  # threads of one block, of 4-byte elements, in place of which two do better
WHOLE_SHIFTED = 1024  # vectors of a misaligned row of 4-byte elements, beyond which two blocks share it
UNEVEN_ELEMENTS = 40  # of a row in a thread, of two that a block reads again
EXACT_SHARE, EXACT_THREADS = 0.9, 256  # of a team's places that are taken, and of its block
BYTES, BYTES_TEAM = 64, 64  # elements of 1 byte of a thread, and the fewest threads of a row
SHORT_THREADS = 128  # that have a short row, in vectors of one each
FEW_VECTORS, MORE_VECTORS = (8, 16, 32), 128  # of rows that have one vector a thread
FEW_WARPS = 24  # of a multiprocessor that has such rows
# Vectors of a thread of misaligned rows that are stored by words, and threads of a block, which has a
# multiprocessor to itself; the share of threads, and of their places, that must be taken; a thread's vectors
# where no way has that.
SLANTED_WAYS = ((4, 256), (5, 256), (3, 384), (2, 512), (4, 384))
SLANTED_SHARE, SLANTED_FEW = 0.8, 2
# Threads of a short row whose vectors have 4 bytes, and how many of these each has at most; how many in more
# threads; the vectors of a row.
NARROW_TEAMS, NARROW_VECTORS, NARROW_FROM, NARROW_MOST = ((8, 5), (16, 5), (32, 9), (64, 9)), 7, 32, 1025


def _ring(shape: RowShape, team: int, teams: int, reload: bool = False, late: bool = False) -> RowSchedule:
    items = -(-shape.length // (shape.vector * team))
    return RowSchedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late)


# ------------------------------------------------------------------------------------------------ misaligned


def shifted_first(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Misaligned rows whose pipeline has one stage, filled again as soon as the row is in registers: one sum
    of 2-byte elements in one block with 32 a thread, others in pairs of blocks."""
    if not shape.exchanges or shape.vectors <= (WHOLE_SHIFTED if shape.whole else 512):
        return []
    if shape.whole or shape.wide_columns > 1 or shape.walked > 4:
        found, blocks = pairs(shape, device), 2 if shape.whole else 3
    else:
        team = warps(shape.vectors, shape.items(32))
        found, blocks = [_ring(shape, team, max(1, 256 // team))], 2
    return [replace(each, stages=1, blocks=blocks) for each in found]


def slanted(shape: RowShape) -> list[RowSchedule]:
    """Misaligned rows of 2-byte elements whose results go by words of memory: the first way in which every
    thread has all its vectors, or else nearly so, and no thread of a block is idle."""
    if not (shape.slants and shape.of_halves) or shape.wide_columns > 2 or shape.functions:
        return []
    vectors = shape.vectors
    teams = [(items, warps(vectors, items), threads) for items, threads in SLANTED_WAYS]
    busy = [
        (items, team, threads)
        for items, team, threads in teams
        if -(-vectors // team) == items and threads // team * team >= SLANTED_SHARE * threads
    ]
    # (two vectors are little for a thread)
    whole = [way for way in busy if way[0] * way[1] == vectors and way[0] > SLANTED_FEW]
    nearly = [way for way in busy if vectors >= SLANTED_SHARE * way[0] * way[1]]
    _, team, threads = next(iter([*whole, *nearly]), (SLANTED_FEW, warps(vectors, SLANTED_FEW), 512))
    made = _ring(shape, team, max(1, threads // team), reload=True)
    return [replace(made, form="slanted", stages=2, blocks=1)]


def narrow_rings(shape: RowShape) -> list[RowSchedule]:
    """Short rows of two operands of 2-byte elements that may be read two at a time: 10 to 18 of them in each
    thread."""
    able = shape.of_halves and shape.vector == shape.streams == 2 and 0 < shape.wide_columns <= 2
    vectors = shape.vectors
    if not able or not shape.exchanges or shape.functions or not NARROW_FROM < vectors <= NARROW_MOST:
        return []
    team = next((t for t, most in NARROW_TEAMS if vectors <= t * most), warps(vectors, NARROW_VECTORS))
    made = _ring(shape, team, max(1, 256 // team))
    crowded = shape.wide_columns > 1 and (made.items > NARROW_VECTORS or team > NARROW_TEAMS[-1][0])
    return [replace(made, reload=True)] if crowded else [made]


# ------------------------------------------------------------------------------------------------ aligned


class _Dealt(NamedTuple):
    """A pipeline for rows of `above` to `length` columns, with so many sums over rows."""

    sums: int
    above: int
    length: int
    team: int  # threads of a row
    teams: int  # rows of a block
    blocks: int  # per multiprocessor
    reload: bool = False  # whether rows are read again


# Two sums in one block of nearly 512 threads, or four of two rows; one sum in blocks of a row. What lies
# between was no faster so.
_DEALT = (
    _Dealt(1, 1152, 1536, 96, 1, 6),
    _Dealt(2, 512, 960, 64, 2, 4),
    _Dealt(2, 1024, 1536, 96, 5, 1),
    _Dealt(2, 2048, 2560, 160, 3, 1),
    _Dealt(2, 3072, 3584, 224, 2, 1),
    _Dealt(2, 3584, 4096, 256, 2, 1),
    _Dealt(2, 5376, 6144, 192, 2, 1, reload=True),
)


def dealt(shape: RowShape) -> list[RowSchedule]:
    """Sums over rows of two operands of 2-byte elements that blocks of 256 threads share unevenly: two
    stages, and 384 to 576 threads a multiprocessor."""
    halves = shape.of_halves and shape.streams == 2 and shape.whole_words
    if not (halves and shape.exchanges) or shape.functions or shape.cut:
        return []
    for way in _DEALT:
        if way.sums == shape.wide_columns and way.above < shape.length <= way.length:
            return [replace(_ring(shape, way.team, way.teams, way.reload), blocks=way.blocks, stages=2)]
    return []


class _Way(NamedTuple):
    """A pipeline of one block."""

    elements: int  # of a thread
    reload: bool = False  # whether the row is read again
    late: bool = False  # whether what rows share is loaded late


_HALF, _HALF_AGAIN, _HALF_LATE = _Way(8), _Way(8, reload=True), _Way(8, reload=True, late=True)
_ONE, _USUAL, _TWICE = _Way(1), _Way(16), _Way(32)
_TWICE_AGAIN, _TWICE_LATE = _Way(32, reload=True), _Way(32, reload=True, late=True)


def rings(shape: RowShape) -> tuple[list[RowSchedule], ...]:
    """Pipelines of one block: those that measured best, the next best, and the rest.

    Two sums over rows of 2-byte elements have two rows a block, which share a barrier. Elements of 4 bytes
    are 8 a thread, and rows of 128 threads or more have a block each. Blocks are whole groups of four warps.
    """
    rest = [_TWICE, _TWICE_AGAIN, _TWICE_LATE]
    ways = [[_USUAL], [_HALF], rest]
    if shape.narrow:
        ways = [[_TWICE], [_USUAL], [_HALF, *rest]]
    elif _all_whole(shape):
        ways = [[_HALF, _HALF_AGAIN, _HALF_LATE], [_USUAL], rest]
    return tuple([_ring_of(shape, way) for way in some] for some in ways)


def _ring_of(shape: RowShape, way: _Way) -> RowSchedule:
    vectors, items = shape.vectors, shape.items(way.elements)
    team = power_of_two(-(-vectors // items)) if vectors <= WARP * items else warps(vectors, items)
    if exact := _exact_team(shape, vectors, items, team):
        return _ring(shape, *exact, way.reload, way.late)
    # neighbours read whole lines of memory, or sectors
    run = (LINE if shape.wide_columns else 64) // (shape.vector * at_least_one(shape.narrowest))
    team = max(team, min(WARP, power_of_two(vectors), power_of_two(at_least_one(run))))
    threads = 512 if shape.wide_columns > 1 and not shape.whole and team > 128 else 256
    threads = 2 * team if team == 192 else threads
    threads = 128 if shape.narrow or (_all_whole(shape) and team >= 128) else threads
    return _ring(shape, team, max(1, threads // team), way.reload, way.late)


def _exact_team(shape: RowShape, vectors: int, items: int, usual: int) -> tuple[int, int] | None:
    """Threads of a team and teams of a block, where nothing is exchanged within a row and the usual team, of
    whole warps or a part of one, has many threads with less than their share.
    """
    count = -(-vectors // usual)
    if shape.exchanges or shape.cut or vectors > EXACT_SHARE * usual * count:
        return None
    run = LINE // (shape.vector * at_least_one(shape.narrowest))
    for each in range(items, 0, -1):
        team = -(-vectors // each)
        quantum = WARP // gcd(team, WARP)  # blocks are whole warps
        if team >= run and team * quantum <= EXACT_THREADS and vectors > EXACT_SHARE * team * each:
            return team, EXACT_THREADS // (team * quantum) * quantum
    return None


def _all_whole(shape: RowShape) -> bool:
    """Whether rows are of 4-byte elements, as whole vectors, and what is accumulated has a value for each."""
    return shape.of_floats and not shape.cut and bool(shape.wide_columns)


def statistics(shape: RowShape) -> list[RowSchedule]:
    """One vector a thread where rows of one operand, short enough for a block, are accumulated and nothing is
    exchanged: moments of channels that come last."""
    alone = not shape.exchanges and shape.streams == 1 and bool(shape.wide_columns) and shape.whole_words
    return [_ring_of(shape, _ONE)] if alone and shape.length <= SHORT_THREADS * shape.vector else []


def one_vector(shape: RowShape) -> list[RowSchedule]:
    """One vector a thread, and 24 warps a multiprocessor, not 16, where a warp or a part of one has the row:
    norms of attention heads. One sum over 128 vectors likewise, two rows a block."""
    vectors, one = shape.vectors, shape.wide_columns == 1
    even = vectors in FEW_VECTORS or (one and vectors == MORE_VECTORS)
    plain = shape.streams == 2 and shape.whole_words and not (shape.functions or shape.parts or shape.picked)
    sums = one or (shape.wide_columns > 1 and not shape.of_floats)
    if not (even and plain and sums and shape.exchanges):
        return []
    threads = max(128, 2 * vectors)
    return [replace(_ring(shape, vectors, threads // vectors), blocks=32 * FEW_WARPS // threads, stages=2)]


def of_bytes(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Rows of bytes of which little is accumulated, bound by their instructions: as many elements a thread as
    it has registers for, which are too many without clusters (older devices)."""
    if not (device.clusters and shape.narrow and shape.exchanges) or shape.cut:
        return []
    for items in range(shape.items(BYTES), 1, -1):
        team = warps(shape.vectors, items)
        if team >= BYTES_TEAM and shape.vectors >= EXACT_SHARE * team * items:
            return [replace(_ring(shape, team, 1), stages=3)]
    return []


def uneven(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """For sums over rows that are no multiple of 128 threads with 16 elements each.

    Two sums, 2-byte elements: two rows a block, each in 128 or 192 threads, read again from the pipeline. One
    sum: pairs of blocks, and so two sums of 4-byte elements where a block would have 320 threads.
    """
    team = warps(shape.vectors, shape.items(16))
    if team <= 128 or team % 128 == 0 or team > 512:
        return []
    if shape.whole:
        return pairs(shape, device) if team == PAIRED and shape.wide_columns > 1 else []
    if shape.wide_columns == 1:
        return pairs(shape, device) if team > 256 else []
    for threads in (128, 192):
        elements = -(-shape.vectors // threads) * shape.vector
        if elements <= UNEVEN_ELEMENTS:
            return [_ring(shape, threads, 2, reload=elements > 24)]
    return []
