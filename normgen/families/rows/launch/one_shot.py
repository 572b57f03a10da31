"""Candidates for rows in the registers of a warp or of one block, where nothing is accumulated over rows."""

from __future__ import annotations

from normgen.families.rows.launch.clusters import HELD_BYTES, lates
from normgen.families.rows.launch.schedule import Schedule, Shape, at_least_one, is_deep, power_of_two, warps

WHOLE_ELEMENTS = 48  # of a row in a thread of a block of 128, 256, ... threads
WHOLE_HALVED = 56  # of them where a block without idle threads matters more: 7168 columns 114 us, 119 in 224
WHOLE_SHARE, SHIFTED_SHARE = 0.95, 0.8  # of the places for vectors that are taken, at least
LONG_IMAGE = 8192  # elements
FEW_COLUMNS = 1024  # and fewer: 8 elements of 2 bytes a thread are 0.98 to 0.99 of a copy
FULL_LANES = 16  # elements of a lane: rows of 256 in 16 lanes 11.5 us, in 32 11.8
# Threads of a short row whose vectors are cut out of words, and how many each has at most, of one operand and
# of several: as few warps as may be, since each has two ends of its own. us: one sum over 1023 columns in 32
# threads 84, in 128 136; 1535 in 32 85, in 64 87, in 192 136; 2047 in 64 84, in 256 132; moments of 3001 in
# 64 95, in 96 99, in 128 106; two operands of 1535 in 64 166, in 96 189; of 3001 in 64 167, in 128 176.
CUT = ((32, 6, 4), (64, 6, 6))
# Elements of all operands in a lane, where a row may be read 8 bytes at once: one sum over 772 columns in 32
# threads 84 us, in 224 125; moments of 1028 in 32 88, in 160 131; one sum over 1540 in 64 83, in 128 86.
NARROW_ELEMENTS, NARROW_VECTORS = 40, 512
# Moments of 2-byte elements: the fewest lanes that share the vectors of a row evenly, with so many each; rows
# that 32 do not share evenly, up to so many vectors; the most. us: 640 columns in 16 lanes 69, in 32 79; 896
# in 16 69, in 32 78; 1280 in 32 69, in 160 94; 1032 in 32 72, in 64 85, in 160 111; 1408 in 64 74, in 32 83;
# 1664 in 64 71, in 32 80, in 128 80; 2056 in 64 74, in 96 76, in 288 104. One sum over 2056 68 (73).
EVEN_VECTORS, UNEVEN_VECTORS, MOST_VECTORS = ((16, (5, 7)), (32, (5, 6, 7))), 136, 288
HEAD = 128  # columns: of an attention head
TWO_ROWS = 192  # threads of a row, of which a block has two
UNEVEN_THREADS = 96


