"""The schedules that a kernel of the rows family may have, in order of preference: form, team, vectors, ring.

The rules come from measurements on an H200 (bf16 unless said; fractions of a copy of the same bytes):

- Vectors of 16 bytes of the narrowest operand, as far as length, strides and addresses allow.
- Forward: one-shot grid with the row in registers. One reduction: 16 elements a thread (0.98 at 4096), a warp
  a row up to 512 columns. Moments or several reductions: a warp a row up to 1024, then 32 elements a thread,
  the fewest warps that keep two blocks a multiprocessor (0.98 at 4096, 0.93 at 8192, 0.96 at 16384).
- Column sums: persistent blocks, 16 elements a thread (8 of 4 bytes), a ring of 64 to 96 KB a multiprocessor
  (0.88 to 0.99 at 1024 to 8192). Any spill is decisive (0.34 with 480 bytes): a candidate's registers are
  estimated first.
- Column sums of more than 8192 columns: the same in a cluster of blocks, each with a slice of 8192 or 16384
  columns (0.94 to 0.68 at 16384 to 262144; one pass for each level reaches 0.34 to 0.07).
- Wider rows: re-read from the ring instead of kept in registers, then one pass over the row per level, from a
  copy in shared memory (0.94 at 32768) or from memory (0.68 to 0.91).
- Forward, long rows: with one exchange a copy in shared memory, then the registers of a cluster; with
  exponentials those; with moments a ring, in one block (0.88 at 32768) or in clusters (see `_long`).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import NamedTuple

from normgen.runtime.candidates_any_length import copies
from normgen.runtime.candidates_clusters import (
    HELD_BYTES,
    cluster_rings,
    clusters,
    image_rows,
    lates,
    long_rings,
    pairs,
    rings_alone,
    skewed,
    skewed_sums,
    whole_rows,
    wide_pair,
)
from normgen.runtime.launches import Device
from normgen.runtime.schedule import (
    LINE,
    Schedule,
    Shape,
    at_least_one,
    is_deep,
    is_narrow,
    power_of_two,
    warps,
)

WHOLE_ELEMENTS = 48  # of a row in a thread of a block of 128, 256, ... threads
WHOLE_SHARE, SHIFTED_SHARE = 0.95, 0.8  # of the places for vectors that are taken, at least
STAGED_VECTORS = 4096  # of a row, beyond which a single copy of one in shared memory is not enough
UNEVEN_ELEMENTS = 40  # of a row in a thread, of two that a block re-reads
SKEWED_LENGTH = (
    98304  # beyond, one sum of 2-byte elements: 131072 columns 136 us, in registers 140; 65536 138 and 136
)
EXACT_SHARE, EXACT_THREADS = 0.9, 256  # of a team's places that are taken, and of its block
ALONE = 8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84, 0.78


def tiers(shape: Shape, device: Device) -> list[list[Schedule]]:
    """Candidates in order of preference; those of one tier differ in how busy they keep the memory."""
    if not shape.shifted:
        return _tiers(shape, device)
    wide = replace(shape, vector=shape.shifted, whole_words=False)
    shifted = [[replace(each, shifted=True) for each in tier] for tier in _tiers(wide, device)]
    return shifted if shape.splits else [*shifted, *_tiers(shape, device)]


def _tiers(shape: Shape, device: Device) -> list[list[Schedule]]:
    images = _each(image_rows(shape, device))
    if shape.one_shot:
        narrow = shape.vector * shape.narrowest < 4  # elements one by one: 7 x 7 places 11.9 us, not 17
        short = _one_shot(shape)
        return [*images, *(_each(short) if narrow else [short]), *_each(whole_rows(shape, device))]
    if not shape.columns:
        long = _each(_long(shape, device))
        short = [*_whole_blocks(shape), *_one_shot(shape)]
        # exponentials of 16384 columns in pairs of blocks: 0.97 of a copy, in one block 0.93
        crowded = shape.held and shape.length > ALONE and not shape.whole
        return [*images, *long, short] if crowded else [*images, short, *long]
    (first, second, rest), wide = _rings(shape), cluster_rings(shape, device)
    if shape.length > ALONE:
        return _each([*skewed_sums(shape, device), *wide, *first, *second, *rest])
    if shape.vector == shape.shifted:
        return _each([*_shifted_first(shape, device), *first, *second, *rest, *wide])
    best = [*_uneven(shape, device), *first, *pairs(shape, device), *second]
    return [*_each(wide_pair(shape, device)), best, *_each([*rest, *wide])]


def _each(found: list[Schedule]) -> list[list[Schedule]]:
    return [[schedule] for schedule in found]


def _one_shot(shape: Shape) -> list[Schedule]:
    vectors = -(-shape.length // shape.vector)
    deep = is_deep(shape)
    items = at_least_one((32 if deep else 16) // shape.vector)
    if vectors <= 32 * items:
        team = _short_team(shape, vectors, items) if shape.exchanges else min(32, power_of_two(vectors))
        found = [(team, -(-vectors // team))]
    else:
        counts = [items, 2 * items, 4 * items] if deep or vectors > 256 else [1, items]
        # where several operands are held
        counts += [k for k in (items // 2, items // 4) if k and k not in counts]
        half = at_least_one(items // 2)
        if _halved(shape) and vectors % warps(vectors, items) and warps(vectors, half) <= 512:
            counts = [half]
        # one block of 1024: 0.96 and 0.92 of a copy at 32768 f32, in shared memory 0.93, in a ring 0.83
        whole = shape.whole and shape.walked <= 4 and (shape.moments or not is_deep(shape))
        most = {k: 1024 if whole and k * shape.vector * shape.walked >= HELD_BYTES else 512 for k in counts}
        found = [(warps(vectors, k), k) for k in counts if warps(vectors, k) <= most[k]]
    out = []
    for team, count in found:
        threads = max(team, 128)
        teams = threads // team if team < 128 else 1
        for late in lates(shape):
            out.append(Schedule("registers", shape.vector, team, teams, count, 0, late=late))
    return out


def _whole_blocks(shape: Shape) -> list[Schedule]:
    """Teams of a multiple of 128 threads, where the usual one is none, or where rows are shifted: then as few
    warps as may be, since each has two ends of its own.

    5 vectors in each of 128 threads: 5120 columns with one sum 0.99 of a copy where 2 in 320 reach 0.94,
    with moments 0.93 where 4 in 160 reach 0.90; shifted rows of 5119 columns 0.95 where 2 in 320 reach 0.79.
    What rows share is loaded when it is used.
    """
    vectors = -(-shape.length // shape.vector)
    items = at_least_one((32 if is_deep(shape) else 16) // shape.vector)
    shifted = shape.vector == shape.shifted
    if vectors <= 32 * items or (warps(vectors, items) % 128 == 0 and not shifted):
        return []
    share = SHIFTED_SHARE if shifted else WHOLE_SHARE
    for threads in (128, 256, 384, 512):
        count = -(-vectors // threads)
        if _halved(shape) and vectors % threads and not shifted:
            continue
        if count * shape.vector <= WHOLE_ELEMENTS and vectors >= share * threads * count:
            late = bool(shape.shared)
            return [Schedule("registers", shape.vector, threads, 1, count, 0, late=late)]
    return []


def _halved(shape: Shape) -> bool:
    """Whether threads without a full share of a row cost more than they save: exponentials of 3000 columns of
    2 bytes take 55 us with 16 elements a thread, 62 with more."""
    return bool(shape.held) and not shape.whole


def _long(shape: Shape, device: Device) -> list[Schedule]:
    """For long rows of a kernel without sums over rows, in registers or a ring.

    None where rows are read once, or where passes over copies in shared memory do as well: with one exchange,
    0.95 to 0.97 of a copy.
    With one exchange and with exponentials a cluster's registers do best. Moments pass over a row more often,
    and come through a ring: 0.85 of a copy at 65536 columns, in registers 0.76, but those of 4-byte elements
    0.95 in registers at 16384 and 0.87 at 65536, in a ring 0.90 and 0.83.
    """
    if not shape.rewalked:
        return []
    one_shot = clusters(shape, device)
    if shape.moments:
        rings = [*rings_alone(shape), *long_rings(shape, device)]
        crowded = rings and rings[0].cluster >= 8 and rings[0].items * shape.vector > 32
        skew = skewed(shape, device) if crowded and not shape.functions else []
        brief = [s for s in one_shot if shape.whole and s.cluster <= 8 and s.threads == 256]
        return [*(s for s in brief if s.items * shape.vector <= 32), *skew, *rings]
    vectors = -(-shape.length // shape.vector)
    if not is_deep(shape) and copies(shape, device) > (1 if vectors > STAGED_VECTORS else 0):
        return []
    plain = shape.walked <= 2 and not shape.held and not shape.functions
    skew = skewed(shape, device) if plain and shape.length > SKEWED_LENGTH else []
    return [*skew, *one_shot, *rings_alone(shape), *long_rings(shape, device)]


def _shifted_first(shape: Shape, device: Device) -> list[Schedule]:
    """Shifted rows of 2-byte elements with one sum over rows are better off with 32 elements a thread: 5119
    columns 0.77 of a triad, in pairs of blocks 0.64. With two it is the other way round: 0.51 and 0.55."""
    vectors = -(-shape.length // shape.vector)
    if shape.whole or not shape.exchanges or vectors <= 512:
        return []
    if shape.wide_columns > 1 or shape.walked > 4:
        return pairs(shape, device)
    team = warps(vectors, at_least_one(32 // shape.vector))
    return [_ring(shape, team, max(1, 256 // team))]


class _Way(NamedTuple):
    """A ring of one block: elements of a thread, whether the row is read again, and what rows share loaded
    late."""

    elements: int
    reload: bool = False
    late: bool = False


_PAIRED = {192: 8, 320: 16}  # elements a thread of a pair of blocks, by the threads that one would have
_HALF, _HALF_AGAIN, _HALF_LATE = _Way(8), _Way(8, reload=True), _Way(8, reload=True, late=True)
_USUAL, _TWICE = _Way(16), _Way(32)
_TWICE_AGAIN, _TWICE_LATE = _Way(32, reload=True), _Way(32, reload=True, late=True)


def _rings(shape: Shape) -> tuple[list[Schedule], ...]:
    """Rings of one block: those that measured best, the next best, and the rest.

    Two sums over rows of 2-byte elements have two rows a block, which share a barrier: 0.91 of a triad at
    4096 columns, where two blocks of one row reach 0.77. Elements of 4 bytes are 8 a thread, and rows of 128
    threads or more have a block each: 0.95 to 0.99 of a triad with one sum from 1024 to 4096 columns, with 16
    a thread 0.88 to 0.91; with two sums 0.98 and 0.77 at 4096. Blocks are whole groups of four warps:
    two rows of 192 threads 80 us, one of them 86.

    Rows of bytes of which little is accumulated are bound by their instructions: 12.3 an element where a
    thread has 16 of them, 9.9 where it has 32.
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
    whole = shape.walked == 4 * shape.streams > 0 and shape.vector != shape.shifted
    return whole and bool(shape.wide_columns)


