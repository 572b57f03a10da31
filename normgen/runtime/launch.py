"""Record + binding + device -> launches: the schedule is chosen here, and the preamble that specialises the
text written.

The preamble holds element types, the lengths of the row's axes, which operands are there, and the schedule's
knobs. Rows, strides and the other lengths are kernel arguments, so that calls that differ in them share one
compiled kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from normgen.dtypes import DTYPES
from normgen.runtime.records import (
    Binding,
    Device,
    FormRecord,
    KernelRecord,
    Launch,
    LaunchPlan,
    Operand,
    OperandRecord,
    Parameter,
    PassRecord,
    Slot,
    axis_name,
)
from normgen.runtime.schedule import Rejected, Schedule, Shape, choose

# Offsets, and row numbers as far as the ring looks ahead, stay below this where 32 bits are to do.
_INT_LIMIT = 2**31 - 2**24
_FINAL_THREADS = 512
_ABSENT = "float"
_WORDS = re.compile(r"\w+")
_COMMENT = re.compile(r"//.*")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kernel with its schedule for one binding, for those who explain it."""

    kernel: KernelRecord
    schedule: Schedule
    rejected: tuple[Rejected, ...]


def plan_launches(record: PassRecord, binding: Binding, device: Device, header: str = "") -> LaunchPlan:
    """The launches of one pass. Every extent is at least 1; a tensor that `binding` lacks is absent or not
    wanted.
    """
    launches: list[Launch] = []
    workspace: list[tuple[str, tuple[int, ...], str]] = []
    notes: list[str] = []
    for chosen in choose_schedules(record, binding, device):
        call = _Call(chosen.kernel, chosen.schedule, binding, device, header)
        rows, blocks = call.rows_launch()
        launches.append(rows)
        workspace += [
            (_partial(chosen.kernel, c.name), (blocks, call.width(c.wide)), "f32") for c in call.columns
        ]
        if call.columns:
            launches.append(call.finalise_launch())
        notes.append(f"{chosen.kernel.name}: {chosen.schedule.form}: {chosen.schedule.reason}")
    return LaunchPlan(tuple(launches), tuple(workspace), tuple(notes))


def choose_schedules(record: PassRecord, binding: Binding, device: Device) -> tuple[Chosen, ...]:
    """Each kernel that has something to write, and how it is to run."""
    operands = dict(binding.operands)
    out = []
    for kernel in record.kernels:
        if any(w.tensor in operands for w in (*kernel.writes, *kernel.finals)):
            shape = shape_of(kernel, binding)
            out.append(Chosen(kernel, *choose(shape, device)))
    return tuple(out)


def shape_of(kernel: KernelRecord, binding: Binding) -> Shape:
    """What the choice of a schedule depends on."""
    operands, extents = dict(binding.operands), dict(binding.extents)
    length = prod(extents[a] for a in kernel.inner)
    wanted = set(operands)
    reads = [o for o in kernel.reads if o.tensor in operands and wanted & set(o.wanted_by)]
    wide = [o for o in reads if o.inner == kernel.inner and o.inner]
    walk = [a for a in kernel.kept if a not in kernel.segment]
    walked = [o for o in wide if any(a in walk for a in o.kept)]
    columns = [c for c in kernel.columns if wanted & set(c.wanted_by)]
    stores = [o for o in kernel.writes if o.tensor in operands and o.inner]
    vector = _vector_width([*wide, *stores], length, operands, extents)

    def size(found: list[OperandRecord]) -> int:
        return sum(DTYPES[operands[o.tensor].dtype].bytes for o in found)

    return Shape(
        length=length,
        vector=vector,
        walked=size(walked),
        shared=size([o for o in wide if o not in walked]),
        rewalked=size(walked) if kernel.exchanges else 0,
        whole=sum(DTYPES[operands[o.tensor].dtype].bytes == 4 for o in wide),
        wide_columns=sum(c.wide for c in columns),
        columns=len(kernel.columns),
        exchanges=kernel.exchanges,
        moments=kernel.moments,
        functions=kernel.functions,
        held=kernel.held,
    )


