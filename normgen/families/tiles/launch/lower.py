"""Launches of the tiles family: how large the tiles are, and the runs that each operand is moved in.

Tiles are 64 to 128 elements either way: 128 bytes of the narrowest type in runs of columns and in runs of
rows, which memory moves at full speed, and four vectors for each of 256 threads. Four blocks of those a
multiprocessor have 64 KB of vectors on their way, and hide each other's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2

from normgen.launching.call import INT_LIMIT, Call, width_of_parts
from normgen.launching.facts import power_of_two
from normgen.launching.family import Cost, LaunchFamily, Lines, Lowered
from normgen.launching.knobs import distinct
from normgen.launching.launch import Launch
from normgen.package.kernels import TilesRecord
from normgen.package.operands import OperandRecord

PATCH = 4  # lines of a thread's patch: those of one narrow column fill a word of shared memory
_THREADS = 256
_SHARED = 96 * 1024
_MOST_BLOCKS = 4  # of a multiprocessor: more of them leave no registers for vectors on their way
_OWN_REGISTERS = 36  # of a thread, beside what it reads
_WIDTH_EFFICIENCY = {16: 0.9, 8: 0.8, 4: 0.6, 2: 0.4, 1: 0.25}


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the matrices are cut: elements of a tile, columns of a thread's vector. `blocks`: those that
    registers are to be there for on a multiprocessor. `backwards`: the last tile comes first.
    """

    rows: int
    columns: int
    vector: int
    shared: int
    blocks: int
    backwards: bool = True

    @property
    def patches(self) -> int:
        return self.rows // PATCH * (self.columns // self.vector)

    @property
    def threads(self) -> int:
        return max(32, min(_THREADS, self.patches))


