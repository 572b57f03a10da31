"""Launches of the columns family: threads own neighbouring columns; see `columns_schedule` for how."""

from __future__ import annotations

from collections.abc import Iterator

from normgen.dtypes import DTYPES
from normgen.families.columns.launch.schedule import Schedule, Shape, next_tile
from normgen.families.columns.launch.space import Along, along, describe, merit_along, space
from normgen.launching.accumulating import Accumulating, partial_name, wanted_columns
from normgen.launching.call import INT_LIMIT, Call, once
from normgen.launching.family import Cost, LaunchFamily, Lines, Lowered, Rejected
from normgen.launching.launch import Launch
from normgen.package.kernels import ColumnsRecord
from normgen.package.operands import ColumnRecord, OperandRecord


class Columns(LaunchFamily[ColumnsRecord, Schedule]):
    """The launch half of the columns family."""

    def space(self, kernel: ColumnsRecord, call: Call) -> Iterator[Schedule]:
        """Every schedule that fits: by what should be fastest along the columns, then across them."""
        return space(shape_of(kernel, call), along_of(kernel, call)[0], call.device, call.multiprocessors)

    def cost(self, kernel: ColumnsRecord, call: Call, schedule: Schedule) -> Cost:
        columns, best = _Columns(kernel, schedule, call), along_of(kernel, call)[0][0][1]
        merit = merit_along(schedule, columns.shape, call.device)
        merit /= merit_along(best, columns.shape, call.device)
        launches = 1 + bool(columns.sums)
        return Cost(columns.moved(), schedule.efficiency, merit, launches, bool(columns.sums))

    def lower(self, kernel: ColumnsRecord, call: Call, schedule: Schedule) -> Lowered:
        """The launches of one kernel: that of the columns, then the finalising one if it has sums."""
        columns = _Columns(kernel, schedule, call)
        return Lowered(columns.launches(), columns.workspace())

    def describe(self, kernel: ColumnsRecord, call: Call, schedule: Schedule) -> str:
        return f"{describe(schedule)}, {schedule.lanes} threads across"

    def explain(self, kernel: ColumnsRecord, call: Call, schedule: Schedule) -> Lines:
        usual = schedule == next(self.space(kernel, call))
        rejected = along_of(kernel, call)[1] if usual else ()
        return tuple(_describe(kernel, schedule, rejected))


@once
def along_of(record: ColumnsRecord, call: Call) -> tuple[Along, tuple[Rejected, ...]]:
    """Every way to hold a column, the best first, and what was rejected."""
    return along(shape_of(record, call), call.device)


@once
def shape_of(record: ColumnsRecord, call: Call) -> Shape:
    """What the choice of a schedule depends on."""
    reads = call.read(record.reads)
    vectors = [o for o in reads if _is_vector(o, record)]
    stores = [o for o in call.present(record.writes) if _is_vector(o, record)]
    wide = [o for o in (*reads, *call.present(record.writes)) if o.inner == record.inner]
    sums = wanted_columns(record, call)
    segments = call.size(record.segment)
    return Shape(
        length=call.size(record.reduced),
        vector=call.vector_width(wide, call.size(record.inner)),
        columns=call.size((*record.kept, *record.inner)) // call.size(record.reduced) // segments,
        segments=segments,
        reads=sum(map(call.itemsize, vectors)),
        writes=sum(map(call.itemsize, stores)),
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
    )


def _is_vector(operand: OperandRecord, record: ColumnsRecord) -> bool:
    """Whether an operand has a value for each column and at least some elements of it."""
    return operand.inner == record.inner and bool(set(operand.kept) & set(record.reduced))


