"""Columns: schedules of a call, what they cost, and their launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from normgen.counting import counted
from normgen.dtypes import DTYPES
from normgen.families.columns.launch.quantities import ColumnsSpace, nearly, quantities
from normgen.families.columns.launch.schedule import FORMS, ColumnSchedule, ColumnShape, next_tile
from normgen.families.columns.launch.space import settle, starts
from normgen.launching.accumulating import Accumulating, partial_name, wanted_columns
from normgen.launching.call import INT_LIMIT, WORD, Call, once
from normgen.launching.family import LaunchFamily, Lines, Lowered
from normgen.launching.pick import around, pick
from normgen.launching.quantities import Array
from normgen.launching.support import Support
from normgen.launching.table import key_of
from normgen.package.kernels import IMAGE, ColumnsRecord
from normgen.package.operands import OperandRecord


class Columns(LaunchFamily[ColumnsRecord, ColumnSchedule]):
    """The launch half of the columns family."""

    schedule = ColumnSchedule
    uses = MappingProxyType(
        {
            "registers": "a block holds columns in registers",
            "multipass": "columns of any length: one pass over memory per reduction",
            "second_stage": "after one of these: adds up what blocks left of sums",
        }
    )

    def space(self, kernel: ColumnsRecord, call: Call) -> Iterator[ColumnSchedule]:
        shape = shape_of(kernel, call)
        return around(pick(self, kernel, call, nearly(shape), shape.columns), ColumnsSpace(shape))

    def of_form(self, kernel: ColumnsRecord, call: Call, form: str) -> Iterator[ColumnSchedule]:
        found = starts(shape_of(kernel, call))
        return (each for each in found if each.form == form or form not in FORMS)

    def settle(self, kernel: ColumnsRecord, call: Call, schedule: ColumnSchedule) -> ColumnSchedule | Support:
        if schedule.form not in FORMS or all(form.form != schedule.form for form in kernel.forms):
            return Support(False, f"{kernel.name} has no form {schedule.form}")
        return settle(schedule, shape_of(kernel, call))

    def quantities(
        self, kernel: ColumnsRecord, call: Call, schedules: Sequence[ColumnSchedule]
    ) -> Mapping[str, Array]:
        shape = shape_of(kernel, call)
        return quantities(shape, schedules, (shape.columns,))

    def measured_as(self, kernel: ColumnsRecord, call: Call) -> tuple[str, int]:
        shape = shape_of(kernel, call)
        return key_of(shape, "device", "columns", "image", "misaligned"), shape.columns

    def moved(self, kernel: ColumnsRecord, call: Call, schedule: ColumnSchedule) -> Mapping[str, int]:
        return _Grid(kernel, call, schedule).moved()

    def lower(self, kernel: ColumnsRecord, call: Call, schedule: ColumnSchedule) -> Lowered:
        """The launches of one kernel: that of the columns, then the second-stage reduction if it has sums."""
        return _Grid(kernel, call, schedule).lowered()

    def describe(self, kernel: ColumnsRecord, call: Call, schedule: ColumnSchedule) -> str:
        return f"{describe(schedule)}, {counted(schedule.lanes, 'thread')} across"

    def explain(self, kernel: ColumnsRecord, call: Call, schedule: ColumnSchedule) -> Lines:
        s, reduced = schedule, ", ".join(kernel.reduced)
        kept = ", ".join([*(a for a in kernel.kept if a not in kernel.reduced), *kernel.inner])
        exchanges = f"{counted(kernel.exchanges, 'exchange')} per column"
        sums = f", {counted(len(kernel.columns), 'sum')} over columns" if kernel.columns else ""
        each = f"{counted(s.vector, 'column')} per thread, {counted(s.team, 'thread')} along a column"
        because = FORMS[s.form].because.format(counted(s.team, "thread"), counted(s.items, "element"))
        return (
            f"kernel {kernel.name}: columns [{kept}] of [{reduced}], {exchanges}{sums}",
            f"  {s.form}: {each}, {counted(s.items, 'element')} each, {counted(s.lanes, 'thread')} across, "
            f"about {s.registers} registers",
            f"    because {because}",
        )


def describe(s: ColumnSchedule) -> str:
    """A way to hold a column, in a few words."""
    across, along = counted(s.vector, "column"), counted(s.team, "thread")
    each = f"{s.form}, {across} per thread, {along} per column, {counted(s.items, 'element')} per thread"
    ways = (", the next tile on its way" * s.ahead, ", realigned" * s.realigned)
    return each + "".join(ways)


@once
def shape_of(record: ColumnsRecord, call: Call) -> ColumnShape:
    """What the choice of a schedule depends on."""
    reads, writes = call.read(record.reads), call.present(record.writes)
    wide = [o for o in (*reads, *writes) if o.inner == record.inner]
    picked = any(o.inner not in ((), record.inner) for o in (*record.reads, *record.writes))
    sums, segments = wanted_columns(record, call), call.size(record.segment)
    return ColumnShape(
        device=call.device,
        length=call.size(record.reduced),
        vector=call.vector_width(wide, call.size(record.inner)),
        misaligned=0 if picked else WORD // min(map(call.itemsize, wide), default=4),
        columns=call.size((*record.kept, *record.inner)) // call.size(record.reduced) // segments,
        side_by_side=call.size(record.inner),
        batched=not set(record.kept) <= set(record.reduced),
        segments=segments,
        reads=sum(call.itemsize(o) for o in reads if _is_vector(o, record)),
        writes=sum(call.itemsize(o) for o in writes if _is_vector(o, record)),
        again=sum((o.passes - 1) * call.itemsize(o) for o in reads if _is_vector(o, record)),
        narrowest=min(map(call.itemsize, wide), default=4),
        elements=sum(not o.inner and bool(set(o.kept) & set(record.reduced)) for o in reads),
        arrays=record.arrays,
        exchanged=record.exchanged,
        exchanges=record.exchanges,
        moments=record.moments,
        held=record.held,
        wide=sum(c.wide for c in sums),
        sums=len(record.columns),
        persistent=bool(sums),
        image=IMAGE in record.inner or len(record.inner) > 1,
    )


def _is_vector(operand: OperandRecord, record: ColumnsRecord) -> bool:
    """Whether an operand has a value for each column and at least some elements of it."""
    return operand.inner == record.inner and bool(set(operand.kept) & set(record.reduced))


class _Grid:
    """The blocks of one kernel with a schedule, and what they move."""

    def __init__(self, record: ColumnsRecord, call: Call, s: ColumnSchedule) -> None:
        self.record, self.call, self.schedule = record, call, s
        shape = shape_of(record, call)
        self.length, self.segments = shape.length, shape.segments
        inner = shape.side_by_side
        self.chunks_per_group = s.chunks(inner, inner)
        self.chunks = s.chunks(shape.columns, inner)  # of a segment
        self.tiles = -(-self.chunks // s.lanes)  # of a segment
        self.sums = wanted_columns(record, call)
        # one block for each tile; with sums over columns, as many as are resident together
        self.room = max(1, s.blocks * call.device.multiprocessors // self.segments)
        self.per_segment = min(self.tiles, self.room) if self.sums else self.tiles
        self.blocks = self.segments * self.per_segment

    def lowered(self) -> Lowered:
        """Its launches, and what the blocks leave of each sum."""
        s, record, call = self.schedule, self.record, self.call
        shape = shape_of(record, call)
        beyond = self.blocks * s.lanes  # the last tiles of all blocks, and those that would be next
        widths = {partial_name(record, c): c.partial(self.length) for c in self.sums}
        left = self.blocks * max(widths.values(), default=1)
        reach = max(left, (self.chunks + 2 * beyond) * s.vector, call.reach())
        constants = {
            "VEC": s.vector, "LANES": s.lanes, "TEAM": s.team, "THREADS": s.threads, "ITEMS": s.items,
            "MIN_BLOCKS": s.blocks, "LENGTH": self.length, "COVERS": s.items * s.team == self.length,
            "AHEAD": s.ahead, "REALIGNED": s.realigned,
        }  # fmt: skip
        own = {
            "chunks": self.chunks, "chunks_per_group": self.chunks_per_group, "blocks": self.per_segment,
        }  # fmt: skip
        most = self.segments * self.room
        wide = reach >= INT_LIMIT
        accumulating = Accumulating(record, call, record.reduced, own, wide, most, sized=shape.image)
        shared = next_tile(s.lanes, s, shape)
        launch = accumulating.launch(s.form, constants, self.blocks, s.threads, shared=shared)
        workspace = tuple((name, (self.blocks, width), "f32") for name, width in widths.items())
        return Lowered((launch, *accumulating.second_stage()), workspace)

    def moved(self) -> dict[str, int]:
        """Bytes by array. What columns share is counted once, since it stays in the cache."""
        call, record, again = self.call, self.record, not self.schedule.holds
        moved: Counter[str] = Counter()
        for o in call.read(record.reads):
            whole = _is_vector(o, record) and set(o.kept) == set(record.kept)
            moved[o.tensor] += (o.passes if again and whole else 1) * call.bytes_of(o.tensor)
        for o in call.present((*record.writes, *record.finals, *call.read(record.final_reads))):
            moved[o.tensor] += call.bytes_of(o.tensor)
        for column in self.sums:
            # a sum in memory is read and written again by each further tile
            rows = self.segments * self.tiles if again and column.wide else self.blocks
            values = rows * (self.length if column.wide else 1)
            moved[partial_name(record, column)] += 2 * values * DTYPES["f32"].bytes
        return dict(moved)


FAMILY = Columns()
