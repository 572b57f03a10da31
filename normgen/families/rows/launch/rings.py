"""Candidates for sums over rows in one block: persistent, the rows to come in a ring."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import NamedTuple

from normgen.families.rows.launch.clusters import pairs
from normgen.families.rows.launch.schedule import (
    Schedule,
    Shape,
    at_least_one,
    is_narrow,
    power_of_two,
    warps,
)
from normgen.launching.machine import LINE, Machine

PAIRED = 320  # threads of one block, of 4-byte elements, in place of which two do better
WHOLE_SHIFTED = 1024  # vectors of a shifted row of 4-byte elements, beyond which two blocks share it
UNEVEN_ELEMENTS = 40  # of a row in a thread, of two that a block re-reads
EXACT_SHARE, EXACT_THREADS = 0.9, 256  # of a team's places that are taken, and of its block
BYTES, BYTES_TEAM = 64, 64  # elements of 1 byte of a thread, and the fewest threads of a row
SHORT_THREADS = 128  # that have a short row, in vectors of one each
FEW_VECTORS, MORE_VECTORS = (8, 16, 32), 128  # of rows that have one vector a thread
FEW_WARPS = 24  # of a multiprocessor that has such rows
# Vectors of a thread of slanted rows, and threads of a block, which has a multiprocessor to itself; the share
# of threads, and of their places, that must be taken; a thread's vectors where no way has that.
SLANTED_WAYS = ((4, 256), (5, 256), (3, 384), (2, 512), (4, 384))
SLANTED_SHARE, SLANTED_FEW = 0.8, 2
# Threads of a short row whose vectors have 4 bytes, and how many of these each has at most; how many in more
# threads; the vectors of a row.
NARROW_TEAMS, NARROW_VECTORS, NARROW_FROM, NARROW_MOST = ((8, 5), (16, 5), (32, 9), (64, 9)), 7, 32, 1025


def shifted_first(shape: Shape, device: Machine) -> list[Schedule]:
    """Shifted rows whose ring has one place, filled again as soon as the row is in registers. 5119 columns of
    2-byte elements: one sum, 32 elements a thread, 141 us (two rows in the ring 145, pairs of blocks 182),
    two sums in pairs of blocks 191 (195, 32 elements 230); of 4 bytes in pairs 260 and 263 (264, 270)."""
    vectors = -(-shape.length // shape.vector)
    if not shape.exchanges or vectors <= (WHOLE_SHIFTED if shape.whole else 512):
        return []
    if shape.whole or shape.wide_columns > 1 or shape.walked > 4:
        found, blocks = pairs(shape, device), 2 if shape.whole else 3
    else:
        team = warps(vectors, at_least_one(32 // shape.vector))
        found, blocks = [_ring(shape, team, max(1, 256 // team))], 2
    return [replace(each, stages=1, blocks=blocks) for each in found]


def slanted(shape: Shape) -> list[Schedule]:
    """Shifted rows of 2-byte elements whose results go by words of memory: the first way in which every
    thread has all its vectors, or else nearly so, and no thread of a block is idle. us, one sum and two,
    beside shifted vectors: 511 columns - and 141 (156), 767 137 (193) and 138 (228), 1023 136 (146) and 138
    (179), 1279 140 (231), 2047 136 (150) and 152 (182), 2303 134 (206) and 151 (215), 4095 140 (148) and 155
    (192), 5119 136 (140) and 152 (190), 8191 141 (158) and 167 (193); nearly so 639 138 (227) and 153 (272),
    3001 135 (187) and 161 (216), 3583 169 (202), 6143 142 (143) and 163 (197). Of 4 bytes nothing, but for
    3001 columns 138 (153).
    """
    halves = shape.narrowest == 2 and shape.walked == 2 * shape.streams
    if not (shape.slants and halves) or shape.wide_columns > 2 or shape.functions:
        return []
    vectors = -(-shape.length // shape.vector)
    teams = [(items, warps(vectors, items), threads) for items, threads in SLANTED_WAYS]
    busy = [
        (items, team, threads)
        for items, team, threads in teams
        if -(-vectors // team) == items and threads // team * team >= SLANTED_SHARE * threads
    ]
    # (two vectors are little for a thread: 3583 columns 182 us, in 4 of which some are beyond the row 169)
    whole = [way for way in busy if way[0] * way[1] == vectors and way[0] > SLANTED_FEW]
    nearly = [way for way in busy if vectors >= SLANTED_SHARE * way[0] * way[1]]
    _, team, threads = next(iter([*whole, *nearly]), (SLANTED_FEW, warps(vectors, SLANTED_FEW), 512))
    made = _ring(shape, team, max(1, threads // team), reload=True)
    return [replace(made, form="slanted", stages=2, blocks=1)]


def narrow_rings(shape: Shape) -> list[Schedule]:
    """Short rows of 2-byte elements that may be read two at a time: 10 to 18 of them in each thread. us, one
    sum and two, beside words that are cut out, or more threads: 66 columns 137 (235) and 144 (279), 130 125
    (152) and 134 (178), 258 121 (171) and 130 (194), 514 115 (193) and 126 (230), 770 117 (138) and 130
    (165), 1026 121 (112) and 138 (153), 2050 114 (120) and 132 (168).
    """
    pairs_of_halves = (shape.narrowest, shape.vector) == (2, 2) and shape.walked == 2 * shape.streams == 4
    if not pairs_of_halves or not 0 < shape.wide_columns <= 2 or not shape.exchanges or shape.functions:
        return []
    vectors = -(-shape.length // shape.vector)
    if not NARROW_FROM < vectors <= NARROW_MOST:
        return []
    team = next((t for t, most in NARROW_TEAMS if vectors <= t * most), warps(vectors, NARROW_VECTORS))
    made = _ring(shape, team, max(1, 256 // team))
    crowded = shape.wide_columns > 1 and (made.items > NARROW_VECTORS or team > NARROW_TEAMS[-1][0])
    return [replace(made, reload=True)] if crowded else [made]


class _Dealt(NamedTuple):
    """A ring for rows of `above` to `length` columns, with so many sums over rows: threads of a row, rows of
    a block, blocks of a multiprocessor, and whether rows are read again."""

    sums: int
    above: int
    length: int
    team: int
    teams: int
    blocks: int
    reload: bool = False


# Two sums in one block of nearly 512 threads, or four of two rows; one sum in blocks of a row. us, beside
# blocks of 256 threads: two 640 columns 113.6 (116.7), 896 103.6 (104.5), 1088 117.1 (117.9), 1280 105.1
# (110.4), 1408 104.3 (108.7), 1536 101.2 (106.2), 2560 101.9 (102.8, with three stages), 3328 108.5 (113.5),
# 3584 104.1 (114.5), 3840 102.1 (103.5), 4096 103.1 (103.7), 5632 112.5 (114.5), 6144 113.5 (126.2); one 1280
# 101.1 (108.4), 1408 100.8 (110.0), 1536 102.6 (108.9), but 1152 102.0 (100.5). What lies between was no
# faster so.
_DEALT = (
    _Dealt(1, 1152, 1536, 96, 1, 6),
    _Dealt(2, 512, 960, 64, 2, 4),
    _Dealt(2, 1024, 1536, 96, 5, 1),
    _Dealt(2, 2048, 2560, 160, 3, 1),
    _Dealt(2, 3072, 3584, 224, 2, 1),
    _Dealt(2, 3584, 4096, 256, 2, 1),
    _Dealt(2, 5376, 6144, 192, 2, 1, reload=True),
)


def dealt(shape: Shape) -> list[Schedule]:
    """Sums over rows of 2-byte elements that blocks of 256 threads share unevenly: two stages, and 384 to 576
    threads a multiprocessor."""
    halves = shape.narrowest == 2 and shape.walked == 2 * shape.streams == 4 and shape.whole_words
    if not (halves and shape.exchanges) or shape.functions or shape.vector == shape.shifted:
        return []
    for way in _DEALT:
        if way.sums == shape.wide_columns and way.above < shape.length <= way.length:
            return [replace(_ring(shape, way.team, way.teams, way.reload), blocks=way.blocks, stages=2)]
    return []


class _Way(NamedTuple):
    """A ring of one block: elements of a thread, whether the row is read again, and what rows share loaded
    late."""

    elements: int
    reload: bool = False
    late: bool = False


_HALF, _HALF_AGAIN, _HALF_LATE = _Way(8), _Way(8, reload=True), _Way(8, reload=True, late=True)
_ONE, _USUAL, _TWICE = _Way(1), _Way(16), _Way(32)
_TWICE_AGAIN, _TWICE_LATE = _Way(32, reload=True), _Way(32, reload=True, late=True)


def rings(shape: Shape) -> tuple[list[Schedule], ...]:
    """Rings of one block: those that measured best, the next best, and the rest.

    Two sums over rows of 2-byte elements have two rows a block, which share a barrier: 0.91 of a triad at
    4096 columns, where two blocks of one row reach 0.77. Elements of 4 bytes are 8 a thread, and rows of 128
    threads or more have a block each: 0.95 to 0.99 of a triad with one sum from 1024 to 4096 columns, with 16
    a thread 0.88 to 0.91; with two sums 0.98 and 0.77 at 4096. Blocks are whole groups of four warps:
    two rows of 192 threads 80 us, one of them 86.
    """
    rest = [_TWICE, _TWICE_AGAIN, _TWICE_LATE]
    ways = [[_USUAL], [_HALF], rest]
    if is_narrow(shape):
        ways = [[_TWICE], [_USUAL], [_HALF, *rest]]
    elif _all_whole(shape):
        ways = [[_HALF, _HALF_AGAIN, _HALF_LATE], [_USUAL], rest]
    return tuple([_ring_of(shape, way) for way in some] for some in ways)


def _ring_of(shape: Shape, way: _Way) -> Schedule:
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(way.elements // shape.vector)
    team = power_of_two(-(-vectors // items)) if vectors <= 32 * items else warps(vectors, items)
    if exact := _exact_team(shape, vectors, items, team):
        return _ring(shape, *exact, way.reload, way.late)
    # neighbours read whole lines of memory, or sectors: 64 channels last 242 us where others took 184
    run = (LINE if shape.wide_columns else 64) // (shape.vector * at_least_one(shape.narrowest))
    team = max(team, min(32, power_of_two(vectors), power_of_two(at_least_one(run))))
    threads = 512 if shape.wide_columns > 1 and not shape.whole and team > 128 else 256
    threads = 2 * team if team == 192 else threads
    threads = 128 if is_narrow(shape) or (_all_whole(shape) and team >= 128) else threads
    return _ring(shape, team, max(1, threads // team), way.reload, way.late)


def _exact_team(shape: Shape, vectors: int, items: int, usual: int) -> tuple[int, int] | None:
    """Threads of a team and teams of a block, where nothing is exchanged within a row and the usual team, of
    whole warps or a part of one, has many threads with less than their share: 320 channels last in 20 threads
    and not in 32.
    """
    count = -(-vectors // usual)
    if shape.exchanges or shape.vector == shape.shifted or vectors > EXACT_SHARE * usual * count:
        return None
    run = LINE // (shape.vector * at_least_one(shape.narrowest))
    for each in range(items, 0, -1):
        team = -(-vectors // each)
        quantum = 32 // gcd(team, 32)  # blocks are whole warps
        if team >= run and team * quantum <= EXACT_THREADS and vectors > EXACT_SHARE * team * each:
            return team, EXACT_THREADS // (team * quantum) * quantum
    return None


def _all_whole(shape: Shape) -> bool:
    """Whether rows are of 4-byte elements, as whole vectors, and what is accumulated has a value for each."""
    return shape.of_floats and shape.vector != shape.shifted and bool(shape.wide_columns)


def statistics(shape: Shape) -> list[Schedule]:
    """One vector a thread where rows of one operand, short enough for a block, are accumulated and nothing is
    exchanged: moments of channels that come last, us of the whole forward with 16 elements a thread and with
    16 bytes: (8, 320, 64, 64) of 2 bytes 29.8 and 28.2, of 4 46.3 and 44.1, 512 channels of 50176 pixels 51.5
    and 49.4, 89.0 and 87.2. More pixels: the same within 1 %.
    """
    alone = not shape.exchanges and shape.streams == 1 and bool(shape.wide_columns) and shape.whole_words
    return [_ring_of(shape, _ONE)] if alone and shape.length <= SHORT_THREADS * shape.vector else []


def one_vector(shape: Shape) -> list[Schedule]:
    """One vector a thread, and 24 warps a multiprocessor, not 16, where a warp or a part of one has the row:
    norms of attention heads. us of 2^26 elements of 2 bytes, one sum and two, in two blocks of 256 threads
    and in these: 64 columns 109.5 and 101.1, 117.6 and 104.6; 128 107.5 and 100.7, 108.3 and 103.7; 256 107.2
    and 101.1, 102.5 and 103.8; 32768 rows of 256 19.2 and 18.9, 20.6 and 20.1. Of 2^25 of 4 bytes, one sum:
    32 columns 109.0 and 101.1, 64 108.3 and 100.7, 128 105.4 and 101.0; two: 128 100.8 and 103.3, so that
    those are left as they are. One sum and 128 vectors likewise, two rows a block: 32768 rows of 1024 of 2
    bytes 54.7 and 53.6, of 512 of 4 bytes 53.7 and 53.0 (one row a block 58.1; 64 vectors as before).
    """
    vectors, one = -(-shape.length // shape.vector), shape.wide_columns == 1
    even = vectors in FEW_VECTORS or (one and vectors == MORE_VECTORS)
    plain = shape.streams == 2 and shape.whole_words and not (shape.functions or shape.parts or shape.picked)
    sums = one or (shape.wide_columns > 1 and not shape.of_floats)
    if not (even and plain and sums and shape.exchanges):
        return []
    threads = max(128, 2 * vectors)
    return [replace(_ring(shape, vectors, threads // vectors), blocks=32 * FEW_WARPS // threads, stages=2)]


def of_bytes(shape: Shape, device: Machine) -> list[Schedule]:
    """Rows of bytes of which little is accumulated, bound by their instructions: 9.3 an element in the first
    pass over grouped fp8 where a thread has 32 of them, 8.0 where it has 64. us, of that pass as it was
    edited by hand: 4096 columns 30.2 and 27.3, 8192 55.5 and 48.1; 5120 in 160 threads of 32 39.9, in two
    rows of 192 a block 40.9. For sm_80, which has many instructions for each, 64 of them spill.
    """
    able = device.clusters and is_narrow(shape) and shape.exchanges
    if not able or shape.vector == shape.shifted:
        return []
    vectors = -(-shape.length // shape.vector)
    for items in range(at_least_one(BYTES // shape.vector), 1, -1):
        team = warps(vectors, items)
        if team >= BYTES_TEAM and vectors >= EXACT_SHARE * team * items:
            return [replace(_ring(shape, team, 1), stages=3)]
    return []


def uneven(shape: Shape, device: Machine) -> list[Schedule]:
    """For sums over rows that are no multiple of 128 threads with 16 elements each.

    Two sums, 2-byte elements: two rows a block, each in 128 or 192 threads, re-read from the ring (0.91 of a
    triad at 5120 and 7168 columns, in pairs of blocks 0.84 and 0.83). One sum: pairs of blocks (0.90 at 5120,
    alone 0.78), and so two sums of 4-byte elements at 5120 (240 us, alone 252, skewed 250).
    """
    vectors = -(-shape.length // shape.vector)
    team = warps(vectors, at_least_one(16 // shape.vector))
    if team <= 128 or team % 128 == 0 or team > 512:
        return []
    if shape.whole:
        return pairs(shape, device) if team == PAIRED and shape.wide_columns > 1 else []
    if shape.wide_columns == 1:
        return pairs(shape, device) if team > 256 else []
    for threads in (128, 192):
        elements = -(-vectors // threads) * shape.vector
        if elements <= UNEVEN_ELEMENTS:
            return [_ring(shape, threads, 2, reload=elements > 24)]
    return []


def _ring(shape: Shape, team: int, teams: int, reload: bool = False, late: bool = False) -> Schedule:
    items = -(-shape.length // (shape.vector * team))
    return Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late)