def _vector_width(
    wide: list[OperandRecord], length: int, operands: dict[str, Operand], extents: dict[str, int]
) -> int:
    """The widest vector, in elements, that every wide operand can be moved in."""
    if not wide:
        return 1
    widest = 16 // min(DTYPES[operands[o.tensor].dtype].bytes for o in wide)
    vector = widest
    while vector > 1 and (
        length % vector or not all(_aligned(operands[o.tensor], vector, extents) for o in wide)
    ):
        vector //= 2
    return vector


def _aligned(operand: Operand, vector: int, extents: dict[str, int]) -> bool:
    itemsize = DTYPES[operand.dtype].bytes
    word = min(16, vector * itemsize)
    steps = [stride * itemsize for axis, stride in operand.strides if extents[axis] > 1 and stride != 1]
    return operand.alignment % word == 0 and all(step % word == 0 for step in steps)


def _partial(kernel: KernelRecord, column: str) -> str:
    return f"{kernel.name}.{column}"


class _Call:
    """One kernel, its schedule, and the arrays of one binding."""

    def __init__(
        self, kernel: KernelRecord, schedule: Schedule, binding: Binding, device: Device, header: str
    ) -> None:
        self.kernel, self.schedule, self.binding, self.device, self.header = (
            kernel,
            schedule,
            binding,
            device,
            header,
        )
        self.operands = dict(binding.operands)
        self.extents = dict(binding.extents)
        self.length = prod(self.extents[a] for a in kernel.inner)
        self.segments = prod(self.extents[a] for a in kernel.segment)
        self.rows = prod(self.extents[a] for a in kernel.kept) // self.segments
        self.columns = [c for c in kernel.columns if set(self.operands) & set(c.wanted_by)]
        self.blocks_per_segment = self._blocks_per_segment()

    def width(self, wide: bool) -> int:
        return self.length if wide else 1

    def _blocks_per_segment(self) -> int:
        """How many blocks share a segment's rows: all rows at once, or as many as are resident together."""
        s = self.schedule
        tiles = -(-self.rows // s.teams)
        if not self.kernel.columns:
            return tiles
        multiprocessors = self.binding.multiprocessors or self.device.multiprocessors
        return max(1, min(tiles, s.blocks * multiprocessors // self.segments))

    # -------------------------------------------------------------------------------------------- launches

    def rows_launch(self) -> tuple[Launch, int]:
        form = self._form(self.schedule.form)
        blocks = self.segments * self.blocks_per_segment
        s = self.schedule
        knobs = {
            "VEC": s.vector, "TEAM": s.team, "TEAMS": s.teams, "THREADS": s.threads, "ITEMS": s.items,
            "MIN_BLOCKS": max(1, s.blocks), "LENGTH": self.length,
        }  # fmt: skip
        switches = {"COVERS": s.items * s.team * s.vector == self.length}
        if s.form == "registers":
            switches["LATE"] = s.late
        if s.form == "ring":
            knobs |= {"STAGES": s.stages, "SLOTS": s.stages * s.items}
            switches |= {"RELOAD": s.reload, "LATE": s.late}
        if s.form == "stream":
            knobs["SLOTS"] = s.items
            switches["STAGED"] = s.staged
        reads, writes = self.kernel.reads, (*self.kernel.writes, *self.kernel.finals)
        lines = self._preamble(form, f"{s.form}: {s.reason}", reads, writes, knobs, switches)
        return self._launch(form, lines, (blocks, 1, 1), s.threads, s.shared), blocks

    def finalise_launch(self) -> Launch:
        form = self._form("finalise")
        by_name = {c.name: c for c in self.kernel.columns}
        grid = 1
        for final in self.kernel.finals:
            column = next(c for c in by_name.values() if final.tensor in c.wanted_by)
            tiles = -(-self.width(column.wide) // 32)
            grid = max(grid, tiles * prod(self.extents[a] for a in column.kept))
        knobs = {"THREADS": _FINAL_THREADS, "LENGTH": self.length}
        writes = (*self.kernel.finals, *self.kernel.writes)
        lines = self._preamble(
            form, "finalise: the partials of all blocks", self.kernel.final_reads, writes, knobs, {}
        )
        return self._launch(form, lines, (grid, len(self.kernel.finals), 1), _FINAL_THREADS, 0)

    def _form(self, name: str) -> FormRecord:
        return next(f for f in self.kernel.forms if f.form == name)

    def _launch(
        self, form: FormRecord, preamble: list[str], grid: tuple[int, int, int], threads: int, shared: int
    ) -> Launch:
        values: list[int | float | Slot] = []
        codes = ""
        reads: list[str] = []
        writes: list[str] = []
        read_names = {o.tensor for o in (*self.kernel.reads, *self.kernel.final_reads)}
        for p in form.parameters:
            value, code = self._argument(p)
            values.append(value)
            codes += code
            if isinstance(value, Slot) and value.kind == "pointer":
                into = (
                    reads
                    if p.name in read_names or (p.kind == "partial" and form.form == "finalise")
                    else writes
                )
                into.append(value.name)
        source = "\n".join([self.header, *preamble, "", form.source])
        return Launch(
            source,
            form.entry,
            grid,
            (threads, 1, 1),
            shared,
            codes,
            tuple(values),
            tuple(reads),
            tuple(writes),
        )

    def _argument(self, p: Parameter) -> tuple[int | float | Slot, str]:
        index = "q" if self._wide_index() else "i"
        match p.kind:
            case "pointer":
                return (Slot("pointer", p.name) if p.name in self.operands else 0), "P"
            case "partial":
                wanted = any(c.name == p.name for c in self.columns)
                return (Slot("pointer", _partial(self.kernel, p.name)) if wanted else 0), "P"
            case "stride":
                operand = self.operands.get(p.name)
                # an axis of one element is never stepped along
                steps = {} if operand is None else dict(operand.strides)
                return (steps.get(p.axis, 0) if self.extents[p.axis] > 1 else 0), index
            case "size":
                return self.extents[p.axis], index
            case "scalar":
                return Slot("scalar", p.name), "f"
            case "rows":
                return self.rows, index
            case "blocks":
                return self.blocks_per_segment, "i"
        raise AssertionError(p)

    # -------------------------------------------------------------------------------------------- preamble

    def _wide_index(self) -> bool:
        reach = [self.rows * self.segments + 64 * self.schedule.teams * self.blocks_per_segment]
        reach.append(self.segments * self.blocks_per_segment * self.length if self.columns else 0)
        for operand in self.operands.values():
            reach.append(sum((self.extents[axis] - 1) * abs(stride) for axis, stride in operand.strides))
        return max(reach) >= _INT_LIMIT

    def _preamble(
        self,
        form: FormRecord,
        schedule: str,
        reads: tuple[OperandRecord, ...],
        writes: tuple[OperandRecord, ...],
        knobs: dict[str, int],
        switches: dict[str, bool],
    ) -> list[str]:
        types = [f"using index_t = {'long long' if self._wide_index() else 'int'};"]
        for o in (*reads, *writes):
            operand = self.operands.get(o.tensor)
            types.append(f"using {o.identifier}_t = {DTYPES[operand.dtype].c_type if operand else _ABSENT};")
        values = {f"size_{axis_name(a)}": self.extents[a] for a in self.kernel.inner} | knobs
        switches |= {f"HAS_{o.identifier.upper()}": o.tensor in self.operands for o in reads}
        switches |= {f"WANT_{o.identifier.upper()}": o.tensor in self.operands for o in writes}
        switches["ACCUMULATE"] = self.binding.accumulate
        words = set(_WORDS.findall(_COMMENT.sub("", form.source)))
        return [
            f"// {schedule}",
            *types,
            *(f"constexpr int {name} = {value};" for name, value in values.items() if name in words),
            *(
                f"constexpr bool {name} = {str(on).lower()};"
                for name, on in switches.items()
                if name in words
            ),
        ]
