"""How a kernel of the columns family runs: form, columns of a thread, threads along and across the columns.

What decides the arithmetic, the form and the team along a column, depends on the length of the columns, the
operands and their types, never on how many columns there are: so results are the same bits in any batch. How
many columns a block takes follows from how many there are.

- A thread moves 16 bytes of the narrowest operand where it can. Neighbouring lanes own neighbouring columns;
  8 lanes of 16 bytes are a line of memory.
- A team is as large as leaves each thread 4 to 16 elements: enough of them on their way from memory, few
  enough that several blocks share a multiprocessor, so that one loads while another stores.
- Persistent blocks, which sum over columns, ask for their next tile before they reduce one: then fewer
  threads do, with more elements each.
- Columns too long for the registers of 1024 threads are passed along once for each level of reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from normgen.families.columns.launch.schedule import (
    Schedule,
    Shape,
    blocks_resident,
    lanes_that_fit,
    registers_of,
    stream_registers,
)
from normgen.launching.family import Rejected
from normgen.launching.knobs import distinct
from normgen.launching.machine import Machine

_REGISTERS = 168  # beyond, too few threads are left to hide anything
_IN_FLIGHT = 40e3  # bytes on their way that keep one multiprocessor's share of the memory busy
_RESIDENT = 768  # threads a multiprocessor that hide the latency of arithmetic
# The same where the next tile is on its way meanwhile, of elements of 2 bytes and of 4; and what it gains: 2
# to 12 % where mean and variance are differentiated, from 64 to 1024 channels.
_RESIDENT_NARROW, _RESIDENT_WIDE = 256, 512
_AHEAD = 1.08
# Bytes that a multiprocessor would move while the moments of a member are merged, in columns that are long.
_MERGE, _LONG = 600, 512
# Threads that are enough for such columns of 2 bytes, where each has so many elements: 512 channels of 8192
# pixels take 9.0 us with 32 threads of 16 elements of 4 columns, 13.2 with 96 of 6 of 8.
_RESIDENT_MANY, _MANY = 320, 64
_TEAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_ITEMS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
# Of the memory's speed, since columns are read again for each level, and there are few blocks: 1024 to 2048
# channels of 8192 pixels reach 0.14 to 0.2 (f32 0.4), where held ones reach 0.45 to 0.5.
_STREAM_SHARE = 0.2
_STREAM_ITEMS = 16  # elements a thread, at least, where columns stream
# The share of the memory's speed that accesses of a thread reach, by their bytes, and of a line's part.
_WIDTHS = {16: 1.0, 8: 0.97, 4: 0.85, 2: 0.55, 1: 0.3}
_WORD, _AMORTISED = 16, 1.2
# What so many blocks of a multiprocessor reach, which load, reduce and store in turn.
_OVERLAP = {1: 0.75, 2: 0.93, 3: 0.98}
_OVERLAP_AHEAD = {1: 0.95, 2: 0.99}
_LINES = ((512, 1.0), (256, 0.99), (128, 0.97), (64, 0.8), (32, 0.6), (0, 0.3))


# Ways to hold a column with their merits, the best first.
Along = list[tuple[float, Schedule]]


def space(shape: Shape, found: Along, device: Machine, multiprocessors: int) -> Iterator[Schedule]:
    """Every schedule that fits: by what should be fastest along the columns, then across them."""
    return distinct(s for _, along in found for s in _across(along, shape, device, multiprocessors))


def merit_along(s: Schedule, shape: Shape, device: Machine) -> float:
    """What a way to hold a column is worth, beside the width of its accesses."""
    return _merit(s, shape, device) / _width(s, shape)


# ------------------------------------------------------------------------------------------------ along


def along(shape: Shape, device: Machine) -> tuple[Along, tuple[Rejected, ...]]:
    """Every way to hold a column that fits, with its merit, the best first; and what was rejected."""
    rejected, found = [], []
    for candidate in _candidates(shape):
        if candidate.registers > _REGISTERS:
            reason = f"needs about {candidate.registers} registers a thread"
            rejected.append(Rejected(describe(candidate), reason))
        elif not lanes_that_fit(candidate, shape, device):
            rejected.append(Rejected(describe(candidate), "no block of such threads fits a multiprocessor"))
        else:
            found.append((_merit(candidate, shape, device), candidate))
    stream = _streamed(shape, device)
    found.append((_merit(stream, shape, device), stream))
    return sorted(found, key=lambda pair: -pair[0]), tuple(rejected)


def _candidates(shape: Shape) -> list[Schedule]:
    """Ways to hold a column in the registers of a team."""
    out: dict[tuple[int, int], Schedule] = {}
    for vector in _vectors(shape):
        for items in (1, *_ITEMS):
            team = next((t for t in _TEAMS if t * items >= shape.length), 0)
            if team:
                items = -(-shape.length // team)
                registers = registers_of(shape, vector, items, team)
                out.setdefault((vector, team), Schedule("registers", vector, team, items, registers))
    found = list(out.values())
    return found + [_with_next(s, shape) for s in found if shape.persistent and shape.reads]


def _with_next(s: Schedule, shape: Shape) -> Schedule:
    """The same, with the next tile on its way. Its values of columns wait in registers, of which wide vectors
    have none to spare."""
    registers = registers_of(shape, s.vector, s.items, s.team, 7 / 6) + 4 * max(0, s.vector - 4)
    return replace(s, ahead=True, registers=registers)


def _vectors(shape: Shape) -> list[int]:
    """The widest vector, and narrower ones of 4 bytes at least: fewer values are then kept for columns."""
    found = [shape.vector]
    while found[-1] > 1 and found[-1] // 2 * shape.narrowest >= 4:
        found.append(found[-1] // 2)
    return found


def _streamed(shape: Shape, device: Machine) -> Schedule:
    """The way to pass along a column of any length."""
    most = 8 if shape.wide else 64
    teams = [t for t in _TEAMS if t <= most and t * (_STREAM_ITEMS if t <= 32 else 64) <= shape.length]
    found = (
        Schedule("stream", vector, team, -(-shape.length // team), stream_registers(shape, vector))
        for team in reversed([1, *teams])
        for vector in _vectors(shape)
    )
    return next(s for s in found if lanes_that_fit(s, shape, device))


def _merit(s: Schedule, shape: Shape, device: Machine) -> float:
    """The share of the memory's speed that a machine full of such blocks should reach."""
    used = shape.length / (s.team * s.items)
    moved = s.items * max(1, shape.reads + shape.writes)
    exchange = 1.6 * shape.exchanges * shape.exchanged / moved if s.team > 1 else 0.0
    best = 0.0
    for lanes in lanes_that_fit(s, shape, device):
        blocks = blocks_resident(s, lanes, shape, device)
        resident = blocks * lanes * s.team
        in_flight = resident * _deep(s) * s.vector * max(1, shape.reads)
        latency = min(1.0, in_flight / _IN_FLIGHT) * sqrt(min(1.0, resident / _needed(s, shape)))
        share = latency * _overlap(s, blocks) * _line(s, lanes, shape)
        best = max(best, share * _merging(s, lanes, blocks, shape))
    return best * _form(s) * used * _width(s, shape) * _amortised(s, shape) / (1 + 0.5 * exchange)


