"""Tiles: how large they may be, and the runs that each operand is moved in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from normgen.launching.call import Call, width_of_parts
from normgen.launching.facts import VECTORS
from normgen.launching.knobs import knob
from normgen.launching.machine import WARP, Machine
from normgen.package.kernels import TilesRecord
from normgen.package.operands import OperandRecord

PATCH = 4  # lines of a thread's patch: those of one narrow column fill a word of shared memory
_THREADS = 256
_SIZES = (16, 32, 64, 128)
_COLUMNS = (1, 2, 4, 8, *_SIZES)
_MOST_BLOCKS = 4  # per multiprocessor: more of them leave no registers for vectors on their way
_OWN_REGISTERS = 36  # per thread, beside what it reads


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the matrices are cut."""

    rows: int = knob(bits=False, values=_SIZES)  # elements of a tile
    columns: int = knob(bits=False, values=_COLUMNS)  # elements of a tile
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


def tilings(device: Machine, registers: int, vector: int, turned: int) -> Iterator[Tiling]:
    """The tilings of every size that a device has place for, the last tile first. `registers`: per thread;
    `turned`: bytes of an element that lie in shared memory."""
    for rows, columns in product(_SIZES, _COLUMNS):
        shared = turned * rows * columns
        if vector <= columns and shared <= device.shared_per_block:
            yield tiling_of(device, registers, rows, columns, vector, shared)


def vector_of(record: TilesRecord, call: Call) -> int:
    """The columns that one access moves of operands that lie as the columns do."""
    columns = call.size(record.columns)
    straight = [o for o in call.touched(record.reads, record.writes) if o.inner == record.columns]
    vector = call.vector_width(straight, columns) if straight else min(4, columns & -columns)
    return width_of_parts(vector, [span_of(o, record, call) for o in call.read(record.reads) if not o.inner])


def turned_bytes(record: TilesRecord, call: Call) -> int:
    """Bytes of an element of all operands that lie the other way, which tiles in shared memory have."""
    touched = call.touched(record.reads, record.writes)
    return sum(map(call.itemsize, (o for o in touched if o.inner == record.rows)))


def tiling_of(device: Machine, registers: int, rows: int, columns: int, vector: int, shared: int) -> Tiling:
    """Tiles of this size, with the blocks per multiprocessor that registers and shared memory are there
    for."""
    by_registers = device.registers_per_multiprocessor // (_THREADS * min(255, -(-registers // 8) * 8))
    by_shared = device.blocks(shared)
    return Tiling(rows, columns, vector, shared, max(1, min(_MOST_BLOCKS, by_registers, by_shared)))


def registers_of(record: TilesRecord, call: Call, vector: int) -> int:
    """Registers per thread: it has all that it reads of a patch at once, what is read element by element as
    floats."""
    registers = _OWN_REGISTERS
    for o in call.read(record.reads):
        lines = PATCH if set(o.kept) & set(record.rows) or o.inner == record.rows else 1
        if o.inner:
            registers += lines * vector * call.itemsize(o) // 4
        elif set(o.kept) & set(record.columns) and not is_one(o, record, call, vector):
            registers += lines * vector
    return registers


def runs_of(record: TilesRecord, call: Call) -> dict[str, int]:
    """The rows that one access moves of each turned operand, by the constant that says so."""
    turned = [o for o in (*record.reads, *record.writes) if o.inner == record.rows]
    rows = call.size(record.rows)
    return {o.run: call.vector_width(call.present([o]), rows) for o in turned}


def is_one(o: OperandRecord, record: TilesRecord, call: Call, vector: int) -> bool:
    """Whether an operand that is read element by element has one value for each vector of columns."""
    span = span_of(o, record, call)
    return span > 0 and span % vector == 0


def span_of(o: OperandRecord, record: TilesRecord, call: Call) -> int:
    """The neighbouring columns that share an element of an operand that is read element by element; 0 where
    there are none to share, or all do."""
    indexed = [k for k, axis in enumerate(record.columns) if axis in o.kept]
    return call.size(record.columns[indexed[-1] + 1 :]) if indexed else 0


def tiles_of(record: TilesRecord, call: Call, tiling: Tiling) -> int:
    """How many tiles there are."""
    rows, columns = call.size(record.rows), call.size(record.columns)
    return -(-rows // tiling.rows) * -(-columns // tiling.columns) * call.size(record.batch)
