"""Which schedule a kernel of the columns family takes: that with the least predicted time.

What a table has is taken from there. Else the knobs that decide the bits of a column are chosen first, by the
regrets over sizes of a batch, so that it has the same bits in any. The others follow from how many columns
there are, in buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from normgen.families.columns.launch.quantities import quantities
from normgen.families.columns.launch.schedule import ColumnSchedule, ColumnShape, any_size
from normgen.families.columns.launch.space import across, neighbours, settle, starts
from normgen.launching.images import for_all_sizes
from normgen.launching.knobs import bits_of
from normgen.launching.machine import Machine, of_usual_size
from normgen.launching.pick import bucket_of, compared, counts_of, of_least_regret
from normgen.launching.quantities import Array
from normgen.launching.table import key_of, nearest

_SHORT = 256  # planes up to this, of which the last vectors are a part that counts
_PIXELS = 4096  # of an image, for which a schedule for all sizes is chosen


def pick(shape: ColumnShape) -> ColumnSchedule:
    """The schedule for such columns, and nearly as many: that which was measured, else that of the text for
    images of all sizes where that is asked for, else that with the least predicted time."""
    if measured := _measured(shape):
        return measured
    if not (for_all_sizes() and (shape.sized or shape.image)):
        return _predicted(shape)
    return any_size(shape) if shape.sized else _of_images(shape)


def _of_images(shape: ColumnShape) -> ColumnSchedule:
    """That of images of every size with vectors as wide: of the division of a column that does best, the
    neighbour of which the worst regret over numbers of columns is least."""
    alike = replace(shape, columns=0, side_by_side=_PIXELS, segments=1, vector=shape.widths[0])
    found = _for_all(replace(alike, device=of_usual_size(shape.device)), shape.device)
    return across(found, found.lanes, shape)


@lru_cache(maxsize=1024)
def _for_all(shape: ColumnShape, device: Machine) -> ColumnSchedule:
    division = _of_least_regret(shape)
    moved = shape.length * shape.side_by_side * max(1, shape.reads + shape.writes)
    columns = [shape.side_by_side * count for count in counts_of(moved)]
    near = neighbours(_fastest(shape, division, columns[-1]), replace(shape, device=device))
    us = predicted(shape, near, columns)
    return near[int((us / us.min(1, keepdims=True)).max(0).argmin())]


def _measured(shape: ColumnShape) -> ColumnSchedule | None:
    """The schedule of the table for the nearest number of columns, if it may run."""
    found = nearest(shape.device.arch, key_of_columns(shape), ColumnSchedule, shape.columns)
    legal = None if found is None else settle(found, shape)
    return legal if isinstance(legal, ColumnSchedule) else None


def key_of_columns(shape: ColumnShape) -> str:
    """The key of a table for such columns, however many there are."""
    return key_of(shape, "device", "columns", "sized", "image", "misaligned")


def _predicted(shape: ColumnShape) -> ColumnSchedule:
    if not shape.batched:
        return _of_count(replace(shape, columns=0), shape.columns)
    side = shape.side_by_side
    near = side if side <= _SHORT and shape.misaligned > shape.vector else bucket_of(side)
    return _of_count(replace(shape, columns=0, side_by_side=near), bucket_of(shape.columns))


@lru_cache(maxsize=4096)
def _of_count(shape: ColumnShape, columns: int) -> ColumnSchedule:
    division = _of_least_regret(replace(shape, segments=1, device=of_usual_size(shape.device)))
    near = neighbours(_fastest(shape, division, columns), shape)
    return _fastest(shape, near, columns)


def _fastest(shape: ColumnShape, found: Sequence[ColumnSchedule], columns: int) -> ColumnSchedule:
    return found[int(predicted(shape, found, (columns,))[0].argmin())]


def predicted(shape: ColumnShape, found: Sequence[ColumnSchedule], columns: Sequence[int]) -> Array:
    """What schedules are compared by, for each number of columns."""
    return compared(quantities(shape, found, columns), len(found))


@lru_cache(maxsize=1024)
def _of_least_regret(shape: ColumnShape) -> tuple[ColumnSchedule, ...]:
    """The starts with those bits of which the regrets are least."""
    found, few = starts(shape), shape.side_by_side
    moved = shape.length * few * max(1, shape.reads + shape.writes)
    columns = [few * count for count in counts_of(moved)] if shape.batched else [few]
    alike = of_least_regret([bits_of(each) for each in found], predicted(shape, found, columns))
    return tuple(found[place] for place in alike)