def _form(s: Schedule) -> float:
    """What a form gains or loses."""
    return _STREAM_SHARE if s.form == "stream" else _AHEAD if s.ahead else 1.0


def _needed(s: Schedule, shape: Shape) -> int:
    """Threads a multiprocessor that hide the latency of arithmetic."""
    if not s.ahead:
        return _RESIDENT_MANY if _merges_long(shape) and s.items * s.vector >= _MANY else _RESIDENT
    return _RESIDENT_NARROW if shape.narrowest < 4 else _RESIDENT_WIDE


def _amortised(s: Schedule, shape: Shape) -> float:
    """What the functions of narrow elements gain where a thread of a small block has many of them, in whole
    words: they are bound by instructions. Exponentials over 151 channels of 2 bytes 96 us with 8 columns of
    10, 117 with 4 of 10; over 256, in blocks of 256 threads, 172 and 163.
    """
    whole = s.form == "registers" and s.vector * shape.narrowest == _WORD and shape.narrowest < 4
    small = whole and s.team <= 16
    return _AMORTISED if shape.held and small and 64 <= s.items * s.vector <= 96 else 1.0


def _deep(s: Schedule) -> int:
    """How many loads of each operand a thread has on their way."""
    return s.items if s.form == "registers" else min(4, s.items)


