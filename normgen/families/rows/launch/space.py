"""What the rows family offers for a kernel: the divisions of a row among lanes, warps, blocks and clusters,
and for each of them the ways to hold the row. Nothing here prefers one to another.

`starts` are few, for each division those ways that others are neighbours of: the same in the number of
stages, of blocks, of rows side by side, and in when what rows share is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from math import gcd, lcm, log2

from normgen.families.rows.launch.any_length import batches, stream
from normgen.families.rows.launch.fitting import HELD_BYTES
from normgen.families.rows.launch.forms import form_of
from normgen.families.rows.launch.legal import legal
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.call import WORD
from normgen.launching.facts import in_whole_warps, power_of_two
from normgen.launching.knobs import distinct
from normgen.launching.machine import WARP, Machine

MOST_STARTS, MOST_NEIGHBOURS = 40, 20
CLUSTERS = (2, 4, 8, 16)  # blocks
STAGES, BLOCKS = (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6)
_ITEMS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64)
_ELEMENTS = 64  # of a row, in one thread, at most
_USUAL_BYTES = 64  # of a row in one thread: divisions near it are kept where there are too many
_CLUSTER_THREADS = (64, 512)  # the fewest and the most of a cluster's block
_ONE_SHOT_THREADS, _PIPELINE_THREADS = 128, 256  # of such a block, at first
# Threads of a block that shares a row, and of one where nothing is exchanged.
_SHARING_THREADS, _SHARING_ALONE_THREADS = 512, 256
_LANES, _ROW_TILE_WARPS, _ROW_TILE_ELEMENTS = (1, 2, 4, 8, 16, 32), (4, 8, 16), 80


def starts(shape: RowShape, device: Machine, forms: Sequence[str]) -> list[RowSchedule]:
    """The schedules that others are neighbours of, at most so many, each with what finds place."""
    found = [each for each in _starts(shape, device) if each.form in forms]
    found.sort(key=lambda each: _unusual(each, shape))
    return list(islice(_legal(found, shape, device), MOST_STARTS))


def neighbours(s: RowSchedule, shape: RowShape, device: Machine, forms: Sequence[str]) -> list[RowSchedule]:
    """Those that may run: the schedule, and others that give a row the same bits and differ in one knob more,
    or the form."""
    found = _legal(chain([s], _neighbours(s, shape, forms)), shape, device)
    return list(islice(distinct(found), MOST_NEIGHBOURS))


def _legal(found: Iterable[RowSchedule], shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    """Each once, with what is estimated filled in, of those that may run."""
    fitted = (legal(each, shape, device) for each in distinct(found))
    return (each for each in fitted if isinstance(each, RowSchedule))


def _unusual(s: RowSchedule, shape: RowShape) -> float:
    """How far a division is from what most rows take."""
    if not form_of(s).covers:
        return 0.0
    idle, held = log2(max(1.0, s.elements * s.team / shape.length)), s.elements * at_least_one(shape.walked)
    return 4 * idle + abs(log2(held / _USUAL_BYTES))


# ------------------------------------------------------------------------------------------------ starts


def _starts(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    if shape.splits:
        yield from _unexchanged(shape)
    if shape.piece:
        yield from _added_segments(shape)
    else:
        for vector in dict.fromkeys((shape.realigned or shape.vector, shape.vector)):
            for each in _divisions(replace(shape, vector=vector), device):
                cut = bool(shape.realigned) and vector == shape.realigned
                yield from _ways(replace(each, realigned=cut), shape)
        yield from row_tiles(shape)
        yield from cooperative_rows(shape)
    yield replace(stream(shape, device), staged=True)
    wide, cut = replace(shape, vector=shape.realigned or shape.vector), shape.realigned > 0
    streaming = stream(wide, device)
    if cut and shape.wide_columns:
        threads = min(streaming.team, _SHARING_THREADS)
        streaming = replace(streaming, team=threads, items=-(-wide.vectors // threads))
    yield from (replace(each, realigned=cut) for each in (streaming, *_shared(wide)))


def _shared(shape: RowShape) -> Iterator[RowSchedule]:
    """A row in blocks that share it, a launch for each level: each thread has a vector at least."""
    members, threads = 2, _SHARING_THREADS if shape.exchanges else _SHARING_ALONE_THREADS
    while shape.launches and members * threads <= shape.vectors:
        team = members * threads
        each = RowSchedule("multipass", shape.vector, team, 1, -(-shape.vectors // team), members=members)
        yield each
        if shape.wide_columns:
            yield replace(each, held=True)
        members *= 2


def _unexchanged(shape: RowShape) -> Iterator[RowSchedule]:
    """Where nothing of a row is exchanged: thread groups have several under way, as many as go, or less."""
    for each in batches(shape):
        yield from (replace(each, batch=each.batch // part) for part in (1, 2, 4, 8) if each.batch >= part)
        yield replace(each, teams=WARP // gcd(each.team, WARP), batch=1)


def _divisions(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    """Of a row among the threads of a block, or of a cluster of blocks."""
    most = [items for items in _ITEMS if items * shape.vector <= max(_ELEMENTS, shape.vector)]
    for items in most:
        threads = -(-shape.vectors // items)
        team = power_of_two(threads) if threads <= WARP else warps(shape.vectors, items)
        if team <= 1024:
            yield RowSchedule("", shape.vector, team, 1, -(-shape.vectors // team))
    if not shape.exchanges:
        yield from _uneven(shape, most)
    elif device.clusters and shape.rewalked:
        for cluster, items in product(CLUSTERS, most):
            threads = warps(shape.vectors, cluster * items)
            if _CLUSTER_THREADS[0] <= threads <= _CLUSTER_THREADS[1]:
                team = cluster * threads
                yield RowSchedule("", shape.vector, team, 1, -(-shape.vectors // team), cluster=cluster)


def _uneven(shape: RowShape, most: Iterable[int]) -> Iterator[RowSchedule]:
    """Thread groups that are no whole warps, where lanes exchange nothing: none of them is idle."""
    for items in most:
        team = -(-shape.vectors // items)
        if teams := in_whole_warps(team, _PIPELINE_THREADS):
            yield RowSchedule("", shape.vector, team, teams, -(-shape.vectors // team))


def _ways(s: RowSchedule, shape: RowShape) -> Iterator[RowSchedule]:
    """To hold a row that is divided so."""
    late = shape.shared > 0
    few = replace(s, teams=max(s.teams, _ONE_SHOT_THREADS // s.team, 1))
    many = replace(s, teams=max(s.teams, _PIPELINE_THREADS // s.team, 1))
    if s.cluster > 1 or s.teams > 1:  # which have their number already
        few = many = s
    whole = s.team % WARP == 0 or (s.team < WARP and s.team & (s.team - 1) == 0)
    if whole and (not shape.columns or shape.one_shot):
        yield replace(few, form="registers", late=late)
    if s.cluster > 1 and (shape.narrow_moments or shape.folded):
        return
    bulk = s.cluster > 1 and shape.whole_words and not s.realigned
    yield replace(many, form="pipeline", late=late and not shape.columns)
    yield replace(many, form="pipeline", reload=True, late=late, bulk=bulk)
    if s.cluster > 1 and shape.whole_words:
        yield replace(s, form="pipeline", bulk=True)
        if shape.refills:
            yield replace(s, form="pipeline", reload=True, blocks=1, stages=1, places=2 * s.items)
    if s.realigned and s.team % WARP == 0 and s.cluster == 1:
        yield replace(many, form="word_aligned", reload=True, stages=2)


def row_tiles(shape: RowShape) -> Iterator[RowSchedule]:
    """Lanes for rows that lie side by side and begin anywhere, of which a block moves several together."""
    for lanes, count in product(_LANES, _ROW_TILE_WARPS) if shape.row_tile else ():
        items, teams = -(-shape.length // (shape.vector * lanes)), WARP // lanes * count
        few = items * shape.vector * shape.streams <= _ROW_TILE_ELEMENTS
        if few and teams * shape.length * shape.narrowest % WORD == 0:
            yield RowSchedule("row_tile", shape.vector, lanes, teams, items, late=shape.shared > 0)


def _added_segments(shape: RowShape) -> Iterator[RowSchedule]:
    """Rows in segments that are added up besides: blocks have whole segments, side by side, so that each
    thread has the same places of one in all its vectors."""
    whole = lcm(WARP, shape.piece)
    for cluster, items in product((1, *CLUSTERS), range(1, HELD_BYTES // shape.vector + 1)):
        threads = -(-shape.vectors // (cluster * items * whole)) * whole
        if threads <= 1024:
            team = threads * cluster
            vectors = -(-shape.vectors // team)
            yield RowSchedule(
                "registers", shape.vector, team, 1, vectors, late=shape.shared > 0, cluster=cluster
            )


# What a block of a row split over blocks has: threads, bytes of the row in the registers of each and in
# shared memory beside them, and blocks of a multiprocessor.
_SHARES = ((512, 64, 192, 2), (256, 128, 272, 3), (512, 128, 160, 2), (256, 256, 0, 2), (512, 32, 192, 2))


def cooperative_rows(shape: RowShape) -> Iterator[RowSchedule]:
    """Rows in as many blocks as hold them, which exchange through memory: where passes would read again."""
    each = at_least_one(shape.vector * shape.walked)
    able = shape.cooperates and shape.rewalked and shape.whole_words
    for threads, held, placed, blocks in _SHARES if able else ():
        yield cooperative(shape, threads, at_least_one(held // each), placed // each, blocks)


def cooperative(
    shape: RowShape, threads: int, in_registers: int, places: int = 0, blocks: int = 0
) -> RowSchedule:
    """A row in as many blocks of so many threads as have room for it, with so many vectors in the registers
    of each thread and in places beside them."""
    items = in_registers + places
    members = -(-shape.length // (shape.vector * threads * items))
    return RowSchedule(
        "cooperative", shape.vector, members * threads, 1, items, blocks, members=members, places=places
    )


# ------------------------------------------------------------------------------------------------ neighbours


def _neighbours(s: RowSchedule, shape: RowShape, forms: Sequence[str]) -> Iterator[RowSchedule]:
    """Before they are fitted anew: what finds place depends on the others."""
    form, free = form_of(s), replace(s, blocks=0, stages=0, shared=0)
    if "late" in form.knobs and shape.shared:
        yield replace(free if form.pipelined else s, late=not s.late)
    if form.covers and s.cluster == 1 and (s.teams > 1 or s.team < _ONE_SHOT_THREADS):
        for teams in (s.teams // 2, 2 * s.teams):
            if teams and s.team * teams % WARP == 0 and s.team * teams <= 512:
                yield replace(free, teams=teams)
    if form.pipelined:
        yield from _pipelined_neighbours(s, free, shape, forms)
    elif s.form == "registers" and "pipeline" in forms and not (s.cluster > 1 and shape.narrow_moments):
        yield replace(free, form="pipeline")


def _pipelined_neighbours(
    s: RowSchedule, free: RowSchedule, shape: RowShape, forms: Sequence[str]
) -> Iterator[RowSchedule]:
    whole = s.team % WARP == 0 or s.team & (s.team - 1) == 0
    if s.form == "pipeline" and "registers" in forms and whole and not (s.places or shape.columns):
        yield replace(free, form="registers", reload=False, bulk=False)
    if s.form == "pipeline" and not s.places:
        yield replace(free, reload=not s.reload)
        if s.cluster > 1 and shape.whole_words:
            yield replace(free, bulk=not s.bulk)
    if not s.places:
        yield from (replace(s, stages=stages) for stages in STAGES if stages != s.stages)
    yield from (replace(s, blocks=blocks) for blocks in BLOCKS if blocks != s.blocks)