class _Columns:
    """One kernel, its schedule, and the arrays of one call."""

    def __init__(self, record: ColumnsRecord, schedule: Schedule, call: Call) -> None:
        self.record, self.schedule, self.call = record, schedule, call
        self.shape = shape_of(record, call)
        self.length = call.size(record.reduced)
        self.segments = call.size(record.segment)
        self.groups = call.size(a for a in record.kept if a not in (*record.reduced, *record.segment))
        self.chunks_per_group = call.size(record.inner) // schedule.vector
        self.chunks = self.groups * self.chunks_per_group
        self.sums = wanted_columns(record, call)
        self.blocks_per_segment = self._blocks_per_segment()
        self.blocks = self.segments * self.blocks_per_segment
        beyond = self.blocks * schedule.lanes  # the last tiles of all blocks, and those that would be next
        reach = max(self.blocks * self.length, (self.chunks + 2 * beyond) * schedule.vector)
        self.wide = max(reach, call.reach()) >= INT_LIMIT

    def workspace(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """What the blocks leave of each sum."""
        return tuple((partial_name(self.record, c), (self.blocks, self._width(c)), "f32") for c in self.sums)

    def _blocks_per_segment(self) -> int:
        """One block for each tile; with sums over columns, as many as are resident together."""
        tiles = -(-self.chunks // self.schedule.lanes)
        if not self.sums:
            return tiles
        return min(tiles, self._room())

    def _room(self) -> int:
        """How many blocks to give a segment."""
        return max(1, self.schedule.blocks * self.call.multiprocessors // self.segments)

    def _width(self, column: ColumnRecord) -> int:
        return self.length if column.wide else 1

    # -------------------------------------------------------------------------------------------- launches

    def launches(self) -> tuple[Launch, ...]:
        s, record = self.schedule, self.record
        knobs = {
            "VEC": s.vector, "LANES": s.lanes, "TEAM": s.team, "THREADS": s.threads, "ITEMS": s.items,
            "MIN_BLOCKS": s.blocks, "LENGTH": self.length,
        }  # fmt: skip
        own = {
            "chunks": self.chunks,
            "chunks_per_group": self.chunks_per_group,
            "blocks": self.blocks_per_segment,
        }
        most = self.segments * self._room()
        accumulating = Accumulating(record, self.call, record.reduced, own, self.wide, most)
        switches = {"COVERS": s.items * s.team == self.length}
        switches |= {"AHEAD": s.ahead} if record.columns and s.form == "registers" else {}
        shared = next_tile(s, self.shape) if s.ahead else 0
        launch = accumulating.launch(s.form, s.reason, knobs, switches, self.blocks, s.threads, shared=shared)
        return (launch, *accumulating.finalise())

    # -------------------------------------------------------------------------------------------- estimates

    def moved(self) -> dict[str, int]:
        """Bytes by array. What columns share is counted once, since it stays in the cache."""
        call, record, streams = self.call, self.record, self.schedule.form == "stream"
        moved: dict[str, int] = {}

        def add(name: str, count: int) -> None:
            moved[name] = moved.get(name, 0) + count

        for o in call.read(record.reads):
            whole = _is_vector(o, record) and set(o.kept) == set(record.kept)
            add(o.tensor, (o.passes if streams and whole else 1) * call.bytes_of(o.tensor))
        for o in (*record.writes, *record.finals, *call.read(record.final_reads)):
            if o.tensor in call.operands:
                add(o.tensor, call.bytes_of(o.tensor))
        for column in self.sums:
            name = partial_name(self.record, column)
            scratch = self.blocks * self._width(column) * DTYPES["f32"].bytes
            add(name, 2 * scratch)
            if streams and column.wide:
                # The sum is in memory: read and written again by each further tile.
                tiles = self.segments * -(-self.chunks // self.schedule.lanes)
                add(name, 2 * (tiles * self.length * DTYPES["f32"].bytes - scratch))
        return moved


def _describe(record: ColumnsRecord, s: Schedule, rejected: tuple[Rejected, ...]) -> list[str]:
    kept = ", ".join([*(a for a in record.kept if a not in record.reduced), *record.inner])
    exchanges = f"{record.exchanges} exchange{'s' if record.exchanges != 1 else ''} a column"
    sums = f", {len(record.columns)} sums over columns" if record.columns else ""
    each = f"{s.vector} columns a thread, {s.team} threads along a column, {s.items} elements each"
    return [
        f"kernel {record.name}: columns [{kept}] of [{', '.join(record.reduced)}], {exchanges}{sums}",
        f"  {s.form}: {each}, {s.lanes} threads across, about {s.registers} registers",
        f"    because {s.reason}",
        *(f"  not {r.what}: {r.reason}" for r in rejected[:4]),
    ]
