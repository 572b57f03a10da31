"""Which residence a kernel of the resident family takes: that with the least predicted time.

What a table has is taken from there. Else the knobs that decide the bits of a segment are chosen first, by
the regrets over how many segments there may be, so that it has the same bits in any batch. The others follow
from how many there are, in buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from normgen.families.resident.launch.quantities import ResidentShape, quantities
from normgen.families.resident.launch.residence import (
    MOST_STARTS,
    Residence,
    divided,
    division_of,
    every,
    unfit,
)
from normgen.families.resident.launch.segments import Segment
from normgen.launching.knobs import bits_of, distinct
from normgen.launching.machine import Machine, of_usual_size
from normgen.launching.pick import bucket_of, compared, counts_of, of_least_regret
from normgen.launching.quantities import Array
from normgen.launching.table import key_of, nearest


def pick(segment: Segment, shape: ResidentShape, segments: int) -> Residence | None:
    """The residence for so many segments, and nearly as many: that which was measured, else that with the
    least predicted time; None where there is none."""
    fast = nearest(shape.device.arch, key_of_segments(segment), Residence, segments)
    if fast is not None and not unfit(segment, fast, shape.device):
        return fast
    return _predicted(segment, shape, 1 if segment.bands else bucket_of(segments))


def key_of_segments(segment: Segment) -> str:
    """The key of a table for such segments, however many there are."""
    return f"{key_of(segment, 'record')}-{'moments' if segment.record.moments else 'sums'}"


@lru_cache(maxsize=1024)
def _predicted(segment: Segment, shape: ResidentShape, segments: int) -> Residence | None:
    """Bits are chosen for the usual number of multiprocessors; for those that there are only where none of
    the residences that have them may run on so few."""
    usual = replace(shape, device=of_usual_size(shape.device))
    counts = (1,) if segment.bands else counts_of(segment.rows * segment.length * _moved(shape))
    for each in dict.fromkeys((usual, shape)):
        starts = starts_of(segment, each.device)
        if not starts:
            continue
        alike = of_least_regret([bits_of(start) for start in starts], predicted(each, starts, counts))
        near = list(neighbours(segment, starts[alike[0]], shape.device))
        if near:
            return near[int(predicted(shape, near, (segments,))[0].argmin())]
    return None


def starts_of(segment: Segment, device: Machine) -> list[Residence]:
    """The residences that are looked at first."""
    return list(islice(distinct(every(segment, device)), MOST_STARTS))


def neighbours(segment: Segment, r: Residence, device: Machine) -> Iterator[Residence]:
    """The residences that give the bits of one."""
    return distinct(divided(segment, division_of(r), device))


def _moved(shape: ResidentShape) -> int:
    """Bytes of an element of all operands."""
    return max(1, shape.held + shape.written)


def predicted(shape: ResidentShape, found: Sequence[Residence], segments: Sequence[int]) -> Array:
    """What residences are compared by, for each number of segments."""
    return compared(quantities(shape, found, segments), len(found))