def _line(s: Schedule, lanes: int, shape: Shape) -> float:
    """What runs of so many columns reach."""
    size = lanes * s.vector * shape.narrowest
    return next(share for least, share in _LINES if size >= least)


def _width(s: Schedule, shape: Shape) -> float:
    """What accesses of a thread's width reach."""
    return _WIDTHS[min(16, s.vector * shape.narrowest)]


def _overlap(s: Schedule, blocks: int) -> float:
    """What so many blocks of a multiprocessor reach, which load, reduce and store in turn."""
    if s.form == "stream":
        return 1.0
    return (_OVERLAP_AHEAD if s.ahead else _OVERLAP).get(blocks, 1.0)


def _merging(s: Schedule, lanes: int, blocks: int, shape: Shape) -> float:
    """What is left of long columns where one thread merges the moments of a team, one after another, while
    only other blocks move any bytes, and where some thread's last element is not there."""
    if s.form == "stream" or not _merges_long(shape):
        return 1.0
    moved = lanes * s.items * s.vector * max(1, shape.reads + shape.writes)
    return shape.length / (s.team * s.items) / (1 + _MERGE / (moved * blocks))


def _merges_long(shape: Shape) -> bool:
    return shape.moments and shape.length >= _LONG and shape.narrowest < 4


# ------------------------------------------------------------------------------------------------ across


def _across(s: Schedule, shape: Shape, device: Machine, multiprocessors: int) -> list[Schedule]:
    """How many columns a block takes, the best first: whole lines, and blocks that fill the machine."""
    chunks = shape.columns // s.vector
    found = []
    for lanes in lanes_that_fit(s, shape, device):
        blocks = blocks_resident(s, lanes, shape, device)
        tiles = -(-chunks // lanes) * shape.segments
        room = blocks * multiprocessors if tiles > multiprocessors else multiprocessors
        last = tiles / (-(-tiles // room) * room)
        in_flight = (
            min(tiles, blocks * multiprocessors) * lanes * s.team * _deep(s) * s.vector * max(1, shape.reads)
        )
        busy = min(1.0, in_flight / (_IN_FLIGHT * multiprocessors))
        used = chunks / (-(-chunks // lanes) * lanes)
        full = _overlap(s, min(blocks, -(-tiles // multiprocessors)))
        share = _line(s, lanes, shape) * busy * full * used * (0.6 + 0.4 * last)
        found.append((share * _merging(s, lanes, blocks, shape), lanes, blocks))
    if s.form == "registers":
        reason = f"a column fits the registers of {s.team} threads, {s.items} elements each"
    else:
        reason = f"columns of {shape.length} elements do not fit the registers of a block well"
    return [
        replace(s, lanes=lanes, blocks=blocks, efficiency=share * _width(s, shape), reason=reason)
        for share, lanes, blocks in sorted(found, reverse=True)
    ]


def describe(s: Schedule) -> str:
    """A way to hold a column, in a few words."""
    each = f"{s.form}, {s.vector} columns a thread, {s.team} threads a column, {s.items} elements a thread"
    return each + (", the next tile on its way" if s.ahead else "")