class Tiles(LaunchFamily[TilesRecord, Tiling]):
    """The launch half of the tiles family."""

    def space(self, kernel: TilesRecord, call: Call) -> Iterator[Tiling]:
        """The tiling that a kernel takes by itself, then the nearest to it."""
        return distinct(_space(kernel, call))

    def cost(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Cost:
        moved = {o.tensor: call.bytes_of(o.tensor) for o in _touched(kernel, call)}
        return Cost(moved, _efficiency(kernel, call, schedule))

    def lower(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Lowered:
        return Lowered((_launch(kernel, call, schedule),))

    def describe(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> str:
        order = "" if schedule.backwards else ", the first tile first"
        return f"tiles of {schedule.rows} x {schedule.columns}{order}"

    def explain(self, kernel: TilesRecord, call: Call, schedule: Tiling) -> Lines:
        return (_describe(kernel, schedule),)


def _launch(record: TilesRecord, call: Call, tiling: Tiling) -> Launch:
    rows, columns = call.size(record.rows), call.size(record.columns)
    tiles = _count(record, call, tiling)
    wide = max(call.reach(), rows + tiling.rows, columns + tiling.columns, tiles) >= INT_LIMIT
    title = f"tiles of {tiling.rows} x {tiling.columns}, vectors of {tiling.vector}"
    runs = _runs(record, call)
    knobs = {
        "VEC": tiling.vector, "PATCH": PATCH, "ROWS": tiling.rows, "COLUMNS": tiling.columns,
        "PATCHES": tiling.patches, "THREADS": tiling.threads, "MIN_BLOCKS": tiling.blocks,
    }  # fmt: skip
    (form,) = record.forms
    preamble = call.preamble(
        form,
        title,
        record.reads,
        record.writes,
        wide=wide,
        knobs=knobs | runs,
        sizes=record.columns,  # a division by what is no constant costs as much as an element
        switches={o.one: _one(o, record, call, tiling.vector) for o in record.reads}
        | {"BACKWARDS": tiling.backwards},
    )
    return call.launch(
        form,
        preamble,
        tiles,
        tiling.threads,
        shared=tiling.shared,
        own={("rows", ""): rows},
        wide=wide,
        reads=[o.tensor for o in record.reads],
        writes=[o.tensor for o in record.writes],
    )


def _space(record: TilesRecord, call: Call) -> Iterator[Tiling]:
    chosen = choose_tiling(record, call)
    each = chosen.shared // (chosen.rows * chosen.columns)
    yield chosen
    sizes = [
        (rows, columns)
        for rows in (16, 32, 64, 128)
        for columns in (16, 32, 64, 128)
        if chosen.vector <= columns and each * rows * columns <= _SHARED
    ]
    sizes.sort(key=lambda size: abs(log2(size[0] / chosen.rows)) + abs(log2(size[1] / chosen.columns)))
    tilings = [
        Tiling(rows, columns, chosen.vector, size, _blocks(record, call, chosen.vector, size))
        for rows, columns in sizes
        for size in (each * rows * columns,)
    ]
    yield from (replace(t, backwards=way) for t in (chosen, *tilings) for way in (True, False))


def choose_tiling(record: TilesRecord, call: Call) -> Tiling:
    """The tiles of a call: smaller where the matrix is, and where there would be too few to go round."""
    rows, columns = call.size(record.rows), call.size(record.columns)
    touched = _touched(record, call)
    straight = [o for o in touched if o.inner == record.columns]
    turned = [o for o in touched if o.inner == record.rows]
    vector = call.vector_width(straight, columns) if straight else min(4, columns & -columns)
    vector = width_of_parts(vector, [_span(o, record, call) for o in call.read(record.reads) if not o.inner])
    wide = 128 if any(call.itemsize(o) == 1 for o in straight) else 64
    high = 128 if any(call.itemsize(o) <= 2 for o in turned) else 64
    wide = min(wide, power_of_two(columns))
    high = max(16, min(high, power_of_two(rows)))
    each = sum(map(call.itemsize, turned))
    while high > 16 and each * high * wide > _SHARED:
        high //= 2
    while (
        high > 32
        and _tiles(rows, high) * _tiles(columns, wide) * call.size(record.batch) < call.multiprocessors
    ):
        high //= 2
    shared = each * high * wide
    return Tiling(high, wide, vector, shared, _blocks(record, call, vector, shared))


def _blocks(record: TilesRecord, call: Call, vector: int, shared: int) -> int:
    """The blocks of a multiprocessor that registers and shared memory are there for: a thread has all that it
    reads of a patch at once, what is read element by element as floats."""
    registers = _OWN_REGISTERS
    for o in call.read(record.reads):
        lines = PATCH if set(o.kept) & set(record.rows) or o.inner == record.rows else 1
        if o.inner:
            registers += lines * vector * call.itemsize(o) // 4
        elif set(o.kept) & set(record.columns) and not _one(o, record, call, vector):
            registers += lines * vector
    by_registers = call.device.registers_per_multiprocessor // (_THREADS * min(255, -(-registers // 8) * 8))
    by_shared = call.device.blocks(shared)
    return max(1, min(_MOST_BLOCKS, by_registers, by_shared))


def _touched(record: TilesRecord, call: Call) -> list[OperandRecord]:
    """What the kernel reads and writes in this call."""
    return [*call.read(record.reads), *call.present(record.writes)]


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


def _count(record: TilesRecord, call: Call, tiling: Tiling) -> int:
    """How many tiles there are."""
    rows, columns = call.size(record.rows), call.size(record.columns)
    return _tiles(rows, tiling.rows) * _tiles(columns, tiling.columns) * call.size(record.batch)


def _efficiency(record: TilesRecord, call: Call, tiling: Tiling) -> float:
    """By the narrowest access, the share of tiles within the matrices, and that of busy multiprocessors."""
    tiles, runs = _count(record, call, tiling), _runs(record, call)
    matrix = set(record.rows + record.columns)
    whole = [o for o in _touched(record, call) if o.inner and set(o.kept) & matrix]
    narrowest = min(16, *(runs.get(o.run, tiling.vector) * call.itemsize(o) for o in whole))
    elements = call.size((*record.batch, *record.rows, *record.columns))
    filled = elements / (tiles * tiling.rows * tiling.columns)
    return _WIDTH_EFFICIENCY[narrowest] * filled * min(1.0, tiles / call.multiprocessors)


def _describe(record: TilesRecord, tiling: Tiling) -> str:
    rows, columns = ", ".join(record.rows), ", ".join(record.columns)
    return (
        f"kernel {record.name}: [{rows}] by [{columns}] in tiles of {tiling.rows} x {tiling.columns}, "
        f"{tiling.vector} columns a vector, {tiling.threads} threads, {tiling.shared} bytes of shared memory"
    )


def _tiles(length: int, tile: int) -> int:
    return -(-length // tile)
