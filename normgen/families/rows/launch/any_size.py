"""The schedule of rows whose lengths are arguments of their text: one for images of all sizes."""

from __future__ import annotations

from dataclasses import replace

from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.facts import power_of_two
from normgen.launching.machine import WARP, Machine

FORM = "any_size"
MOST_THREADS = 512  # of a block, for which the text is compiled
_ROUND_BYTES = 128  # of a row in the registers of a thread, at most
_ITEMS = 4  # vectors of a row that a thread has at once, at most
_CROWDED_BYTES = 64  # of a row in the registers of a thread, with which two blocks find place
_CLUSTER = 8  # blocks that share a long row, where they exchange something
_LONG = 1 << 24  # elements of a row that is long on every device
_LEAST_THREADS = 128  # of a block with rows side by side, at least


def any_size(shape: RowShape, device: Machine) -> RowSchedule | None:
    """How rows of this shape run by the text for all sizes; None where they cannot.

    The number of rows makes no difference, so that a row has the same bits in any batch."""
    vector = shape.sized
    if not vector:
        return None
    each = vector * max(1, shape.walked + shape.shared)
    items = max(1, min(_ITEMS, _ROUND_BYTES // each))
    piece = shape.run or shape.length
    ends = vector - 1 if shape.sized_anywhere else 0
    vectors = -(-(piece + ends) // vector) * (shape.length // max(1, piece))
    needed = max(1, -(-vectors // items))
    cluster, members = 1, 1
    if needed > MOST_THREADS and not (shape.exchanges or shape.columns):
        members = -(-needed // MOST_THREADS)
    elif needed > MOST_THREADS and shape.stored:
        cluster = min(_CLUSTER, device.max_cluster)
        if cluster == 1:  # without clusters a long row keeps one multiprocessor busy
            return None
    several = cluster * members
    lanes = min(MOST_THREADS, _lanes(-(-needed // several)))
    return RowSchedule(
        FORM,
        vector,
        lanes * several,
        _LEAST_THREADS // lanes if lanes <= WARP and several == 1 else 1,  # a block has one row in warps
        items,
        blocks=2 if items * each <= _CROWDED_BYTES else 1,
        cluster=cluster,
        members=members,
        realigned=shape.sized_anywhere,
    )


def of_every_size(shape: RowShape, device: Machine) -> tuple[RowSchedule, ...]:
    """Schedules with every text that rows of such images take, whatever their size: of rows that one block
    has, and of those that a cluster shares."""
    short = replace(shape, length=1, run=min(shape.run, 1))
    long = replace(shape, length=_LONG, run=_LONG if shape.run else 0)
    return tuple(dict.fromkeys(filter(None, (any_size(each, device) for each in (short, long)))))


def _lanes(threads: int) -> int:
    """Threads of a thread group in one block: lanes of a warp, or whole warps."""
    return power_of_two(threads) if threads <= WARP else -(-threads // WARP) * WARP
