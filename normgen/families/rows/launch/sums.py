"""Candidates for sums over rows in one block: persistent, the rows to come in a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from normgen.families.rows.launch.cluster_sums import (
    cluster_pipelines,
    fourths,
    overlapped_sums,
    short_sums,
    wide_pair,
)
from normgen.families.rows.launch.pipelines import ALONE, Way, each_alone, pairs, pipeline
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.facts import in_whole_warps, power_of_two
from normgen.launching.machine import LINE, WARP, Machine

PAIRED = 320  # threads of one block, of 4-byte elements, in place of which two do better
WHOLE_REALIGNED = 1024  # vectors of a misaligned row of 4-byte elements, beyond which two blocks share it
UNEVEN_ELEMENTS = 40  # of a row in a thread, of two that a block reads again
EXACT_SHARE, EXACT_THREADS = 0.9, 256  # of a thread group's places that are taken, and of its block
BYTES, BYTES_TEAM = 64, 64  # elements of 1 byte of a thread, and the fewest threads of a row
SHORT_THREADS = 128  # that have a short row, in vectors of one each
FEW_VECTORS, MORE_VECTORS = (8, 16, 32), 128  # of rows that have one vector per thread
FEW_WARPS = 24  # of a multiprocessor that has such rows
# Vectors of a thread of misaligned rows that are stored by words, and threads of a block, which has a
# multiprocessor to itself; the share of threads, and of their places, that must be taken; a thread's vectors
# where no way has that.
WORD_ALIGNED_WAYS = ((4, 256), (5, 256), (3, 384), (2, 512), (4, 384))
WORD_ALIGNED_SHARE, WORD_ALIGNED_FEW = 0.8, 2
# Threads of a short row whose vectors have 4 bytes, and how many of these each has at most; how many in more
# threads; the vectors of a row.
NARROW_TEAMS, NARROW_VECTORS, NARROW_FROM, NARROW_MOST = ((8, 5), (16, 5), (32, 9), (64, 9)), 7, 32, 1025


# In one block, by the elements of a thread.
_HALF, _HALF_AGAIN, _HALF_LATE = Way(8), Way(8, reload=True), Way(8, reload=True, late=(True,))
_ONE, _USUAL, _TWICE = Way(1), Way(16), Way(32)
_REST = (_TWICE, Way(32, reload=True), Way(32, reload=True, late=(True,)))


def sums(shape: RowShape, device: Machine) -> Iterator[Iterable[RowSchedule]]:
    """Tiers of sums over rows: one block does better than a cluster up to some length."""
    first, second, rest = _one_block(shape)
    if shape.length > ALONE:
        yield from each_alone(fourths(shape, device), overlapped_sums(shape, device))
        yield from each_alone(cluster_pipelines(shape, device), first, second, rest)
    elif shape.cut:
        yield from each_alone(word_aligned(shape), realigned_first(shape), first, second, rest)
        yield from each_alone(cluster_pipelines(shape, device))
    else:
        yield from each_alone(statistics(shape), of_bytes(shape, device), one_vector(shape))
        yield from each_alone(short_sums(shape, device), wide_pair(shape, device))
        yield [*uneven(shape), *first, *pairs(shape), *second]
        yield from each_alone(rest, cluster_pipelines(shape, device))


# ------------------------------------------------------------------------------------------------ misaligned


def realigned_first(shape: RowShape) -> list[RowSchedule]:
    """Misaligned rows whose pipeline has one stage, filled again as soon as the row is in registers: one sum
    of 2-byte elements in one block with 32 per thread, others in pairs of blocks."""
    if not shape.exchanges or shape.vectors <= (WHOLE_REALIGNED if shape.whole else 512):
        return []
    if shape.whole or shape.wide_columns > 1 or shape.walked > 4:
        found, blocks = pairs(shape), 2 if shape.whole else 3
    else:
        team = warps(shape.vectors, shape.items(32))
        found, blocks = [pipeline(shape, team, teams=max(1, 256 // team))], 2
    return [replace(each, stages=1, blocks=blocks) for each in found]


def word_aligned(shape: RowShape) -> list[RowSchedule]:
    """Misaligned rows of 2-byte elements whose results go by words of memory: the first way in which every
    thread has all its vectors, or else nearly so, and no thread of a block is idle."""
    if not (shape.word_alignable and shape.of_halves) or shape.wide_columns > 2 or shape.functions:
        return []
    vectors = shape.vectors
    teams = [(items, warps(vectors, items), threads) for items, threads in WORD_ALIGNED_WAYS]
    busy = [
        (items, team, threads)
        for items, team, threads in teams
        if -(-vectors // team) == items and threads // team * team >= WORD_ALIGNED_SHARE * threads
    ]
    # (two vectors are little for a thread)
    whole = [way for way in busy if way[0] * way[1] == vectors and way[0] > WORD_ALIGNED_FEW]
    nearly = [way for way in busy if vectors >= WORD_ALIGNED_SHARE * way[0] * way[1]]
    _, team, threads = next(
        iter([*whole, *nearly]), (WORD_ALIGNED_FEW, warps(vectors, WORD_ALIGNED_FEW), 512)
    )
    made = pipeline(shape, team, reload=True, teams=max(1, threads // team))
    return [replace(made, form="word_aligned", stages=2, blocks=1)]


def narrow_pipelines(shape: RowShape) -> list[RowSchedule]:
    """Short rows of two operands of 2-byte elements that may be read two at a time: 10 to 18 of them in each
    thread."""
    able = shape.of_halves and shape.vector == shape.streams == 2 and 0 < shape.wide_columns <= 2
    vectors = shape.vectors
    if not able or not shape.exchanges or shape.functions or not NARROW_FROM < vectors <= NARROW_MOST:
        return []
    team = next((t for t, most in NARROW_TEAMS if vectors <= t * most), warps(vectors, NARROW_VECTORS))
    made = pipeline(shape, team, teams=max(1, 256 // team))
    crowded = shape.wide_columns > 1 and (made.items > NARROW_VECTORS or team > NARROW_TEAMS[-1][0])
    return [replace(made, reload=True)] if crowded else [made]


# ------------------------------------------------------------------------------------------------ aligned


def _one_block(shape: RowShape) -> Iterator[list[RowSchedule]]:
    """Pipelines of one block, in order of preference.

    Two sums over rows of 2-byte elements have two rows per block, which share a barrier. Elements of 4 bytes
    are 8 per thread, and rows of 128 threads or more have a block each. Blocks are whole groups of 4 warps.
    """
    ways: tuple[tuple[Way, ...], ...] = ((_USUAL,), (_HALF,), _REST)
    if shape.narrow:
        ways = ((_TWICE,), (_USUAL,), (_HALF, *_REST))
    elif _all_whole(shape):
        ways = ((_HALF, _HALF_AGAIN, _HALF_LATE), (_USUAL,), _REST)
    return ([_pipeline_of(shape, way) for way in some] for some in ways)


def _pipeline_of(shape: RowShape, way: Way) -> RowSchedule:
    team, teams = _team_of(shape, shape.items(way.elements))
    return pipeline(shape, team, reload=way.reload, late=way.late[0], teams=teams)


def _team_of(shape: RowShape, items: int) -> tuple[int, int]:
    """Threads of a thread group with so many vectors each, and thread groups of a block."""
    vectors = shape.vectors
    team = power_of_two(-(-vectors // items)) if vectors <= WARP * items else warps(vectors, items)
    if exact := _exact_team(shape, vectors, items, team):
        return exact
    # neighbours read whole lines of memory, or sectors
    run = (LINE if shape.wide_columns else 64) // (shape.vector * at_least_one(shape.narrowest))
    team = max(team, min(WARP, power_of_two(vectors), power_of_two(at_least_one(run))))
    threads = 512 if shape.wide_columns > 1 and not shape.whole and team > 128 else 256
    threads = 2 * team if team == 192 else threads
    threads = 128 if shape.narrow or (_all_whole(shape) and team >= 128) else threads
    return team, max(1, threads // team)


def _exact_team(shape: RowShape, vectors: int, items: int, usual: int) -> tuple[int, int] | None:
    """Threads of a thread group and thread groups of a block, where nothing is exchanged within a row and
    the usual thread group, of whole warps or a part of one, has many threads with less than their share.
    """
    count = -(-vectors // usual)
    if shape.exchanges or shape.cut or vectors > EXACT_SHARE * usual * count:
        return None
    run = LINE // (shape.vector * at_least_one(shape.narrowest))
    for each in range(items, 0, -1):
        team = -(-vectors // each)
        teams = in_whole_warps(team, EXACT_THREADS)
        if team >= run and teams and vectors > EXACT_SHARE * team * each:
            return team, teams
    return None


def _all_whole(shape: RowShape) -> bool:
    """Whether rows are of 4-byte elements, as whole vectors, and what is accumulated has a value for each."""
    return shape.of_floats and not shape.cut and bool(shape.wide_columns)


def statistics(shape: RowShape) -> list[RowSchedule]:
    """One vector per thread, for moments of channels that come last: rows of one operand, short enough for a
    block, that are accumulated without exchanges."""
    alone = not shape.exchanges and shape.streams == 1 and bool(shape.wide_columns) and shape.whole_words
    return [_pipeline_of(shape, _ONE)] if alone and shape.length <= SHORT_THREADS * shape.vector else []


def one_vector(shape: RowShape) -> list[RowSchedule]:
    """One vector per thread, for norms of attention heads: a warp or a part of one has the row, and 24 warps
    share a multiprocessor, not 16. One sum over 128 vectors likewise, two rows per block."""
    vectors, one = shape.vectors, shape.wide_columns == 1
    even = vectors in FEW_VECTORS or (one and vectors == MORE_VECTORS)
    plain = shape.streams == 2 and shape.whole_words and not (shape.functions or shape.parts or shape.picked)
    sums = one or (shape.wide_columns > 1 and not shape.of_floats)
    if not (even and plain and sums and shape.exchanges):
        return []
    threads = max(128, 2 * vectors)
    made = pipeline(shape, vectors, teams=threads // vectors)
    return [replace(made, blocks=WARP * FEW_WARPS // threads, stages=2)]


def of_bytes(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Rows of bytes of which little is accumulated, bound by their instructions: as many elements per thread
    as registers allow, which are too many without clusters (older devices)."""
    if not (device.clusters and shape.narrow and shape.exchanges) or shape.cut:
        return []
    for items in range(shape.items(BYTES), 1, -1):
        team = warps(shape.vectors, items)
        if team >= BYTES_TEAM and shape.vectors >= EXACT_SHARE * team * items:
            return [replace(pipeline(shape, team), stages=3)]
    return []


def uneven(shape: RowShape) -> list[RowSchedule]:
    """For sums over rows that are no multiple of 128 threads with 16 elements each.

    Two sums, 2-byte elements: two rows per block, each in 128 or 192 threads, read again from the pipeline.
    One sum: pairs of blocks, and so two sums of 4-byte elements where a block would have 320 threads.
    """
    team = warps(shape.vectors, shape.items(16))
    if team <= 128 or team % 128 == 0 or team > 512:
        return []
    if shape.whole:
        return pairs(shape) if team == PAIRED and shape.wide_columns > 1 else []
    if shape.wide_columns == 1:
        return pairs(shape) if team > 256 else []
    for threads in (128, 192):
        elements = -(-shape.vectors // threads) * shape.vector
        if elements <= UNEVEN_ELEMENTS:
            return [pipeline(shape, threads, reload=elements > 24, teams=2)]
    return []
