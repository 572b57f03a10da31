"""Tiles: how large they are, the runs that each operand is moved in, and launches.

Tiles are 64 to 128 elements either way: 128 bytes of the narrowest type in runs of columns and in runs of
rows, and four vectors for each of 256 threads. Four blocks of those per multiprocessor have 64 KB of vectors
in flight, and hide each other's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log2
from types import MappingProxyType

from normgen.counting import counted
from normgen.launching.call import INT_LIMIT, Call, width_of_parts
from normgen.launching.facts import VECTORS, power_of_two
from normgen.launching.family import Cost, LaunchFamily, Lines, Lowered, estimated
from normgen.launching.knobs import distinct, knob, settled
from normgen.launching.machine import WARP
from normgen.launching.support import Support
from normgen.package.kernels import TilesRecord
from normgen.package.operands import OperandRecord

PATCH = 4  # lines of a thread's patch: those of one narrow column fill a word of shared memory
_THREADS = 256
_SHARED = 96 * 1024
_SIZES = (16, 32, 64, 128)
_MOST_BLOCKS = 4  # per multiprocessor: more of them leave no registers for vectors on their way
_OWN_REGISTERS = 36  # per thread, beside what it reads
_WIDTH_EFFICIENCY = {16: 0.9, 8: 0.8, 4: 0.6, 2: 0.4, 1: 0.25}


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the matrices are cut."""

    rows: int = knob(bits=False, values=_SIZES)  # elements of a tile
    columns: int = knob(bits=False, values=(1, 2, 4, 8, *_SIZES))  # elements of a tile
    vector: int = knob(bits=False, values=VECTORS)  # columns of a thread's vector
    shared: int = knob(bits=False)  # bytes of shared memory per block
    blocks: int = knob(bits=False)  # per multiprocessor that registers are to be there for
    backwards: bool = knob(True, bits=False)  # the last tile comes first

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return self.rows // PATCH * (self.columns // self.vector)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return max(WARP, min(_THREADS, self.patches))


