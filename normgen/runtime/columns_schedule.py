"""How a kernel of the columns family runs: form, columns of a thread, threads along and across the columns.

What decides the arithmetic, the form and the team along a column, depends on the length of the columns, the
operands and their types, never on how many columns there are: so results are the same bits in any batch. How
many columns a block takes follows from how many there are.

- A thread moves 16 bytes of the narrowest operand where it can. Neighbouring lanes own neighbouring columns;
  8 lanes of 16 bytes are a line of memory.
- A team is as large as leaves each thread 4 to 16 elements: enough of them on their way from memory, few
  enough that several blocks share a multiprocessor, so that one loads while another stores.
- Columns too long for the registers of 1024 threads are passed along once for each level of reductions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from normgen.runtime.records import Device
from normgen.runtime.schedule import MAX_BLOCKS, Rejected

_STATIC_SHARED = 48 * 1024
_RESERVED_SHARED = 1024
_REGISTERS = 168  # beyond, too few threads are left to hide anything
_IN_FLIGHT = 40e3  # bytes on their way that keep one multiprocessor's share of the memory busy
_RESIDENT = 768  # threads a multiprocessor that hide the latency of arithmetic
_TEAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_ITEMS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
_STREAM_REGISTERS = 80
_STREAM_ITEMS = 16  # elements a thread, at least, where columns stream
# The share of the memory's speed that accesses of a thread reach, by their bytes, and of a line's part.
_WIDTHS = {16: 1.0, 8: 0.97, 4: 0.85, 2: 0.55, 1: 0.3}
_LINES = ((512, 1.0), (256, 0.99), (128, 0.97), (64, 0.8), (32, 0.6), (0, 0.3))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule depends on. Bytes are those of one element, summed over operands.

    `length`: elements of a column; `vector`: the widest vector that alignment allows, in columns; `columns`:
    how many a segment has. `reads`, `writes`: bytes of what has a value for each element of each column;
    `vectors`: how many such operands there are; `narrowest`: bytes of their narrowest element. `elements`:
    operands with a value for each element; `arrays`: values kept for each column; `exchanged`: the most of
    them in one exchange; `held`: values kept for each element of each column; `wide`: sums over columns with
    a value for each element that are wanted; `sums`: all that the kernel has.
    """

    length: int
    vector: int
    columns: int
    segments: int
    reads: int
    writes: int
    vectors: int
    narrowest: int
    elements: int
    arrays: int
    exchanged: int
    exchanges: int
    held: int
    functions: bool
    wide: int
    sums: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run a kernel. `vector`: adjacent columns of a thread; `lanes`: threads across the columns;
    `team`: threads along each; `items`: elements of a column that a thread has; `blocks`: blocks a
    multiprocessor; `efficiency`: the share of the memory's speed to expect; `reason` says why it was taken.
    """

    form: str
    vector: int
    team: int
    items: int
    registers: int
    lanes: int = 0
    blocks: int = 0
    efficiency: float = 0.0
    reason: str = ""

    @property
    def threads(self) -> int:
        return self.team * self.lanes


def choose(shape: Shape, device: Device, multiprocessors: int) -> tuple[Schedule, tuple[Rejected, ...]]:
    """The schedule that should be fastest, and what was rejected."""
    rejected = []
    found = []
    for candidate in _candidates(shape):
        if candidate.registers > _REGISTERS:
            reason = f"needs about {candidate.registers} registers a thread"
            rejected.append(Rejected(_describe(candidate), reason))
        else:
            found.append((_merit(candidate, shape, device), candidate))
    chosen = max(found, key=lambda pair: pair[0], default=None)
    along = _streamed(shape) if chosen is None else chosen[1]
    return _across(along, shape, device, multiprocessors), tuple(rejected)


# ------------------------------------------------------------------------------------------------ along


def _candidates(shape: Shape) -> list[Schedule]:
    """Ways to hold a column in the registers of a team."""
    out: dict[tuple[int, int], Schedule] = {}
    for vector in _vectors(shape):
        for items in (1, *_ITEMS):
            team = next((t for t in _TEAMS if t * items >= shape.length), 0)
            if not team or not _lanes(team, shape, vector):
                continue
            items = -(-shape.length // team)
            registers = _registers(shape, vector, items, team)
            out.setdefault((vector, team), Schedule("registers", vector, team, items, registers))
    return list(out.values())


def _vectors(shape: Shape) -> list[int]:
    """The widest vector, and narrower ones of 4 bytes at least: fewer values are then kept for columns."""
    found = [shape.vector]
    while found[-1] > 1 and found[-1] // 2 * shape.narrowest >= 4:
        found.append(found[-1] // 2)
    return found


def _streamed(shape: Shape) -> Schedule:
    """The way to pass along a column of any length."""
    most = 16 if shape.wide else 64
    team = max(t for t in _TEAMS if t == 1 or (t <= most and t * _STREAM_ITEMS <= shape.length))
    vectors = [v for v in _vectors(shape) if _lanes(team, shape, v)]
    return Schedule("stream", vectors[0], team, -(-shape.length // team), _STREAM_REGISTERS)


def _merit(s: Schedule, shape: Shape, device: Device) -> float:
    """The share of the memory's speed that a multiprocessor full of such blocks should reach."""
    lanes = min(_lanes(s.team, shape, s.vector), key=lambda lanes: abs(lanes * s.team - 256))
    resident = _blocks(s, lanes, shape, device) * lanes * s.team
    in_flight = resident * s.items * s.vector * max(1, shape.reads)
    used = shape.length / (s.team * s.items)
    moved = s.items * max(1, shape.reads + shape.writes)
    exchange = 1.6 * shape.exchanges * shape.exchanged / moved if s.team > 1 else 0.0
    latency = min(1.0, in_flight / _IN_FLIGHT) * sqrt(min(1.0, resident / _RESIDENT))
    return latency * used * _WIDTHS[min(16, s.vector * shape.narrowest)] / (1 + 0.5 * exchange)


