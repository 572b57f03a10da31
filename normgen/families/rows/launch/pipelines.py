"""How rows are dealt out, in registers or by a pipeline in shared memory; and the candidates of pipelines for
long rows of kernels without sums over rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from normgen.families.rows.launch.fitting import HELD_BYTES, OVERLAPPED_PIPELINE, OVERLAPPED_STAGES
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.facts import power_of_two
from normgen.launching.machine import Machine

CLUSTERS = (2, 4, 8, 16)  # blocks, on some device; `fit` refuses what a device has not
EITHER = (False, True)
ALONE = 8192  # columns up to which, with sums over rows, one block does better than a cluster


class Way(NamedTuple):
    """How a row is dealt out, and comes through a pipeline."""

    elements: int = 0  # of a thread, at most
    threads: int = 0  # of a row in each block; 0: as few warps as have it
    cluster: int = 0  # blocks of a row; 0: as few as have it, but several
    most: int = CLUSTERS[-1]  # blocks of a row
    teams: int = 1  # of a block
    reload: bool = False  # the row, or a block's slice of it, is read again
    late: tuple[bool, ...] = (False,)  # what rows share is loaded late
    overlapped: bool = False  # a row is exchanged while the one before it is finished
    refilled: bool = False  # the pipeline is refilled vector by vector
    # Where rows are whole words; else what finds place.
    blocks: int = 0  # per multiprocessor
    stages: int = 0
    bulk: bool = False  # slices arrive as bulk copies


def each_alone(*found: Iterable[RowSchedule]) -> Iterator[list[RowSchedule]]:
    """Tiers of one candidate each."""
    return ([schedule] for schedule in chain(*found))


def held(shape: RowShape, threads: int, cluster: int = 1, early: bool = False, teams: int = 1) -> RowSchedule:
    """A row in the registers of so many threads of a block, or of each block of a cluster; `early`: what rows
    share too."""
    team, late = threads * cluster, shape.shared > 0 and not early
    items = -(-shape.vectors // team)
    return RowSchedule("registers", shape.vector, team, teams, items, late=late, cluster=cluster)


def pipeline(
    shape: RowShape,
    threads: int,
    cluster: int = 1,
    reload: bool = False,
    late: bool = False,
    stages: int = 0,
    teams: int = 1,
) -> RowSchedule:
    """One row at a time in so many threads of a block, or of each block of a cluster. With `stages` in its
    pipeline, a block has a multiprocessor of its own."""
    team = threads * cluster
    return RowSchedule(
        "pipeline", shape.vector, team, teams, -(-shape.vectors // team), int(stages > 0), stages=stages,
        reload=reload, late=late, cluster=cluster, bulk=reload and cluster > 1 and shape.whole_words,
    )  # fmt: skip


def in_way(shape: RowShape, device: Machine, way: Way) -> list[RowSchedule]:
    """The schedules of a way, none where it is not one for such rows."""
    items = shape.items(way.elements)
    cluster = way.cluster or several_blocks(shape, way.threads, items, way.most)
    unable = (way.overlapped and not may_overlap(shape, device)) or (way.refilled and not shape.refills)
    if not cluster or unable:
        return []
    threads = way.threads
    if way.overlapped or not threads:
        threads = warps(-(-shape.vectors // cluster), items)
    found = []
    for late in dict.fromkeys(late and shape.shared > 0 for late in way.late):
        made = pipeline(shape, threads, cluster, way.reload, late, teams=way.teams)
        if way.overlapped:
            made = replace(overlapped_pipeline(shape, threads, cluster, late), blocks=way.blocks)
        elif way.refilled:
            # (fewer vectors of 2-byte elements take longer so)
            if not shape.of_floats and made.elements < way.elements:
                continue
            made = replace(made, blocks=1, bulk=False, stages=1, places=2 * made.items)
        elif shape.whole_words:
            made = replace(made, blocks=way.blocks, bulk=way.bulk, stages=way.stages)
        found.append(made)
    return found


def several_blocks(shape: RowShape, threads: int, items: int, most: int = CLUSTERS[-1]) -> int:
    """The blocks of a row, of so many threads with so many vectors each; 0 where they are too few or too
    many."""
    cluster = power_of_two(-(-shape.vectors // (threads * items)))
    return cluster if 1 < cluster <= most else 0


def pairs(shape: RowShape, elements: int = 16) -> list[RowSchedule]:
    """Two blocks per row with 16 elements per thread, or as many as are given: more of them find place on a
    multiprocessor than of one that has a row alone."""
    threads = warps(-(-shape.vectors // 2), shape.items(elements))
    able = shape.exchanges and not shape.narrow_moments and threads >= 128
    return [pipeline(shape, threads, 2)] if able else []


def plain_moments(shape: RowShape) -> bool:
    """Whether there are moments of rows of one operand, which share weights that are no wider."""
    return shape.moments and shape.streams == 1 and 0 < shape.shared <= 2 * shape.walked


def long_rows(shape: RowShape) -> Iterator[RowSchedule]:
    """For long rows of a kernel without sums over rows: in one block if that holds them, or in clusters.

    A thread keeps as much of a row as goes into its registers. One block does better than a cluster, even if
    it loads the params for each row. Moments of 2-byte elements in 1024 threads have one stage, which a row
    leaves as soon as it is in registers. What an exchange costs depends on how many warps take part: few
    blocks of few threads with many elements each are fastest.
    """
    if not shape.exchanges or not shape.walked:
        return
    plain, elements = plain_moments(shape), HELD_BYTES // shape.walked
    if plain and shape.walked == 2 and 1024 * 24 < shape.length <= 1024 * 32:
        yield pipeline(shape, 1024, late=True, stages=1)
    for threads in (512, 1024):
        if shape.length <= threads * elements:
            yield from (pipeline(shape, threads, late=late) for late in shape.lates)
    items = at_least_one(HELD_BYTES // (shape.vector * shape.walked))
    # values that are kept from one pass to the next leave no room for the row
    wide, again = (512, items, bool(shape.held)), (256, 2 * items, True)
    plain = plain and shape.of_floats and shape.whole_words
    middle = (again, wide) if plain else (wide, again)
    for threads, each, reload in ((256, items, False), *middle, (512, 2 * items, True)):
        if cluster := several_blocks(shape, threads, each):
            yield pipeline(shape, threads, cluster, reload, stages=2 if reload and plain else 0)


# ------------------------------------------------------------------------------------------------ overlapped


def may_overlap(shape: RowShape, device: Machine) -> bool:
    """Whether rows may come as bulk copies into a pipeline whose exchange runs ahead."""
    able = shape.overlaps and shape.whole_words and not shape.narrow_moments
    return able and shape.walked > 0 and device.clusters


def overlapped_pipeline(shape: RowShape, threads: int, cluster: int, late: bool) -> RowSchedule:
    """Clusters whose exchange of a row is on its way while the row before it is finished."""
    return replace(pipeline(shape, threads, cluster, reload=True, late=late), form="overlapped")


def overlapped(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Clusters with a pipelined exchange: the fewest blocks that have room for six slices each.

    32 elements per thread, 16 of 4 bytes, or first 64 where 16 blocks exchange moments of few warps.
    """
    cluster = power_of_two(-(-shape.length * shape.walked * OVERLAPPED_STAGES // OVERLAPPED_PIPELINE))
    if cluster not in CLUSTERS:
        return []
    usual = Way(16 if shape.of_floats else 32, cluster=cluster, late=EITHER, overlapped=True)
    few = shape.moments and cluster == CLUSTERS[-1] and not shape.of_floats
    ways = [usual._replace(elements=64, late=(False,)), usual] if few else [usual]
    return [made for way in ways for made in in_way(shape, device, way)]
