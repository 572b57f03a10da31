"""What the rows family chooses its schedules from, and how it names and describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from normgen.counting import counted
from normgen.families.rows.launch.forms import FORMS, form_of
from normgen.families.rows.launch.quantities import quantities
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.space import neighbours, starts
from normgen.launching.call import Call
from normgen.launching.knobs import Knobs, bits_of
from normgen.launching.machine import Machine
from normgen.launching.pick import Space, buckets_of, compared
from normgen.launching.quantities import Array
from normgen.launching.table import key_of
from normgen.package.kernels import RowsRecord

_SEGMENTS = 8  # of rows, where rows are in segments, of which a choice may not depend on the number


@dataclass(frozen=True, slots=True)
class RowsSpace(Space[RowSchedule]):
    """Rows of a shape, however many there are (`shape` has none)."""

    shape: RowShape
    device: Machine
    forms: tuple[str, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return buckets_of(self.shape.length * max(1, self.shape.walked + self.shape.stored))

    def starts(self) -> Sequence[RowSchedule]:
        return starts(self.shape, self.device, self.forms)

    def near(self, start: RowSchedule) -> Sequence[RowSchedule]:
        return neighbours(start, self.shape, self.device, self.forms)

    def times(self, found: Sequence[RowSchedule], counts: Sequence[int]) -> Array:
        rows = [max(1, count // self.shape.segments) for count in counts]
        return compared(quantities(self.shape, self.device, found, rows), len(found))


def space_of(kernel: RowsRecord, call: Call) -> RowsSpace:
    """What a kernel chooses from, however many rows it has."""
    return RowsSpace(of_any_count(kernel, call), call.device, forms_of(kernel))


def of_any_count(kernel: RowsRecord, call: Call) -> RowShape:
    """The shape of rows, however many there are."""
    return replace(shape_of(kernel, call), rows=0, segments=_SEGMENTS if kernel.segment else 1)


def forms_of(kernel: RowsRecord) -> tuple[str, ...]:
    """The forms that a kernel may take: those that hold rows, where it is for no others."""
    forms, any_length = [form.form for form in kernel.forms], not kernel.selective
    return tuple([form for form in forms if form in FORMS and (any_length or FORMS[form].holds)])


def key_of_rows(shape: RowShape) -> str:
    """The key of a table for such rows, however many there are."""
    return key_of(shape, "rows")


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
