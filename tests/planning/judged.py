"""What planning alone tells of a schedule that is taken: faults that need no GPU to be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import normgen
from bench import registers
from bench.drawn import Drawn
from normgen.families.columns.launch.schedule import ColumnSchedule
from normgen.families.resident.launch.residence import Residence
from normgen.families.rows.launch.forms import form_of
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.launch import Binding
from normgen.launching.machine import REGISTER_BYTES, Machine
from normgen.measure.norms import contiguous_binding, direction_of
from normgen.runtime.planning.choose import Alternative, Candidate, candidates, fastest

# A card of each kind: with and without clusters, large and small.
DEVICES: Mapping[str, Machine] = {
    "A100": registers.DEVICES["sm_80"],
    "L4": registers.DEVICES["sm_89"],
    "H200": registers.DEVICES["sm_90"],
    "B200": registers.DEVICES["sm_100"],
    "RTX 5090": registers.DEVICES["sm_120"],
}
_IDLE = 0.35  # of the places for elements
_SLOWER = 1.3  # than what the estimate likes best
_WORTH = 1024  # elements that are worth a block


def planned(drawn: Drawn, device: Machine) -> tuple[Alternative, Binding]:
    """What a call would run, its kernels with their schedules; and its arrays."""
    package = normgen.load(drawn.norm, **dict(drawn.attrs)).package
    direction = direction_of(package, drawn.direction)
    binding = contiguous_binding(direction, dict(drawn.sizes), drawn.dtype)
    return fastest(direction.record, binding, device), binding


def faults(drawn: Drawn, device: Machine) -> Iterator[str]:
    """Those of the kernels of a call, whatever they are estimated to take."""
    for kernel in planned(drawn, device)[0].kernels:
        for name, found in FAULTS.items():
            if found(kernel):
                yield f"{kernel.kernel.name}: {name}"


def disliked(drawn: Drawn, device: Machine) -> Iterator[str]:
    """The kernels of which the estimate likes another schedule much better."""
    taken, binding = planned(drawn, device)
    for kernel, offers in zip(taken.kernels, candidates(taken.strategy, binding, device), strict=True):
        if kernel.microseconds > _SLOWER * min(each.microseconds for each in offers):
            yield f"{kernel.kernel.name}: estimated slower than another"


# ------------------------------------------------------------------------------------------------ faults


def _single_elements(each: Candidate) -> bool:
    """Whether it moves less than 4 bytes at a time where wide vectors could be cut out of the words around
    them."""
    s = each.schedule
    if not isinstance(s, RowSchedule):
        return False
    shape = shape_of(each.kernel, each.call)
    narrow = s.vector * shape.narrowest < REGISTER_BYTES and s.vector < shape.realigned
    return narrow and s.form != "row_tile"  # which reads whole words, whatever the vectors


def _idle(each: Candidate) -> bool:
    """Whether too many places of its thread groups have no element."""
    s, call = each.schedule, each.call
    match s:
        case RowSchedule() if not form_of(s).streams:
            have, places = call.size(each.kernel.inner), s.elements * s.team
        case ColumnSchedule() if s.holds:
            have, places = call.size(each.kernel.reduced), s.team * s.items
        case Residence():
            segments = call.size(each.kernel.segment)
            have, places = call.size(each.kernel.kept) // segments, s.rows
        case _:
            return False
    return have < (1 - _IDLE) * places


def _few_blocks(each: Candidate) -> bool:
    """Whether less than half of the multiprocessors have a block although there are rows or columns, or
    elements of rows, for more."""
    if not isinstance(each.schedule, RowSchedule | ColumnSchedule):
        return False
    blocks = max(prod(launch.grid) for launch in each.lowered.launches)
    elements = each.call.size((*each.kernel.kept, *each.kernel.inner))
    wanted = each.call.device.multiprocessors / 2
    return blocks < wanted <= elements / _WORTH


FAULTS: Mapping[str, Callable[[Candidate], bool]] = {
    "single elements": _single_elements,
    "idle places": _idle,
    "few blocks": _few_blocks,
}
