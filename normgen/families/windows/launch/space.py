"""The forms of the windows family, the schedules of each that a call allows, and which should be fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.windows.launch import march, pixels
from normgen.families.windows.launch.schedule import (
    Sizes,
    WindowSchedule,
    access_cost,
    again_cost,
    ranged,
    vectors,
    wide,
)
from normgen.launching.call import Call, once
from normgen.launching.facts import power_of_two
from normgen.launching.knobs import settled
from normgen.launching.support import Support
from normgen.package.kernels import WindowsRecord

_THREADS, _BLOCKS = 256, (256, 64, 128, 512)  # per block of spans and of direct looks: by itself; any
_RANGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # that are offered
_WIDEST_SPAN = 64  # elements that a thread reads of an operand
_LOOKED_AT = 10.0  # what it costs to look at every neighbour: all others come first


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family, as it is launched."""

    made: Callable[[WindowsRecord, Call, Sizes], WindowSchedule | None]  # of such sizes, if there is one
    usual: Callable[[WindowsRecord, Call], Iterable[Sizes]]  # those that are compared by their cost
    every: Callable[[WindowsRecord, Call], Iterable[Sizes]]  # those that it may have
    cost: Callable[[WindowsRecord, Call, WindowSchedule], float]  # see `cost_of`
    efficiency: float  # fraction of the memory's speed, where accesses have 16 bytes
    each: Callable[[WindowSchedule], str]  # what a thread has at a time, in a few words
    threads: Callable[[WindowSchedule, int], int] = lambda s, images: images * s.lanes  # of all images
    strips: Callable[[WindowSchedule], int] = lambda s: s.lanes  # parts of an image
    beyond: Callable[[WindowsRecord, WindowSchedule], int] = lambda record, s: 0  # elements past its end
    whole: bool = True  # whether images must lie in one piece
    ranged: bool = False  # whether ranges share the steps of an image
    coalesced: bool = False  # whether the accesses of neighbouring threads are one, however narrow


def schedules(record: WindowsRecord, call: Call) -> list[WindowSchedule]:
    """The schedules that are compared by their cost, of each form those with the widest vectors first."""
    return _of_forms(record, call, lambda form: form.usual(record, call))


@once
def choose(record: WindowsRecord, call: Call) -> WindowSchedule:
    """The schedule with the least estimated cost."""
    return min(schedules(record, call), key=lambda s: cost_of(record, call, s))


def space(record: WindowsRecord, call: Call) -> Iterator[WindowSchedule]:
    """The schedules that a call allows: those that are compared by their cost, then all others; where ranges
    share an image, with more and fewer of them too."""
    compared = sorted(schedules(record, call), key=lambda s: cost_of(record, call, s))
    for s in chain(compared, _of_forms(record, call, lambda form: form.every(record, call))):
        yield s
        for ranges in (*_RANGES, s.ranges - 1, s.ranges + 1):
            if FORMS[s.form].ranged and 0 < ranges <= s.steps:
                yield _cut(s, ranges)


def _of_forms(
    record: WindowsRecord, call: Call, sizes: Callable[[Form], Iterable[Sizes]]
) -> list[WindowSchedule]:
    """The schedules of these sizes of each form, as far as there are any."""
    forms = [FORMS[form.form] for form in record.forms]
    whole = _in_one_piece(record, call)
    found = (
        form.made(record, call, each) for form in forms if whole or not form.whole for each in sizes(form)
    )
    return [s for s in found if s is not None]


def settle(record: WindowsRecord, call: Call, s: WindowSchedule) -> WindowSchedule | Support:
    """A schedule with what is estimated of it, or why none of a kernel in a call is so. Ranges may be as many
    as there are steps."""
    if s.form not in FORMS or all(s.form != each.form for each in record.forms):
        return Support(False, f"{record.name} has no form {s.form}")
    form, sizes = FORMS[s.form], Sizes(s.vector, s.threads, s.chunk)
    if form.whole and not _in_one_piece(record, call):
        return Support(False, "images do not lie in one piece")
    found = form.made(record, call, sizes) if sizes in form.every(record, call) else None
    if found is None:
        return Support(False, f"{s.form}, {form.each(s)}, {counted(s.threads, 'thread')}, does not fit")
    if form.ranged and 0 < s.ranges <= found.steps and s.ranges != found.ranges:
        found = _cut(found, s.ranges)
    return settled(s, found)


