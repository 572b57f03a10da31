"""Launches of the rows family: a thread group owns a row; see `schedule` for how it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.rows.launch.blocks import RowBlocks
from normgen.families.rows.launch.choose import (
    RowsSpace,
    bits,
    describe_fully,
    forms_of,
    key_of_rows,
    of_any_count,
    space_of,
)
from normgen.families.rows.launch.cost import moved
from normgen.families.rows.launch.fitting import spare_words
from normgen.families.rows.launch.forms import FORMS, reason_of
from normgen.families.rows.launch.legal import settle
from normgen.families.rows.launch.quantities import quantities
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.space import starts
from normgen.launching.accumulating import BIT_WORD, Accumulating, partial_name, published_name, words_name
from normgen.launching.call import WORD, Call, once
from normgen.launching.family import LaunchFamily, Lines, Lowered
from normgen.launching.knobs import Knobs
from normgen.launching.launch import Launch
from normgen.launching.pick import around, every, pick
from normgen.launching.quantities import Array
from normgen.launching.support import SUPPORTED, Support
from normgen.package.kernels import RowsRecord
from normgen.package.operands import OperandRecord

# How often rows fill the second-level cache before it is told what to keep. With less nothing is gained.
_CACHES = 2


class Rows(LaunchFamily[RowsRecord, RowSchedule]):
    """The launch half of the rows family."""

    schedule = RowSchedule
    uses = MappingProxyType(
        {
            "registers": "a block, or a cluster of blocks, holds a row in registers",
            "pipeline": "persistent blocks: the next rows arrive in shared memory",
            "row_tile": "short misaligned rows, which a block moves by aligned words",
            "cooperative": "long rows: many blocks share one and exchange through memory",
            "word_aligned": "a pipeline of misaligned rows, stored by aligned words",
            "multipass": "rows of any length: one pass over memory per reduction",
            "batch": "nothing is reduced within a row: a thread takes several rows",
            "clear": "before cooperative, where its flags are not clear",
            "second_stage": "after one of these: adds up what blocks left of sums",
        }
    )

    def fits(self, kernel: RowsRecord, call: Call) -> Support:
        """Whether the rows of this call can be had, where not all can: as they lie in memory, and as long as
        they are."""
        if not kernel.selective:
            return SUPPORTED
        contiguous = all(map(call.contiguous, call.read(kernel.reads)))
        if contiguous and default(kernel, call) is not None:
            return SUPPORTED
        return Support(False, "no thread group holds its rows")

    def space(self, kernel: RowsRecord, call: Call) -> Iterator[RowSchedule]:
        space = RowsSpace(shape_of(kernel, call), call.device, forms_of(kernel))
        return around(default(kernel, call), space)

    def of_form(self, kernel: RowsRecord, call: Call, form: str) -> Iterator[RowSchedule]:
        shape = shape_of(kernel, call)
        able = [each for each in forms_of(kernel) if FORMS[each].able(shape)]
        having = [each for each in able if form in (each, "clear" if FORMS[each].meets else "second_stage")]
        return iter(starts(shape, call.device, having) if having else ())

    def settle(self, kernel: RowsRecord, call: Call, schedule: RowSchedule) -> RowSchedule | Support:
        return settle(kernel, call, schedule)

    def bits(self, schedule: RowSchedule) -> Knobs:
        return bits(schedule)

    def quantities(
        self, kernel: RowsRecord, call: Call, schedules: Sequence[RowSchedule]
    ) -> Mapping[str, Array]:
        shape = shape_of(kernel, call)
        return quantities(shape, call.device, schedules, (shape.rows,))

    def measured_as(self, kernel: RowsRecord, call: Call) -> tuple[str, int]:
        shape = shape_of(kernel, call)
        return key_of_rows(of_any_count(kernel, call)), shape.rows * shape.segments

    def moved(self, kernel: RowsRecord, call: Call, schedule: RowSchedule) -> Mapping[str, int]:
        return moved(RowBlocks(kernel, schedule, call))

    def lower(self, kernel: RowsRecord, call: Call, schedule: RowSchedule) -> Lowered:
        """The launches of one kernel: that of the rows, then the second-stage reduction if it has column
        sums."""
        rows = RowBlocks(kernel, schedule, call)
        workspace = (
            *((partial_name(kernel, c), rows.partials_of(c), "f32") for c in rows.columns if rows.leaves),
            *([(words_name(kernel), (rows.words * BIT_WORD // 4,), "f32")] if rows.words else []),
            *([(published_name(kernel), (rows.published,), "f32")] if rows.published else []),
        )
        return Lowered(_launches(rows, _alone(rows)), workspace)

    def describe(self, kernel: RowsRecord, call: Call, schedule: RowSchedule) -> str:
        return describe_fully(schedule)

    def explain(self, kernel: RowsRecord, call: Call, schedule: RowSchedule) -> Lines:
        shape, s, blocks = shape_of(kernel, call), schedule, RowBlocks(kernel, schedule, call)
        rows, row = ", ".join(kernel.kept), ", ".join(kernel.inner)
        kept = _untagged_units(blocks)
        unit = "row" if blocks.form.in_order else "cluster" if s.cluster > 1 else "block"
        lines = [f"    loads are tagged evict_last, except in the last {counted(kept, unit)}"] if kept else []
        exchanges = f"{counted(kernel.exchanges, 'exchange')} per row"
        columns = f", {counted(len(kernel.columns), 'accumulator')} over rows" if kernel.columns else ""
        threads, elements = counted(s.team, "thread"), counted(s.elements, "element")
        per_row = f"{threads} per row, {counted(s.vector, 'element')} per load, {elements} per thread"
        several = s.cluster * s.members
        block = f"of {s.threads} threads"
        rows_of = (
            f"{several} blocks {block} per row"
            if several > 1
            else f"{counted(s.teams, 'row')} per block {block}"
        )
        return (
            f"kernel {kernel.name}: rows [{rows}] of [{row}], {exchanges}{columns}",
            f"  {s.form}: {per_row}, {rows_of}, {s.shared} bytes of shared memory",
            f"    because {reason_of(s, shape)}",
            *lines,
        )

    def texts(self, kernel: RowsRecord, call: Call) -> tuple[Launch, ...]:
        """Launches with every text that calls like this one take, whatever the number of their rows.

        Some are beyond 2^31 elements, where offsets of 64 bits would spill. Only texts, entries and shared
        memory are those of such calls.
        """
        found: dict[tuple[str, str], Launch] = {}
        each_alone = call.device.multiprocessors
        for schedule, least, beyond in every(self, kernel, call, space_of(kernel, call)):
            near = RowBlocks(kernel, schedule, call, wide=False)
            blocks = (
                [near] if near.far or kernel.pieces else [near, RowBlocks(kernel, schedule, call, wide=True)]
            )
            able = _may_be_alone(near)
            alone = [False] * (not able or beyond > each_alone + 1) + [True] * (able and least <= each_alone)
            for rows, each, few_segments in product(blocks, alone, (False, True)):
                if rows.wide and each:  # few rows do not reach that far
                    continue
                for launch in _launches(rows, each, few_segments):
                    found[launch.source, launch.entry] = launch
        return tuple(found.values())


@once
def default(kernel: RowsRecord, call: Call) -> RowSchedule | None:
    """The schedule that a kernel takes by itself; None where no thread group holds its rows."""
    shape = shape_of(kernel, call)
    return pick(FAMILY, kernel, call, space_of(kernel, call), shape.rows * shape.segments)


def _launches(rows: RowBlocks, alone: bool, few_segments: bool | None = None) -> tuple[Launch, ...]:
    """`alone`: the text for blocks that have a multiprocessor each. `few_segments`: that of the second-stage
    kernel for so many; as it is where None. A text has those of the constants that it reads."""
    s, form = rows.schedule, rows.form
    spare = s.stages * spare_words(s, form.word_stores) * WORD
    constants = {
        "VEC": s.vector, "TEAM": s.team, "TEAMS": s.teams, "ITEMS": s.items,
        "THREADS": s.threads,
        "MIN_BLOCKS": 1 if alone else max(1, s.blocks), "LENGTH": rows.length,
        "UNTAGGED": 0 if alone else _untagged(rows), "RUN": rows.run,
        "MEMBERS": s.members,
        "STAGES": s.stages, "SLOTS": form.slots(s), "SPARE": spare,
        "BATCH": s.batch, "REALIGNED": s.realigned, "BACKWARDS": _backwards(rows), "RELOAD": s.reload,
        "LATE": s.late and not (alone and s.form == "registers"),  # a block alone has all registers
        "BULK": s.bulk, "REFILLED": s.places > 0, "STAGED": s.staged, "HELD": s.held,
    }  # fmt: skip
    several = s.cluster * s.members
    own = {
        "rows": rows.rows,
        "team": s.team // several,
        "members": several,
        "blocks": rows.blocks_per_segment,
    }
    accumulating = Accumulating(
        rows.kernel,
        rows.call,
        rows.kernel.inner,
        own,
        rows.wide,
        rows.most_partials(),
        rows.runs,
        rows.words,
        rows.published,
        s.members if form.streams else 1,
        rows.most_of_segment(),
        rows.kernel.kept[:-1] if rows.far else None,
        finishes=rows.finishes and few_segments is None,
        left=rows.leaves,
    )
    launches = (
        accumulating.launch(
            s.form,
            constants | {"LAUNCH": number},
            rows.resident * s.cluster * s.members,
            s.threads,
            shared=s.shared,
            cluster=s.cluster,
            results=number == rows.launches - 1,
        )
        for number in range(rows.launches)
    )
    return (*accumulating.clear(), *launches, *accumulating.second_stage(few_segments))


def _backwards(rows: RowBlocks) -> bool:
    """Whether the last rows come first: a kernel before has read them, and they may be in the cache."""
    warm = rows.call.warm.get(rows.kernel.name, ())
    return not rows.columns and any(o.tensor in warm for o in _walked(rows))


def _alone(rows: RowBlocks) -> bool:
    """Whether there is a multiprocessor for each row (decoding), so that its block has all the registers."""
    return _may_be_alone(rows) and rows.rows <= rows.call.device.multiprocessors


def _may_be_alone(rows: RowBlocks) -> bool:
    """Whether there is another text for that: for rows of one block alone, so that of the schedules for all
    numbers of rows one at most has two texts."""
    return rows.form.across_segments and rows.schedule.cluster == 1


def _untagged(rows: RowBlocks) -> int:
    """The number of units (blocks, clusters, or rows of blocks that walk) that read half of what the
    second-level cache holds. Loads of the last so many are not tagged evict_last. 0: none is tagged.

    Tagging is off where the kernel writes less than it reads, where an earlier kernel may have left its reads
    in the cache, and where registers are short: in moments of 2-byte elements, and where one block is to fit
    a multiprocessor. Blocks that walk tag bulk copies alone. Each kernel compares the number with that of its
    units.
    """
    walks = rows.form.in_order
    call, walked = rows.call, _walked(rows)
    read = sum(map(call.itemsize, walked))
    written = sum(call.itemsize(o) for o in call.present(rows.kernel.writes) if o.inner == rows.kernel.piece)
    moments = rows.kernel.moments and min(map(call.itemsize, walked), default=0) < 4
    crowded = not rows.schedule.bulk if walks else moments or rows.schedule.blocks == 1
    if not rows.kernel.tags or not read or written < read or crowded or _backwards(rows):
        return 0
    together = 1 if walks else rows.schedule.teams
    return ceil(call.device.cache / (2 * read * rows.length * together))


def _untagged_units(rows: RowBlocks) -> int:
    """How many of them a call does not tag: 0 where it tags nothing. (`TAGGED_ABOVE` in kernels.)"""
    if not rows.form.tags or (rows.form.in_order and rows.kernel.columns) or _alone(rows):
        return 0  # (where rows are summed, those that walk have none)
    kept = _untagged(rows)
    count = rows.rows if rows.form.in_order else rows.blocks
    return kept if count > _CACHES * 2 * kept else 0


def _walked(rows: RowBlocks) -> list[OperandRecord]:
    """The operands that are read a row at a time."""
    return [o for o in rows.call.read(rows.kernel.reads) if o.kept and o.inner == rows.kernel.piece]


FAMILY = Rows()
