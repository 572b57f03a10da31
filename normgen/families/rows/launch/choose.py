"""Which schedule a kernel of the rows family takes: that with the least predicted time.

What a table has is taken from there. Else the knobs that decide a row's bits are chosen first, by the regrets
over numbers of rows, so that a row has the same bits in any batch. Of the others a kernel has one choice, or
one for few rows and one for many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from normgen.counting import counted
from normgen.families.rows.launch.any_size import FORM, any_size
from normgen.families.rows.launch.forms import FORMS, form_of
from normgen.families.rows.launch.legal import legal
from normgen.families.rows.launch.quantities import quantities
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.space import neighbours, starts
from normgen.launching.call import Call, once
from normgen.launching.images import for_all_sizes
from normgen.launching.knobs import Knobs, bits_of, distinct, settled
from normgen.launching.machine import Machine, of_usual_size
from normgen.launching.pick import compared, counts_of, of_least_regret, of_two
from normgen.launching.quantities import Array
from normgen.launching.support import Support
from normgen.launching.table import key_of, measured
from normgen.package.kernels import RowsRecord

_SEGMENTS = 8  # of rows, where rows are in segments, of which a choice may not depend on the number


class Ways(NamedTuple):
    """How a kernel runs, whatever the number of its rows: `many`, or `few` where there are less than
    `below`."""

    many: RowSchedule
    few: RowSchedule
    below: int = 0


@once
def usual(kernel: RowsRecord, call: Call) -> Ways | None:
    """How a kernel runs by itself, in this call and in others like it; None where no thread group holds its
    rows."""
    return ways(of_any_count(kernel, call), call.device, forms_of(kernel))


def of_any_count(kernel: RowsRecord, call: Call) -> RowShape:
    """The shape of rows, however many there are."""
    return replace(shape_of(kernel, call), rows=0, segments=_SEGMENTS if kernel.segment else 1)


def default(kernel: RowsRecord, call: Call) -> RowSchedule | None:
    """The schedule that a kernel takes by itself."""
    found, shape = usual(kernel, call), shape_of(kernel, call)
    if found is None:
        return None
    return found.few if shape.rows * shape.segments < found.below else found.many


def in_two_ways(kernel: RowsRecord, call: Call) -> bool:
    """Whether a kernel has texts for few rows and for many."""
    found = usual(kernel, call)
    return found is not None and found.few is not found.many


def device_of(call: Call) -> Machine:
    """The device, with the multiprocessors that a call may count on."""
    return replace(call.device, multiprocessors=call.multiprocessors)


def forms_of(kernel: RowsRecord) -> tuple[str, ...]:
    """The forms that a kernel may take: those that hold rows, where it is for no others; that of the text for
    images of all sizes where that is asked for."""
    forms = tuple(form.form for form in kernel.forms if form.form in FORMS)
    forms = tuple(form for form in forms if not FORMS[form].sized or for_all_sizes())
    able = (form for form in forms if FORMS[form].holds or FORMS[form].sized)
    return tuple(able) if kernel.selective else forms


@lru_cache(maxsize=4096)
def ways(shape: RowShape, device: Machine, forms: tuple[str, ...]) -> Ways | None:
    """The schedules for such rows, however many there are (`shape` has none): those that were measured, else
    that of the text for all sizes, else those with the least predicted time."""
    if measured := _measured(shape, device, forms):
        return measured
    sized = any_size(shape, device) if FORM in forms else None
    return Ways(sized, sized) if sized else _predicted(shape, device, forms)


def _measured(shape: RowShape, device: Machine, forms: tuple[str, ...]) -> Ways | None:
    """The schedules of the table, for the fewest rows and for the most, if all of them may run."""
    fitted: list[tuple[int, RowSchedule]] = []
    for count, each in measured(device.arch, key_of_rows(shape), RowSchedule):
        found = legal(each, shape, device) if each.form in forms else Support(False)
        if isinstance(found, Support) or isinstance(settled(each, found), Support):
            return None
        fitted.append((count, found))
    if not fitted:
        return None
    (_, few), (_, many) = fitted[0], fitted[-1]
    if few == many:
        return Ways(many, many)
    up_to = max(count for count, each in fitted if each == few)
    from_ = min(count for count, _ in fitted if count > up_to)
    return Ways(many, few, round((up_to * from_) ** 0.5))


def key_of_rows(shape: RowShape) -> str:
    """The key of a table for such rows, however many there are."""
    return key_of(shape, "rows", "sized", "sized_anywhere")


def _predicted(shape: RowShape, device: Machine, forms: tuple[str, ...]) -> Ways | None:
    """Those with the least predicted time: of the starts with the bits that do best, the neighbours of the
    one for the fewest rows and of the one for the most.

    Bits are chosen for the usual number of multiprocessors; for those that there are only where none of the
    schedules that have them may run on so few."""
    counts, usual = counts_of(_moved(shape)), of_usual_size(device)
    for size in dict.fromkeys((usual, device)):
        found = starts(shape, size, forms)
        if not found:
            continue
        us = predicted(shape, usual, found, counts)
        alike = of_least_regret([bits(each) for each in found], us)
        firsts = dict.fromkeys(alike[int(us[row, alike].argmin())] for row in (0, -1))
        near = [s for place in firsts for s in neighbours(found[place], shape, device, forms)]
        if near:
            near = list(distinct(near))
            many, few, below = of_two(counts, predicted(shape, device, near, counts))
            return Ways(near[many], near[few], below)
    return None


def _moved(shape: RowShape) -> int:
    """Bytes of a row."""
    return shape.length * max(1, shape.walked + shape.stored)


def predicted(shape: RowShape, device: Machine, found: Sequence[RowSchedule], rows: Sequence[int]) -> Array:
    """What schedules are compared by, for each number of rows of all segments."""
    each = [max(1, count // shape.segments) for count in rows]
    return compared(quantities(shape, device, found, each), len(found))


def bits(s: RowSchedule) -> Knobs:
    """What decides the bits of a row: forms that add it up in one order are one."""
    return tuple((dict(bits_of(s)) | {"form": form_of(s).order}).items())


def describe(s: RowSchedule) -> str:
    """A schedule in a few words."""
    reload = ", row re-read" if s.reload else ""
    reload += ", realigned loads" if s.realigned else ""
    where = "the pipeline" if form_of(s).pipelined else "shared memory"
    reload += f", {counted(s.places, 'vector')} per thread in {where}" if s.places else ""
    several = s.cluster * s.members
    cluster = f" in {several} blocks" if several > 1 else ""
    threads, elements = counted(s.team, "thread"), counted(s.elements, "element")
    return f"{s.form}, {threads} per row{cluster}, {elements} per thread{reload}"


def describe_fully(s: RowSchedule) -> str:
    """A schedule in so many words that no two of a call are alike."""
    form, how = form_of(s), [describe(s)]
    if form.covers and s.cluster == 1 and (s.teams > 1 or form.pipelined):
        how.append(f"{counted(s.teams, 'row')} per block")
    if form.pipelined:
        how += [f"{s.threads} threads per block"] if s.cluster > 1 else []
        how.append(counted(s.stages, "stage"))
    if s.bulk:
        how.append("bulk")
    how += [word for word, on in (("late", s.late), ("staged", s.staged)) if on]
    return ", ".join([*how, f"{counted(s.blocks, 'block')} per multiprocessor"])