def _registers(shape: Shape, vector: int, items: int, team: int) -> int:
    """Registers a thread, fitted to what the compiler reports."""
    packed = items * vector * shape.reads / 4
    held = items * vector * shape.held
    kept = items * (shape.elements + shape.wide)
    unpacked = vector * (shape.vectors + 1)
    masked = 0 if items * team == shape.length else 8
    functions = 8 if shape.functions else 0
    whole = 26 + max(packed, held) + kept + unpacked + 0.7 * vector * shape.arrays + masked + functions
    return min(255, -(-int(whole) // 8) * 8)


# ------------------------------------------------------------------------------------------------ across


def _lanes(team: int, shape: Shape, vector: int, stream: bool = False) -> list[int]:
    """How many threads across the columns a block may have, with such a team."""
    if stream and shape.wide:
        options: tuple[int, ...] = (32,)
    else:
        options = (32, 16, 8, 4, 2, 1) if shape.sums else (256, 128, 64, 32, 16, 8, 4, 2, 1)
    return [
        lanes
        for lanes in options
        if lanes * team % 32 == 0
        and lanes * team <= (1024 if lanes <= 32 else 256)
        and _exchange(lanes, team, shape, vector) <= _STATIC_SHARED
    ]


def _exchange(lanes: int, team: int, shape: Shape, vector: int) -> int:
    """Bytes of shared memory that a block exchanges through."""
    return (team + 1) * shape.exchanged * vector * lanes * 4 if team > 1 else 0


def _blocks(s: Schedule, lanes: int, shape: Shape, device: Device) -> int:
    """Blocks that a multiprocessor has room for."""
    threads = lanes * s.team
    even = -(-threads // 128) * 128  # registers are handed out to the four quarters alike
    by_registers = device.registers_per_multiprocessor // (even * s.registers)
    by_shared = device.shared_per_multiprocessor // (
        _exchange(lanes, s.team, shape, s.vector) + _RESERVED_SHARED
    )
    return max(1, min(by_registers, by_shared, device.threads_per_multiprocessor // threads, MAX_BLOCKS))


def _across(s: Schedule, shape: Shape, device: Device, multiprocessors: int) -> Schedule:
    """How many columns a block takes: whole lines, and blocks that fill the machine."""
    chunks = shape.columns // s.vector
    found = []
    for lanes in _lanes(s.team, shape, s.vector, s.form == "stream"):
        blocks = _blocks(s, lanes, shape, device)
        tiles = -(-chunks // lanes) * shape.segments
        room = blocks * multiprocessors if tiles > multiprocessors else multiprocessors
        last = tiles / (-(-tiles // room) * room)
        deep = s.items if s.form == "registers" else 4
        in_flight = (
            min(tiles, blocks * multiprocessors) * lanes * s.team * deep * s.vector * max(1, shape.reads)
        )
        busy = min(1.0, in_flight / (_IN_FLIGHT * multiprocessors))
        used = chunks / (-(-chunks // lanes) * lanes)
        line = next(share for size, share in _LINES if lanes * s.vector * shape.narrowest >= size)
        found.append((line * busy * used * (0.6 + 0.4 * last), lanes, blocks))
    share, lanes, blocks = max(found)
    width = _WIDTHS[min(16, s.vector * shape.narrowest)]
    if s.form == "registers":
        reason = f"a column fits the registers of {s.team} threads, {s.items} elements each"
    else:
        reason = f"columns of {shape.length} elements do not fit registers"
    return replace(s, lanes=lanes, blocks=blocks, efficiency=share * width, reason=reason)


def _describe(s: Schedule) -> str:
    return f"{s.form}, {s.vector} columns a thread, {s.team} threads a column, {s.items} elements a thread"
