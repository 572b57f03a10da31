"""Candidates that have rows come through a pipeline in shared memory: what all of them share, and those for
long rows of kernels without sums over rows."""

from __future__ import annotations

from dataclasses import replace

from normgen.families.rows.launch.forms import HELD_BYTES, SKEWED_RING, SKEWED_STAGES
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, at_least_one, warps
from normgen.launching.facts import power_of_two
from normgen.launching.machine import Machine

CLUSTERS = (2, 4, 8, 16)  # blocks, on some device; `fit` refuses what a device has not


def ring(
    shape: RowShape, threads: int, cluster: int, reload: bool = False, late: bool = False, stages: int = 0
) -> RowSchedule:
    """One row at a time in a block of so many threads, or in a cluster of such blocks. With `stages` in its
    pipeline, a block has a multiprocessor of its own."""
    team = threads * cluster
    return RowSchedule(
        "ring", shape.vector, team, 1, -(-shape.vectors // team), int(stages > 0), stages=stages,
        reload=reload, late=late, cluster=cluster, bulk=reload and cluster > 1 and shape.whole_words,
    )  # fmt: skip


def pairs(shape: RowShape, device: Machine, elements: int = 16) -> list[RowSchedule]:
    """Two blocks a row with 16 elements a thread, or as many as are given: more of them find place on a
    multiprocessor than of one that has a row alone."""
    if not device.clusters or shape.narrow_moments or not shape.exchanges:
        return []
    threads = warps(-(-shape.vectors // 2), shape.items(elements))
    return [ring(shape, threads, 2)] if threads >= 128 else []


def plain_moments(shape: RowShape) -> bool:
    """Whether there are moments of rows of one operand, which share weights that are no wider."""
    return shape.moments and shape.streams == 1 and 0 < shape.shared <= 2 * shape.walked


def rings_alone(shape: RowShape) -> list[RowSchedule]:
    """A thread keeps as much of a row as goes into its registers. One block does better than a cluster, even
    if it loads the params for each row. Moments of 2-byte elements in 1024 threads have one stage, which a
    row leaves as soon as it is in registers."""
    if not shape.exchanges or not shape.walked:
        return []
    elements = HELD_BYTES // shape.walked
    full = plain_moments(shape) and shape.walked == 2 and 1024 * 24 < shape.length <= 1024 * 32
    one = [ring(shape, 1024, 1, late=True, stages=1)] if full else []
    return one + [
        ring(shape, threads, 1, late=late)
        for threads in (512, 1024)
        if shape.length <= threads * elements
        for late in shape.lates
    ]


def long_rings(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """In clusters. What an exchange costs depends on how many warps take part: few blocks of few threads with
    many elements each are fastest."""
    if not shape.exchanges or not shape.walked or not device.clusters:
        return []
    items = at_least_one(HELD_BYTES // (shape.vector * shape.walked))
    # values that are kept from one pass to the next leave no room for the row
    wide, again = (512, items, bool(shape.held)), (256, 2 * items, True)
    plain = plain_moments(shape) and shape.of_floats and shape.whole_words
    out = []
    for threads, each, reload in (
        (256, items, False),
        *((again, wide) if plain else (wide, again)),
        (512, 2 * items, True),
    ):
        cluster = power_of_two(-(-shape.vectors // (threads * each)))
        if cluster in CLUSTERS:
            out.append(ring(shape, threads, cluster, reload, stages=2 if reload and plain else 0))
    return out


# ------------------------------------------------------------------------------------------------ skewed


def may_skew(shape: RowShape, device: Machine) -> bool:
    """Whether rows may come as bulk copies into a pipeline whose exchange runs ahead."""
    able = shape.skews and shape.whole_words and not shape.narrow_moments
    return able and shape.walked > 0 and device.clusters


def skewed_ring(shape: RowShape, threads: int, cluster: int, late: bool) -> RowSchedule:
    """Clusters whose exchange of a row is on its way while the row before it is finished."""
    return replace(ring(shape, threads, cluster, reload=True, late=late), form="skewed")


def skewed(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """As few blocks as have room for six slices each: 32 elements a thread, 16 of 4 bytes, or first 64 where
    16 blocks exchange moments of few warps."""
    cluster = power_of_two(-(-shape.length * shape.walked * SKEWED_STAGES // SKEWED_RING))
    if not may_skew(shape, device) or cluster not in CLUSTERS:
        return []
    vectors = -(-shape.length // (shape.vector * cluster))
    usual = warps(vectors, shape.items(16 if shape.of_floats else 32))
    few = shape.moments and cluster == CLUSTERS[-1] and not shape.of_floats
    ways = [(warps(vectors, shape.items(64)), False)] if few else []
    ways += [(usual, late) for late in shape.lates]
    return [skewed_ring(shape, threads, cluster, late) for threads, late in ways]
