"""Which schedule a kernel of the windows family takes: that with the least predicted time.

What a table has is taken from there. Else the form is chosen first, by the regrets over how many images there
may be, so that an image has the same bits in any batch. The sizes follow from how many images there are, in
buckets; then the ranges of a walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from normgen.families.windows.launch.quantities import WindowShape, quantities, shape_of
from normgen.families.windows.launch.schedule import RANGES, WindowSchedule, ranged
from normgen.families.windows.launch.space import FORMS, for_images, made, settle
from normgen.launching.call import Call, once
from normgen.launching.knobs import bits_of
from normgen.launching.machine import of_usual_size
from normgen.launching.pick import bucket_of, compared, counts_of, of_least_regret
from normgen.launching.quantities import Array
from normgen.launching.table import key_of, nearest
from normgen.package.kernels import WindowsRecord


@once
def choose(record: WindowsRecord, call: Call) -> WindowSchedule:
    """The schedule that was measured, or else that with the least predicted time."""
    shape = shape_of(record, call)
    fast = nearest(call.device.arch, key_of_images(shape), WindowSchedule, shape.images)
    legal = None if fast is None else settle(record, call, fast)
    return legal if isinstance(legal, WindowSchedule) else _predicted(record, call, shape)


def key_of_images(shape: WindowShape) -> str:
    """The key of a table for such images, however many there are."""
    return key_of(shape, "device", "images")


def _predicted(record: WindowsRecord, call: Call, shape: WindowShape) -> WindowSchedule:
    """The form is chosen for the usual number of multiprocessors."""
    found = made(record, call)
    usual = replace(shape, device=of_usual_size(shape.device))
    counts = counts_of(shape.image * max(1, shape.reads + shape.writes)) if record.image else (1,)
    us = [predicted(usual, _for_images(record, usual, found, n), n) for n in counts]
    alike = of_least_regret([bits_of(each) for each in found], np.stack(us))
    images = bucket_of(shape.images) if record.image else 1
    starts = _for_images(record, shape, [found[place] for place in alike], images)
    near = list(in_ranges(_fastest(shape, starts, images)))
    return _fastest(shape, near, images)


def _for_images(
    record: WindowsRecord, shape: WindowShape, found: Sequence[WindowSchedule], images: int
) -> list[WindowSchedule]:
    return [for_images(record, s, images, shape.device.multiprocessors) for s in found]


def in_ranges(s: WindowSchedule) -> Iterator[WindowSchedule]:
    """A schedule, and where ranges share an image those with more and fewer of them."""
    yield s
    for ranges in (*RANGES, s.ranges - 1, s.ranges + 1) if FORMS[s.form].ranged else ():
        if 0 < ranges <= s.steps:
            yield ranged(s, ranges)


def space(record: WindowsRecord, call: Call) -> Iterator[WindowSchedule]:
    """Every schedule that a call allows, that of the least predicted time first."""
    yield choose(record, call)
    shape = shape_of(record, call)
    for start in _for_images(record, shape, made(record, call), shape.images):
        yield from in_ranges(start)


def predicted(shape: WindowShape, found: Sequence[WindowSchedule], images: int) -> Array:
    """What schedules are compared by, where there are so many images."""
    us: Array = compared(quantities(shape, found, (images,)), len(found))[0]
    return us


def _fastest(shape: WindowShape, found: Sequence[WindowSchedule], images: int) -> WindowSchedule:
    return found[int(predicted(shape, found, images).argmin())]