def _cut(s: WindowSchedule, ranges: int) -> WindowSchedule:
    """The schedule with another number of ranges."""
    other = ranged(s, ranges)
    return replace(other, reason=f"{s.reason}, cut into {other.ranges} instead")


def _in_one_piece(record: WindowsRecord, call: Call) -> bool:
    return all(call.contiguous(o) for o in wide(record, call))


def cost_of(record: WindowsRecord, call: Call, s: WindowSchedule) -> float:
    """A rough measure to compare schedules by: narrow accesses, what is computed for neighbours again or for
    nobody, and what neighbours hand to one another. It does not depend on how many images there are, since
    pixels add up in another order than the other forms."""
    return FORMS[s.form].cost(record, call, s)


# ------------------------------------------------------------------------------------------------ forms


def _usual_blocks(record: WindowsRecord, call: Call) -> Iterator[Sizes]:
    return (Sizes(vector, _THREADS) for vector in vectors(record, call))


def _blocks(record: WindowsRecord, call: Call) -> Iterator[Sizes]:
    return (Sizes(vector, threads) for vector, threads in product(vectors(record, call), _BLOCKS))


def _direct_vector(record: WindowsRecord, call: Call) -> int:
    """The widest access to what lies along the innermost axis."""
    inner = record.axes[-1]
    touched = call.touched(record.reads, record.writes)
    along = [o for o in touched if dict(call.operands[o.tensor].strides).get(inner, 0) == 1]
    return 1 if inner in record.windowed else call.vector_width(along, call.extents[inner])


def _direct(record: WindowsRecord, call: Call, sizes: Sizes) -> WindowSchedule:
    lanes = -(-call.size(record.axes) // sizes.vector)
    return WindowSchedule("direct", sizes.vector, sizes.threads, "every neighbour is looked at", lanes=lanes)


def _span(record: WindowsRecord, call: Call, sizes: Sizes) -> WindowSchedule | None:
    reach, vector = march.reach_of(record), sizes.vector
    # in pieces that are aligned
    halo = -(-reach // vector) * vector if reach > vector else reach and power_of_two(reach)
    if vector + 2 * halo > _WIDEST_SPAN:
        return None
    reason = f"{counted(halo, 'neighbour')} on either side are read with {counted(vector, 'element')}"
    lanes = call.size(record.image) // vector
    return WindowSchedule("span", vector, sizes.threads, reason, halo, lanes=lanes)


def _access(s: WindowSchedule) -> str:
    return f"{counted(s.vector, 'element')} per access"


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "march": Form(
            march.made,
            march.usual,
            march.every,
            march.cost,
            0.8,
            _access,
            march.threads,
            march.strips,
            ranged=True,
        ),
        "pixels": Form(
            pixels.made,
            pixels.usual,
            pixels.every,
            pixels.cost,
            0.8,
            lambda s: f"{counted(s.chunk, 'channel')} at a time",
            pixels.threads,
            pixels.strips,
            pixels.past_the_end,
            ranged=True,
            coalesced=True,
        ),
        "span": Form(
            _span,
            _usual_blocks,
            _blocks,
            lambda record, call, s: access_cost(record, call, s) + again_cost(record, 2 * s.halo / s.vector),
            0.9,
            _access,
        ),
        "direct": Form(
            _direct,
            lambda record, call: [Sizes(_direct_vector(record, call), _THREADS)],
            lambda record, call: [Sizes(_direct_vector(record, call), threads) for threads in _BLOCKS],
            lambda record, call, s: _LOOKED_AT,
            0.4,
            _access,
            lambda s, images: s.lanes,
            whole=False,
        ),
    }
)
