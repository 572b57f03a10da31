"""Launches of the resident family, and what they cost: one that clears what tells blocks which parts are
there, the kernel, and one that adds up what blocks leave of sums over segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from normgen.counting import counted
from normgen.dtypes import DTYPES
from normgen.families.resident.launch.quantities import ResidentShape, ResidentSpace, quantities
from normgen.families.resident.launch.residence import Residence, unfit
from normgen.families.resident.launch.segments import segment_of
from normgen.launching.accumulating import (
    BIT_WORD,
    Accumulating,
    partial_name,
    published_name,
    wanted_columns,
    words_name,
    words_of,
)
from normgen.launching.call import INT_LIMIT, Call, once
from normgen.launching.family import LaunchFamily, Lines, Lowered
from normgen.launching.launch import Launch
from normgen.launching.pick import around, pick
from normgen.launching.quantities import Array
from normgen.launching.support import SUPPORTED, Support
from normgen.launching.table import key_of
from normgen.package.kernels import ResidentRecord

_NO_PLACE = Support(False, "its blocks cannot keep what they read")


class Resident(LaunchFamily[ResidentRecord, Residence]):
    """The launch half of the resident family."""

    schedule = Residence
    uses = MappingProxyType(
        {
            "resident": "blocks keep a segment on chip until its statistics are there",
            "resident_sums": "blocks keep a segment on chip until its sums are there",
            "clear": "before the other, where its flags are not clear",
            "second_stage": "after the other: adds up what blocks left of sums",
        }
    )

    def fits(self, kernel: ResidentRecord, call: Call) -> Support:
        """Whether the segments of a call find place on the chip, and it has what the kernel always reads and
        writes: where statistics are sums, all that is held, and every result of the rows."""
        return SUPPORTED if _able(kernel, call) and _usual(kernel, call) else _NO_PLACE

    def space(self, kernel: ResidentRecord, call: Call) -> Iterator[Residence]:
        """Every way to keep the segments of a call: the usual one first. There is none where there is no
        usual one."""
        return around(_usual(kernel, call), _space(kernel, call))

    def settle(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Residence | Support:
        if not _able(kernel, call):
            return _NO_PLACE
        why = unfit(segment_of(kernel, call), schedule, call.device)
        return Support(False, why) if why else schedule

    def measured_as(self, kernel: ResidentRecord, call: Call) -> tuple[str, int]:
        kind = "moments" if kernel.moments else "sums"
        return f"{key_of(segment_of(kernel, call), 'record')}-{kind}", call.size(kernel.segment)

    def quantities(
        self, kernel: ResidentRecord, call: Call, schedules: Sequence[Residence]
    ) -> Mapping[str, Array]:
        return quantities(shape_of(kernel, call), schedules, (call.size(kernel.segment),))

    def moved(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Mapping[str, int]:
        """By how often rows are read."""
        blocks = _Blocks(kernel, call, schedule)
        reads = call.read((*kernel.reads, *kernel.final_reads))
        touched = (*reads, *call.present((*kernel.writes, *kernel.finals)))
        moved = {o.tensor: call.bytes_of(o.tensor) for o in touched}
        for name in kernel.held:
            moved[name] += moved[name] * schedule.again // schedule.depth
        moved |= {name: 2 * size * DTYPES["f32"].bytes for name, size in blocks.arrays.items()}
        moved[words_name(kernel)] = 3 * blocks.words * BIT_WORD
        return moved

    def lower(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Lowered:
        """The launches, and the arrays that blocks meet by and leave sums in."""
        blocks = _Blocks(kernel, call, schedule)
        workspace = tuple((name, (size,), "f32") for name, size in blocks.arrays.items())
        return Lowered(blocks.launches(), workspace)

    def describe(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> str:
        r, segment = schedule, segment_of(kernel, call)
        rows = f"{counted(r.depth, 'row')} per thread group"
        rows += f", {r.places} of them in shared memory" if r.places else ""
        rows += f", {r.again} of them read twice" if r.again else ""
        part = "band" if segment.bands else "segment"
        return f"a {part} in {counted(r.members, 'block')} of {r.threads} threads, {rows}"

    def explain(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> Lines:
        r, segment, axes = schedule, segment_of(kernel, call), ", ".join(kernel.segment)
        parts = f"bands of {segment.length} elements" if segment.bands else f"segments of [{axes}]"
        return (
            f"kernel {kernel.name}: rows of [{', '.join(kernel.inner)}], in {parts} that stay on chip",
            f"  resident: {self.describe(kernel, call, r)}, {counted(r.team, 'thread')} per row, "
            f"{counted(r.vector, 'element')} per load, {counted(r.blocks, 'block')} per multiprocessor, "
            f"{r.shared} bytes of shared memory",
        )


def _able(kernel: ResidentRecord, call: Call) -> bool:
    """Whether a call has what the kernel always reads and writes, rows that lie side by side."""
    needed = (*kernel.held, *(o.tensor for o in kernel.writes))
    if not kernel.moments and not all(name in call.operands for name in needed):
        return False
    operands = (*call.read(kernel.reads), *call.present(kernel.writes))
    return all(call.contiguous(o) for o in operands if o.inner == kernel.inner)


def _space(kernel: ResidentRecord, call: Call) -> ResidentSpace:
    return ResidentSpace(segment_of(kernel, call), shape_of(kernel, call))


@once
def _usual(kernel: ResidentRecord, call: Call) -> Residence | None:
    """The residence that a kernel takes by itself, if there is one."""
    return pick(FAMILY, kernel, call, _space(kernel, call), call.size(kernel.segment))


@once
def shape_of(kernel: ResidentRecord, call: Call) -> ResidentShape:
    """What the quantities of residences depend on."""
    segment = segment_of(kernel, call)
    return ResidentShape(
        device=call.device,
        bands=segment.bands or 1,
        rows=segment.rows,
        length=segment.length,
        held=segment.itemsize,
        written=sum(call.itemsize(o) for o in call.present(kernel.writes)),
        narrowest=min(segment.itemsizes),
        kept=segment.vector_bytes // segment.vector,
        left=kernel.left * segment.groups,
        sums=kernel.sums,
        second_stage=len(wanted_columns(kernel, call)),
        made=kernel.made,
        moments=kernel.moments,
        functions=kernel.functions,
        banded=bool(segment.bands),
    )


class _Blocks:
    """The blocks of one kernel in a call, and what they leave one another.

    `words` of bits tell which parts are there; `columns` are the wanted sums over segments; `arrays` has the
    floats of each array of the workspace.
    """

    def __init__(self, kernel: ResidentRecord, call: Call, schedule: Residence) -> None:
        self.kernel, self.call, self.schedule = kernel, call, schedule
        self.segment = segment = segment_of(kernel, call)
        self.segments = call.size(kernel.segment) * (segment.bands or 1)
        self.count = self.segments * schedule.members
        self.words = self.segments * words_of(schedule.members)
        self.columns = wanted_columns(kernel, call)
        self.published = self.count * kernel.left * segment.groups
        self.arrays = {words_name(kernel): self.words * BIT_WORD // 4, published_name(kernel): self.published}
        self.arrays |= {partial_name(kernel, c): self.count * c.partial(segment.length) for c in self.columns}

    def launches(self) -> tuple[Launch, ...]:
        """One that clears the words, the kernel, and one that adds up sums over segments."""
        r, kernel, segment, call = self.schedule, self.kernel, self.segment, self.call
        rows = self.segments * (r.rows + segment.rows)
        wide = max(call.reach(), *self.arrays.values(), rows) >= INT_LIMIT
        own = {"rows": segment.rows, "blocks": r.members}
        launches = Accumulating(
            kernel, call, kernel.inner, own, wide, self.count, words=self.words, published=self.published
        )
        constants = {
            "VEC": r.vector, "TEAM": r.team, "TEAMS": r.teams, "THREADS": r.threads, "ITEMS": r.items,
            "DEPTH": r.depth, "SLOTS": r.places, "AGAIN": r.again, "MEMBERS": r.members,
            "MIN_BLOCKS": r.blocks, "LENGTH": segment.length, "REALIGNED": False,
            "WHOLE": segment.rows % (r.teams * r.depth) == 0,
        }  # fmt: skip
        launch = launches.launch(kernel.forms[0].form, constants, self.count, r.threads, shared=r.shared)
        return (*launches.clear(), launch, *launches.second_stage())


FAMILY = Resident()