class Tiles(LaunchFamily[TilesRecord, Tiling]):
    """The launch half of the tiles family."""

    schedule = Tiling
    uses = MappingProxyType({"tiles": "results that lie the other way: tiles in shared memory"})

    def space(self, kernel: TilesRecord, call: Call) -> Iterator[Tiling]:
        """The tiling that a kernel takes by itself, then the nearest to it."""
        return distinct(_space(kernel, call))

    def settle(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Tiling | Support:
        """Tiles of any size that find place; registers may be there for fewer blocks than could be."""
        s, vector = schedule, vector_of(kernel, call)
        shared = _turned_bytes(kernel, call) * s.rows * s.columns
        if vector > s.columns:
            return Support(False, f"tiles of {s.columns} columns have no vectors of {vector}")
        if shared > call.device.shared_per_block:
            return Support(False, f"needs {shared} bytes of shared memory")
        most = _tiling(kernel, call, s.rows, s.columns, vector, shared)
        blocks = max(1, min(s.blocks, most.blocks))
        return settled(s, replace(most, blocks=blocks, backwards=s.backwards))

    def cost(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Cost:
        """The efficiency goes by the narrowest access, the fraction of tiles within the matrices, and that of
        busy multiprocessors."""
        touched = call.touched(kernel.reads, kernel.writes)
        tiles, runs = _tiles(kernel, call, schedule), _runs(kernel, call)
        matrix = set(kernel.rows + kernel.columns)
        whole = [o for o in touched if o.inner and set(o.kept) & matrix]
        narrowest = min(16, *(runs.get(o.run, schedule.vector) * call.itemsize(o) for o in whole))
        filled = call.size(kernel.kept + kernel.inner) / (tiles * schedule.rows * schedule.columns)
        efficiency = _WIDTH_EFFICIENCY[narrowest] * filled * min(1.0, tiles / call.multiprocessors)
        return estimated({o.tensor: call.bytes_of(o.tensor) for o in touched}, call.device, efficiency)

    def lower(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Lowered:
        s, rows, columns = schedule, call.size(kernel.rows), call.size(kernel.columns)
        tiles = _tiles(kernel, call, s)
        wide = max(call.reach(), rows + s.rows, columns + s.columns, tiles) >= INT_LIMIT
        constants = {
            "VEC": s.vector, "PATCH": PATCH, "ROWS": s.rows, "COLUMNS": s.columns, "PATCHES": s.patches,
            "THREADS": s.threads, "MIN_BLOCKS": s.blocks, **_runs(kernel, call),
            **{o.one: _one(o, kernel, call, s.vector) for o in kernel.reads}, "BACKWARDS": s.backwards,
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


def _space(record: TilesRecord, call: Call) -> Iterator[Tiling]:
    chosen = choose_tiling(record, call)
    each = chosen.shared // (chosen.rows * chosen.columns)
    yield chosen

    def apart(size: tuple[int, int]) -> float:
        return abs(log2(size[0] / chosen.rows)) + abs(log2(size[1] / chosen.columns))

    found = [chosen]
    for rows, columns in sorted(product(_SIZES, _SIZES), key=apart):
        shared = each * rows * columns
        if chosen.vector <= columns and shared <= _SHARED:
            found.append(_tiling(record, call, rows, columns, chosen.vector, shared))
    yield from (replace(t, backwards=way) for t in found for way in (True, False))


def choose_tiling(record: TilesRecord, call: Call) -> Tiling:
    """The tiles of a call: smaller where the matrix is, and where there would be too few to go round."""
    rows, columns = call.size(record.rows), call.size(record.columns)
    touched = call.touched(record.reads, record.writes)
    straight = [o for o in touched if o.inner == record.columns]
    turned = [o for o in touched if o.inner == record.rows]
    wide = 128 if any(call.itemsize(o) == 1 for o in straight) else 64
    high = 128 if any(call.itemsize(o) <= 2 for o in turned) else 64
    wide = min(wide, power_of_two(columns))
    high = max(16, power_of_two(min(high, rows)))
    each = _turned_bytes(record, call)
    while high > 16 and each * high * wide > _SHARED:
        high //= 2
    across = -(-columns // wide) * call.size(record.batch)
    while high > 32 and -(-rows // high) * across < call.multiprocessors:
        high //= 2
    return _tiling(record, call, high, wide, vector_of(record, call), each * high * wide)


def vector_of(record: TilesRecord, call: Call) -> int:
    """The columns that one access moves of operands that lie as the columns do."""
    columns = call.size(record.columns)
    straight = [o for o in call.touched(record.reads, record.writes) if o.inner == record.columns]
    vector = call.vector_width(straight, columns) if straight else min(4, columns & -columns)
    return width_of_parts(vector, [_span(o, record, call) for o in call.read(record.reads) if not o.inner])


def _turned_bytes(record: TilesRecord, call: Call) -> int:
    """Bytes of an element of all operands that lie the other way, which tiles in shared memory have."""
    touched = call.touched(record.reads, record.writes)
    return sum(map(call.itemsize, (o for o in touched if o.inner == record.rows)))


def _tiling(record: TilesRecord, call: Call, rows: int, columns: int, vector: int, shared: int) -> Tiling:
    """Tiles of this size, with the blocks per multiprocessor that registers and shared memory are there for:
    a thread has all that it reads of a patch at once, what is read element by element as floats."""
    registers = _OWN_REGISTERS
    for o in call.read(record.reads):
        lines = PATCH if set(o.kept) & set(record.rows) or o.inner == record.rows else 1
        if o.inner:
            registers += lines * vector * call.itemsize(o) // 4
        elif set(o.kept) & set(record.columns) and not _one(o, record, call, vector):
            registers += lines * vector
    by_registers = call.device.registers_per_multiprocessor // (_THREADS * min(255, -(-registers // 8) * 8))
    by_shared = call.device.blocks(shared)
    return Tiling(rows, columns, vector, shared, max(1, min(_MOST_BLOCKS, by_registers, by_shared)))


def _runs(record: TilesRecord, call: Call) -> dict[str, int]:
    """The rows that one access moves of each turned operand, by the constant that says so."""
    turned = [o for o in (*record.reads, *record.writes) if o.inner == record.rows]
    rows = call.size(record.rows)
    return {o.run: call.vector_width(call.present([o]), rows) for o in turned}


def _one(o: OperandRecord, record: TilesRecord, call: Call, vector: int) -> bool:
    """Whether an operand that is read element by element has one value for each vector of columns."""
    span = _span(o, record, call)
    return span > 0 and span % vector == 0


def _span(o: OperandRecord, record: TilesRecord, call: Call) -> int:
    """The neighbouring columns that share an element of an operand that is read element by element; 0 where
    there are none to share, or all do."""
    indexed = [k for k, axis in enumerate(record.columns) if axis in o.kept]
    return call.size(record.columns[indexed[-1] + 1 :]) if indexed else 0


def _tiles(record: TilesRecord, call: Call, tiling: Tiling) -> int:
    """How many tiles there are."""
    rows, columns = call.size(record.rows), call.size(record.columns)
    return -(-rows // tiling.rows) * -(-columns // tiling.columns) * call.size(record.batch)


FAMILY = Tiles()
