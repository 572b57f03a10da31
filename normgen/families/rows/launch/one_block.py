"""Candidates for rows in the registers of a warp or of one block, where nothing is accumulated over rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from normgen.families.rows.launch.fitting import HELD_BYTES
from normgen.families.rows.launch.pipelines import held
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.call import WORD
from normgen.launching.facts import power_of_two
from normgen.launching.machine import WARP

WHOLE_ELEMENTS = 48  # of a row in a thread of a block of 128, 256, ... threads
WHOLE_HALVED = 56  # the same where a block without idle threads matters more
WHOLE_SHARE, REALIGNED_SHARE = 0.95, 0.8  # of the places for vectors that are taken, at least
LONG_IMAGE = 8192  # elements
FEW_COLUMNS = 1024  # and fewer: 8 elements of 2 bytes per thread are enough
FULL_LANES = 16  # elements of a lane, of one operand, below which what threads do once per row counts
# Threads of a short misaligned row, and vectors of each at most, of one operand and of several: as few warps
# as may be, since each has two ends of its own.
CUT = ((32, 6, 4), (64, 6, 6))
# Elements of all operands in a lane, and vectors of a row, where a row may be read 8 bytes at once.
NARROW_ELEMENTS, NARROW_VECTORS = 40, 512
# Moments of 2-byte elements: the fewest lanes that share the vectors of a row evenly, with so many each; rows
# that 32 do not share evenly, up to so many vectors; the most.
EVEN_VECTORS, UNEVEN_VECTORS, MOST_VECTORS = ((16, (5, 7)), (32, (5, 6, 7))), 136, 288
HEAD = 128  # columns: of an attention head
TWO_ROWS = 192  # threads of a row, of which a block has two
UNEVEN_THREADS = 96


def one_shot(shape: RowShape) -> list[RowSchedule]:
    """A row in as many threads as give each 16 elements, or 32 where it is visited more often."""
    vectors, items = shape.vectors, _usual_items(shape)
    if vectors > WARP * items:
        found = _long_teams(shape, vectors, items)
    else:
        team = _short_team(shape, vectors, items) if shape.exchanges else min(WARP, power_of_two(vectors))
        found = [(team, -(-vectors // team))]
    return [
        RowSchedule("registers", shape.vector, team, max(1, 128 // team), count, late=late)
        for team, count in found
        for late in shape.lates
    ]


def _usual_items(shape: RowShape) -> int:
    """Vectors of a thread: 16 elements, or 32 where a row is visited more often."""
    return shape.items(32 if shape.deep else 16)


def _long_teams(shape: RowShape, vectors: int, items: int) -> list[tuple[int, int]]:
    """Whole warps for a row, and the vectors of each thread: so many, or more or fewer of them."""
    counts = [items, 2 * items, 4 * items] if shape.deep or vectors > 256 else [1, items]
    # where several operands are held
    counts += [k for k in (items // 2, items // 4) if k and k not in counts]
    half = at_least_one(items // 2)
    if _halved(shape) and vectors % warps(vectors, items) and warps(vectors, half) <= 512:
        counts = [half]
    # one block of 1024 threads, where it is full
    whole = shape.whole and shape.walked <= 4 and (shape.moments or not shape.deep)
    most = {k: 1024 if whole and k * shape.vector * shape.walked >= HELD_BYTES else 512 for k in counts}
    return [(warps(vectors, k), k) for k in counts if warps(vectors, k) <= most[k]]


def _short_team(shape: RowShape, vectors: int, items: int) -> int:
    """Lanes of a warp for a short row: those that leave the fewest without a vector, of them those with
    enough elements each (`_enough`), of them the most. Runs of 64 bytes and more are read at full speed."""
    run = 64 // (shape.vector * at_least_one(shape.narrowest))
    teams = [t for t in (32, 16, 8, 4) if t <= power_of_two(vectors) and t * items >= vectors and t >= run]
    enough = _enough(shape)

    def wasted(team: int) -> tuple[int, int]:
        each = -(-vectors // team)
        return each * team, -min(each * shape.vector, enough)

    return min(teams or [min(WARP, power_of_two(vectors))], key=wasted)


def _enough(shape: RowShape) -> int:
    """Elements of a lane below which what threads do once per row counts; 0 where that was not seen."""
    brief = shape.moments and shape.walked == 4 and shape.length <= HEAD
    return FULL_LANES if shape.streams == 1 and (shape.walked == 2 or brief) else 0


def _halved(shape: RowShape) -> bool:
    """Whether threads without a full share of a row cost more than they save: with exponentials of 2-byte
    elements."""
    return bool(shape.held) and not shape.whole


def few_warps(shape: RowShape) -> list[RowSchedule]:
    """A short row of 2-byte elements in fewer threads than one has usually, what rows share loaded late:
    where vectors are narrow or rows misaligned, and of moments and long single sums.
    """
    if not shape.exchanges or shape.narrowest != 2:
        return []
    vectors, team = shape.vectors, 0
    if shape.cut:
        team = next((t for t, *most in CUT if vectors <= t * most[shape.streams > 1]), 0)
    elif shape.vector == 4:
        team = _of_narrow(shape, vectors)
    elif shape.whole_words and shape.walked == 2 and not (shape.parts or shape.picked or shape.in_pieces):
        team = _of_words(shape, vectors)
    return [held(shape, team, teams=max(1, 128 // team))] if team else []


def _of_narrow(shape: RowShape, vectors: int) -> int:
    if not WARP * _usual_items(shape) < vectors <= NARROW_VECTORS:
        return 0
    each = shape.vector * shape.streams
    return next((t for t in (32, 64) if -(-vectors // t) * each <= NARROW_ELEMENTS), 0)


def _of_words(shape: RowShape, vectors: int) -> int:
    if not shape.moments or shape.functions:
        return 64 if 256 < vectors <= MOST_VECTORS else 0
    for lanes, counts in EVEN_VECTORS:
        if vectors in [lanes * count for count in counts]:
            return lanes
    if not WARP * _usual_items(shape) < vectors <= MOST_VECTORS:
        return 0
    return 32 if vectors <= UNEVEN_VECTORS else 64


def light_blocks(shape: RowShape) -> list[RowSchedule]:
    """One sum over rows of one operand of 2-byte elements, 16 of them a thread. Where some of 96 threads have
    less, what rows share is loaded late."""
    items, vectors = shape.items(16), shape.vectors
    if shape.streams > 1 or shape.whole or shape.cut or shape.deep or shape.held or shape.functions:
        return []
    team = warps(vectors, items)
    if shape.length <= FEW_COLUMNS or team not in (UNEVEN_THREADS, 128, TWO_ROWS) or not shape.exchanges:
        return []
    late = team == UNEVEN_THREADS and vectors < team * items
    return [RowSchedule("registers", shape.vector, team, 2 if team == TWO_ROWS else 1, items, late=late)]


def whole_blocks(shape: RowShape) -> list[RowSchedule]:
    """Thread groups of a multiple of 128 threads, where the usual one is none, or where rows are
    misaligned: then as few warps as may be, since each has two ends of its own. What rows share is loaded
    when it is used. Long rows with params for parts of them have such thread groups too.
    """
    vectors, items = shape.vectors, _usual_items(shape)
    even = warps(vectors, items) % 128 == 0 or (shape.parts and shape.length > LONG_IMAGE)
    if vectors <= WARP * items or (even and not shape.cut):
        return []
    share = REALIGNED_SHARE if shape.cut else WHOLE_SHARE
    most = WHOLE_HALVED if _halved(shape) else WHOLE_ELEMENTS
    for threads in (128, 256, 384, 512):
        count = -(-vectors // threads)
        if _halved(shape) and vectors % threads and not shape.cut:
            continue
        if count * shape.vector <= most and vectors >= share * threads * count:
            return [held(shape, threads)]
    return []


# ------------------------------------------------------------------------------------------------ row tiles

LANES = (1, 2, 4, 8, 16, 32)  # of a row that a block stages through shared memory
# Elements of all walked operands per lane, at most, of each of these; and with which a row takes so few lanes
# by itself: what a thread does once per row, and what lanes exchange, count less the more it has. With wide
# accesses lanes have little to do for an element.
_MOST, _MANY, _FEW = (80,) * len(LANES), (40, 66, 66, 50, 50, 80), (40, 40, 40, 40, 40, 68)
# By the bytes of an element and how many are read at once: elements per lane, and the fewest and the most
# columns: longer rows keep realigned vectors busy.
_USUAL = {
    (2, 1): (_MANY, 1, 640),
    (2, 2): (_FEW, 34, 2176),
    (4, 1): (_FEW, 33, 640),
    (4, 2): (_FEW, 130, 256),
}
ROW_TILE_WARPS = (4, 8, 16)  # of a block: the fewest are the fastest


def row_tiles(shape: RowShape) -> list[RowSchedule]:
    """Short rows that lie side by side and begin anywhere, of which a block moves several together: the
    fewest lanes for a row that have not too many elements each."""
    elements, least, most = _USUAL.get((shape.narrowest, shape.vector), (_MOST, 1, 0))
    return list(islice(any_row_tile(shape, elements), 1)) if least <= shape.length <= most else []


def any_row_tile(shape: RowShape, most: Sequence[int] = _MOST) -> Iterator[RowSchedule]:
    """All lanes that may have a row, each with so many elements at most, the fewest first. What rows share is
    loaded late first: registers for it would leave room for fewer blocks.
    """
    for lanes, elements in zip(LANES, most, strict=True) if shape.row_tile else ():
        items = -(-shape.length // (shape.vector * lanes))
        if items * shape.vector * shape.streams > elements:
            continue
        for count, late in product(ROW_TILE_WARPS, reversed(shape.lates)):
            teams = WARP // lanes * count
            if teams * shape.length * shape.narrowest % WORD == 0:
                yield RowSchedule("row_tile", shape.vector, lanes, teams, items, late=late)
