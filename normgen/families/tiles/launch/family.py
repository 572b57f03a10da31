"""Tiles: schedules of a call, and their launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.tiles.launch.quantities import TilesShape, TilesSpace, quantities
from normgen.families.tiles.launch.tiling import (
    PATCH,
    Tiling,
    is_one,
    registers_of,
    runs_of,
    tiles_of,
    tiling_of,
    turned_bytes,
    vector_of,
)
from normgen.launching.call import INT_LIMIT, WORD, Call, once
from normgen.launching.family import LaunchFamily, Lines, Lowered
from normgen.launching.knobs import distinct, settled
from normgen.launching.pick import bucket_of, pick
from normgen.launching.quantities import Array
from normgen.launching.support import Support
from normgen.launching.table import key_of
from normgen.package.kernels import TilesRecord
from normgen.package.operands import OperandRecord


class Tiles(LaunchFamily[TilesRecord, Tiling]):
    """The launch half of the tiles family."""

    schedule = Tiling
    uses = MappingProxyType({"tiles": "results that lie the other way: tiles in shared memory"})

    def space(self, kernel: TilesRecord, call: Call) -> Iterator[Tiling]:
        """Every tiling that fits, that of the least predicted time first; and the same with the first tile
        first."""
        space, shape = space_of(kernel, call), shape_of(kernel, call)
        usual = pick(self, kernel, call, space, shape.matrices * shape.rows)
        if usual is not None:
            yield usual  # which is all that most ask for
            found = space.starts()
            others = distinct((usual, *found, *(replace(each, backwards=False) for each in found)))
            yield from islice(others, 1, None)

    def settle(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Tiling | Support:
        """Tiles of any size that find place; registers may be there for fewer blocks than could be."""
        s, space = schedule, space_of(kernel, call)
        vector, shared = space.vector, space.turned * s.rows * s.columns
        if vector > s.columns:
            return Support(False, f"tiles of {s.columns} columns have no vectors of {vector}")
        if shared > call.device.shared_per_block:
            return Support(False, f"needs {shared} bytes of shared memory")
        most = tiling_of(call.device, space.shape.registers, s.rows, s.columns, vector, shared)
        blocks = max(1, min(s.blocks, most.blocks))
        return settled(s, replace(most, blocks=blocks, backwards=s.backwards))

    def quantities(self, kernel: TilesRecord, call: Call, schedules: Sequence[Tiling]) -> Mapping[str, Array]:
        return quantities(shape_of(kernel, call), schedules)

    def measured_as(self, kernel: TilesRecord, call: Call) -> tuple[str, int]:
        shape = shape_of(kernel, call)
        return key_of(shape, "device", "matrices", "rows", "beside"), shape.matrices * shape.rows

    def moved(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Mapping[str, int]:
        return {o.tensor: call.bytes_of(o.tensor) for o in call.touched(kernel.reads, kernel.writes)}

    def lower(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Lowered:
        s, rows, columns = schedule, call.size(kernel.rows), call.size(kernel.columns)
        tiles = tiles_of(kernel, call, s)
        wide = max(call.reach(), rows + s.rows, columns + s.columns, tiles) >= INT_LIMIT
        constants = {
            "VEC": s.vector, "PATCH": PATCH, "ROWS": s.rows, "COLUMNS": s.columns, "PATCHES": s.patches,
            "THREADS": s.threads, "MIN_BLOCKS": s.blocks, **runs_of(kernel, call),
            **{o.one: is_one(o, kernel, call, s.vector) for o in kernel.reads}, "BACKWARDS": s.backwards,
        }  # fmt: skip
        (form,) = kernel.forms
        launch = call.launch(
            form,
            tiles,
            s.threads,
            constants,
            reads=kernel.reads,
            writes=kernel.writes,
            own={("rows", ""): rows},
            sizes=kernel.columns,  # a division by what is no constant costs as much as an element
            wide=wide,
            shared=s.shared,
        )
        return Lowered((launch,))

    def describe(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> str:
        order = "" if schedule.backwards else ", the first tile first"
        return f"tiles of {schedule.rows} x {schedule.columns}{order}"

    def explain(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Lines:
        s, rows, columns = schedule, ", ".join(kernel.rows), ", ".join(kernel.columns)
        tiles = f"kernel {kernel.name}: [{rows}] by [{columns}] in tiles of {s.rows} x {s.columns}"
        each = f"{counted(s.vector, 'column')} per vector, {s.threads} threads"
        return (f"{tiles}, {each}, {s.shared} bytes of shared memory",)


@once
def space_of(kernel: TilesRecord, call: Call) -> TilesSpace:
    """The space of a call, and of those with nearly as many matrices and rows."""
    shape = shape_of(kernel, call)
    near = replace(shape, matrices=bucket_of(shape.matrices), rows=bucket_of(shape.rows), beside=0)
    return TilesSpace(near, vector_of(kernel, call), turned_bytes(kernel, call))


@once
def shape_of(kernel: TilesRecord, call: Call) -> TilesShape:
    """What the quantities of tilings depend on."""
    every = set(kernel.kept + kernel.inner)
    reads, writes = call.read(kernel.reads), call.present(kernel.writes)
    whole = [o for o in (*reads, *writes) if o.inner and {*o.kept, *o.inner} == every]
    straight, turned = ([o for o in whole if o.inner == way] for way in (kernel.columns, kernel.rows))
    runs = runs_of(kernel, call)

    def bytes_of(some: list[OperandRecord], way: list[OperandRecord]) -> int:
        return sum(call.itemsize(o) for o in way if o in some)

    return TilesShape(
        device=call.device,
        matrices=call.size(kernel.batch),
        rows=call.size(kernel.rows),
        columns=call.size(kernel.columns),
        read=bytes_of(reads, straight),
        written=bytes_of(writes, straight),
        turned_read=bytes_of(reads, turned),
        turned_written=bytes_of(writes, turned),
        run=min((runs[o.run] * call.itemsize(o) for o in turned), default=WORD),
        narrowest=min(map(call.itemsize, straight), default=4),
        beside=sum(call.bytes_of(o.tensor) for o in reads if o not in whole),
        singles=sum(not o.inner for o in reads),
        registers=registers_of(kernel, call, vector_of(kernel, call)),
    )


FAMILY = Tiles()