def one_shot(shape: Shape) -> list[Schedule]:
    """A row in as many threads as give each 16 elements, or 32 where it is visited more often."""
    vectors = -(-shape.length // shape.vector)
    items = _usual_items(shape)
    if vectors <= 32 * items:
        team = _short_team(shape, vectors, items) if shape.exchanges else min(32, power_of_two(vectors))
        found = [(team, -(-vectors // team))]
    else:
        found = _long_teams(shape, vectors, items)
    return [_alone(shape, team, count, late) for team, count in found for late in lates(shape)]


def _alone(shape: Shape, team: int, items: int, late: bool) -> Schedule:
    """A row in a team of one block, which has several teams where they are small."""
    return Schedule("registers", shape.vector, team, max(1, 128 // team), items, 0, late=late)


def _long_teams(shape: Shape, vectors: int, items: int) -> list[tuple[int, int]]:
    """Whole warps for a row, and the vectors of each thread: so many, or more or fewer of them."""
    counts = [items, 2 * items, 4 * items] if is_deep(shape) or vectors > 256 else [1, items]
    # where several operands are held
    counts += [k for k in (items // 2, items // 4) if k and k not in counts]
    half = at_least_one(items // 2)
    if _halved(shape) and vectors % warps(vectors, items) and warps(vectors, half) <= 512:
        counts = [half]
    # one block of 1024: 0.96 and 0.92 of a copy at 32768 f32, in shared memory 0.93, in a ring 0.83
    whole = shape.whole and shape.walked <= 4 and (shape.moments or not is_deep(shape))
    most = {k: 1024 if whole and k * shape.vector * shape.walked >= HELD_BYTES else 512 for k in counts}
    return [(warps(vectors, k), k) for k in counts if warps(vectors, k) <= most[k]]


def few_warps(shape: Shape) -> list[Schedule]:
    """A short row of 2-byte elements in fewer threads than one has usually, what rows share loaded late:
    where vectors are narrow or cut out of words, and of moments and long single sums.
    """
    if not shape.exchanges or shape.narrowest != 2:
        return []
    vectors, team = -(-shape.length // shape.vector), 0
    if _is_cut(shape):
        team = next((t for t, *most in CUT if vectors <= t * most[shape.streams > 1]), 0)
    elif shape.vector == 4:
        team = _of_narrow(shape, vectors)
    elif shape.whole_words and shape.walked == 2 and not (shape.parts or shape.picked or shape.in_pieces):
        team = _of_words(shape, vectors)
    return [_alone(shape, team, -(-vectors // team), bool(shape.shared))] if team else []


def _of_narrow(shape: Shape, vectors: int) -> int:
    if not 32 * _usual_items(shape) < vectors <= NARROW_VECTORS:
        return 0
    each = shape.vector * shape.streams
    return next((t for t in (32, 64) if -(-vectors // t) * each <= NARROW_ELEMENTS), 0)


def _of_words(shape: Shape, vectors: int) -> int:
    if not shape.moments or shape.functions:
        return 64 if 256 < vectors <= MOST_VECTORS else 0
    for lanes, counts in EVEN_VECTORS:
        if vectors in [lanes * count for count in counts]:
            return lanes
    if not 32 * _usual_items(shape) < vectors <= MOST_VECTORS:
        return 0
    return 32 if vectors <= UNEVEN_VECTORS else 64


def _usual_items(shape: Shape) -> int:
    """Vectors of a thread: 16 elements, or 32 where a row is visited more often."""
    return at_least_one((32 if is_deep(shape) else 16) // shape.vector)


def _is_cut(shape: Shape) -> bool:
    """Whether vectors are cut out of the words around them."""
    return shape.vector == shape.shifted


def light_blocks(shape: Shape) -> list[Schedule]:
    """One sum over rows of one operand of 2-byte elements, 16 of them a thread: 1536 columns 50.6 us and 2048
    66.3, with 8 a thread 53.3 and 68.5; 3000 columns, two rows a block, 50.9, in 128 threads with 24 52.3.
    Where some of 96 threads have less, what rows share is loaded late: 1280 columns 67.3, early 72.2."""
    items, vectors = at_least_one(16 // shape.vector), -(-shape.length // shape.vector)
    if shape.streams > 1 or shape.whole or _is_cut(shape) or is_deep(shape) or shape.held or shape.functions:
        return []
    team = warps(vectors, items)
    if shape.length <= FEW_COLUMNS or team not in (UNEVEN_THREADS, 128, TWO_ROWS) or not shape.exchanges:
        return []
    late = team == UNEVEN_THREADS and vectors < team * items
    return [Schedule("registers", shape.vector, team, 2 if team == TWO_ROWS else 1, items, 0, late=late)]


def whole_blocks(shape: Shape) -> list[Schedule]:
    """Teams of a multiple of 128 threads, where the usual one is none, or where rows are shifted: then as few
    warps as may be, since each has two ends of its own.

    5 vectors in each of 128 threads: 5120 columns with one sum 0.99 of a copy where 2 in 320 reach 0.94,
    with moments 0.93 where 4 in 160 reach 0.90; shifted rows of 5119 columns 0.95 where 2 in 320 reach 0.79.
    What rows share is loaded when it is used. Of long rows with params for parts of them, 256 of 10240
    elements took 6.18 us in 320 threads with 32, 6.45 in 256 with 40.
    """
    vectors = -(-shape.length // shape.vector)
    items = _usual_items(shape)
    shifted = _is_cut(shape)
    even = warps(vectors, items) % 128 == 0 or (shape.parts and shape.length > LONG_IMAGE)
    if vectors <= 32 * items or (even and not shifted):
        return []
    share = SHIFTED_SHARE if shifted else WHOLE_SHARE
    most = WHOLE_HALVED if _halved(shape) else WHOLE_ELEMENTS
    for threads in (128, 256, 384, 512):
        count = -(-vectors // threads)
        if _halved(shape) and vectors % threads and not shifted:
            continue
        if count * shape.vector <= most and vectors >= share * threads * count:
            late = bool(shape.shared)
            return [Schedule("registers", shape.vector, threads, 1, count, 0, late=late)]
    return []


def _halved(shape: Shape) -> bool:
    """Whether threads without a full share of a row cost more than they save: exponentials of 3000 columns of
    2 bytes take 55 us with 16 elements a thread, 62 with more."""
    return bool(shape.held) and not shape.whole


def _short_team(shape: Shape, vectors: int, items: int) -> int:
    """Lanes of a warp for a short row: those that leave the fewest without a vector, of them those with
    enough elements each (`_enough`), of them the most. Runs of 64 bytes and more are read at full speed; of
    16 bytes (8 lanes with 2 each) 151 columns took 195 us where a warp takes 137."""
    run = 64 // (shape.vector * at_least_one(shape.narrowest))
    teams = [t for t in (32, 16, 8, 4) if t <= power_of_two(vectors) and t * items >= vectors and t >= run]
    enough = _enough(shape)

    def wasted(team: int) -> tuple[int, int]:
        each = -(-vectors // team)
        return each * team, -min(each * shape.vector, enough)

    return min(teams or [min(32, power_of_two(vectors))], key=wasted)


def _enough(shape: Shape) -> int:
    """Elements of a lane, of one operand, below which what threads do once a row counts. us of 2^27 elements
    of 2 bytes in 8 lanes and in 4, 64 columns: moments 141.2 and 132.6, one sum 133.5 and 130.4. Moments of 4
    bytes: 64 columns in 16 lanes 138.0, in 4 134.5; 128 in 32 137.1, in 8 135.5; 2^25, 32 columns in 8 70.7,
    in 4 68.0; 256 the same. (With 32 elements moments of 128 columns of bfloat16 took 131.4 for 136.9, but
    4096 rows of them 3.81 for 3.46, and 1024 of 512 columns 4.04 for 3.54.)
    """
    brief = shape.moments and shape.walked == 4 and shape.length <= HEAD
    return FULL_LANES if shape.streams == 1 and (shape.walked == 2 or brief) else 0