def _uneven(shape: Shape, device: Device) -> list[Schedule]:
    """For sums over rows that are no multiple of 128 threads with 16 elements each.

    Two sums, 2-byte elements: two rows a block, each in 128 or 192 threads, re-read from the ring (0.91 of a
    triad at 5120 and 7168 columns, in pairs of blocks 0.84 and 0.83). One sum: pairs of blocks (0.90 at 5120,
    alone 0.78), and so two sums of 4-byte elements at 5120 (240 us, alone 252). At 3000 those are 8 a thread
    of the pair: 147 us, alone 167.
    """
    vectors = -(-shape.length // shape.vector)
    team = warps(vectors, at_least_one(16 // shape.vector))
    if team <= 128 or team % 128 == 0 or team > 512:
        return []
    if shape.whole:
        elements = _PAIRED.get(team, 0) if shape.wide_columns > 1 else 0
        return pairs(shape, device, elements) if elements else []
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


def _short_team(shape: Shape, vectors: int, items: int) -> int:
    """Lanes of a warp for a short row: those that leave the fewest without a vector, of them the most. Runs
    of 64 bytes and more are read at full speed; of 16 bytes (8 lanes with 2 each) 151 columns took 195 us
    where a warp takes 137."""
    run = 64 // (shape.vector * at_least_one(shape.narrowest))
    teams = [t for t in (32, 16, 8, 4) if t <= power_of_two(vectors) and t * items >= vectors and t >= run]
    return min(teams or [min(32, power_of_two(vectors))], key=lambda team: -(-vectors // team) * team)
