"""How a kernel of the columns family runs: form, columns of a thread, threads along and across the columns.

What decides the arithmetic, the form and the thread group along a column, depends on the length of the
columns, the operands and their types, never on how many columns there are: so results are the same bits in
any batch. How many columns a block takes follows from how many there are.

- A thread moves 16 bytes of the narrowest operand where it can. Neighbouring lanes own neighbouring columns;
  8 lanes of 16 bytes are a line of memory.
- A thread group is as large as leaves each thread 4 to 16 elements: enough of them on their way from
  memory, few enough that several blocks share a multiprocessor, so that one loads while another stores.
- Persistent blocks, which sum over columns, ask for their next tile before they reduce one: then fewer
  threads do, with more elements each.
- Columns too long for the registers of 1024 threads are passed along once for each level of reductions.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from normgen.counting import counted
from normgen.families.columns.launch.schedule import (
    FORMS,
    TEAMS,
    ColumnSchedule,
    ColumnShape,
    blocks_resident,
    lanes_that_fit,
    multipass_registers,
    registers_of,
)
from normgen.launching.family import Rejected
from normgen.launching.knobs import settled
from normgen.launching.support import Support

_REGISTERS = 168  # per thread; beyond, too few threads are left to hide anything
_IN_FLIGHT = 40e3  # bytes on their way that keep one multiprocessor's share of the memory busy
# Threads per multiprocessor that hide the latency of arithmetic; where the next tile is on its way meanwhile,
# of elements of 2 bytes and of 4; and in long columns of 2 bytes, where each thread has _MANY elements.
# Evidence: bench/evidence/rules_others.csv.
_RESIDENT, _RESIDENT_NARROW, _RESIDENT_WIDE = 768, 256, 512
_RESIDENT_MANY, _MANY = 320, 64
_AHEAD = 1.08  # what it gains that the next tile is on its way
# Bytes that a multiprocessor would move while the moments of a member are merged, in columns that are long.
_MERGE, _LONG = 600, 512
_ITEMS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
_MULTIPASS_ITEMS = 16  # elements per thread, at least, where columns stream
# The fraction of the memory's speed that accesses of a thread reach, by their bytes, and runs of a line.
_WIDTHS = {16: 1.0, 8: 0.97, 4: 0.85, 2: 0.55, 1: 0.3}
_LINES = ((512, 1.0), (256, 0.99), (128, 0.97), (64, 0.8), (32, 0.6), (0, 0.3))
_WORD, _AMORTISED = 16, 1.2
# What so many blocks per multiprocessor reach, which load, reduce and store in turn.
_OVERLAP = {1: 0.75, 2: 0.93, 3: 0.98}
_OVERLAP_AHEAD = {1: 0.95, 2: 0.99}


# Ways to hold a column with their merits, the best first.
Along = list[tuple[float, ColumnSchedule]]


def merit_along(s: ColumnSchedule, shape: ColumnShape) -> float:
    """What a way to hold a column is worth, beside the width of its accesses."""
    return _merit(s, shape) / _width(s, shape)


# ------------------------------------------------------------------------------------------------ along


def along(shape: ColumnShape) -> tuple[Along, tuple[Rejected, ...]]:
    """Every way to hold a column that fits, with its merit, the best first; and what was rejected."""
    rejected, found = [], []
    for candidate in _candidates(shape):
        if why := _unfit(candidate, shape):
            rejected.append(Rejected(describe(candidate), why))
        else:
            found.append(candidate)
    merits = [(_merit(s, shape), s) for s in (*found, _streamed(shape))]
    return sorted(merits, key=lambda pair: -pair[0]), tuple(rejected)


def _unfit(s: ColumnSchedule, shape: ColumnShape) -> str:
    """Why a way to hold a column has no block, if it has none."""
    if s.registers > _REGISTERS:
        return f"needs about {s.registers} registers per thread"
    return "" if lanes_that_fit(s, shape) else "no block of such threads fits a multiprocessor"


def settle(s: ColumnSchedule, shape: ColumnShape) -> ColumnSchedule | Support:
    """A schedule with what is estimated of it, or why none of a kernel with this shape is so.

    Any vector, and any thread group that has the column, will do."""
    if s.vector not in _vectors(shape):
        return Support(False, f"vectors of {s.vector} columns are not aligned, or too narrow")
    found = (_held if s.holds else _passed)(shape, s.vector, s.team)
    if s.ahead:
        if not (s.holds and _comes_ahead(shape)):
            return Support(False, "blocks do not walk from tile to tile of columns that they hold")
        found = _with_next(found, shape)
    if s.team not in (_holding_teams if s.holds else _streaming_teams)(shape):
        return Support(False, f"{counted(s.team, 'thread')} along a column are too many")
    if why := _unfit(found, shape):
        return Support(False, why)
    if s.lanes not in lanes_that_fit(found, shape):
        return Support(False, f"a block with {counted(s.lanes, 'thread')} across does not fit")
    return settled(s, _share(found, s.lanes, shape)[1])


def _holding_teams(shape: ColumnShape) -> list[int]:
    """How many threads may hold a column: no more than leave each an element, or the next such number."""
    return [team for team, fewer in zip(TEAMS, (0, *TEAMS), strict=False) if fewer < shape.length]


def _held(shape: ColumnShape, vector: int, team: int) -> ColumnSchedule:
    """A column in the registers of so many threads."""
    items = -(-shape.length // team)
    return ColumnSchedule("registers", vector, team, items, registers_of(shape, vector, items, team))


def _passed(shape: ColumnShape, vector: int, team: int) -> ColumnSchedule:
    """A column of any length, past which so many threads walk."""
    items = -(-shape.length // team)
    return ColumnSchedule("multipass", vector, team, items, multipass_registers(shape, vector))


def _comes_ahead(shape: ColumnShape) -> bool:
    """Whether the next tile of a block can be on its way."""
    return shape.persistent and shape.reads > 0


def _candidates(shape: ColumnShape) -> list[ColumnSchedule]:
    """Ways to hold a column in the registers of a thread group."""
    out: dict[tuple[int, int], ColumnSchedule] = {}
    for vector in _vectors(shape):
        for items in _ITEMS:
            team = next((t for t in TEAMS if t * items >= shape.length), 0)
            if team and (vector, team) not in out:
                out[vector, team] = _held(shape, vector, team)
    found = list(out.values())
    return found + [_with_next(s, shape) for s in found if _comes_ahead(shape)]


def _with_next(s: ColumnSchedule, shape: ColumnShape) -> ColumnSchedule:
    """The same, with the next tile on its way. Its values of columns wait in registers, of which wide vectors
    have none to spare."""
    registers = registers_of(shape, s.vector, s.items, s.team, 7 / 6) + 4 * max(0, s.vector - 4)
    return replace(s, ahead=True, registers=registers)


def _vectors(shape: ColumnShape) -> list[int]:
    """The widest vector, and narrower ones of 4 bytes at least: fewer values are then kept for columns."""
    found = [shape.vector]
    while found[-1] > 1 and found[-1] // 2 * shape.narrowest >= 4:
        found.append(found[-1] // 2)
    return found


def _streamed(shape: ColumnShape) -> ColumnSchedule:
    """The way to pass along a column of any length."""
    teams, vectors = reversed(_streaming_teams(shape)), _vectors(shape)
    found = (_passed(shape, vector, team) for team in teams for vector in vectors)
    return next(s for s in found if lanes_that_fit(s, shape))


def _streaming_teams(shape: ColumnShape) -> list[int]:
    """How many threads may share a column of any length."""
    most = 8 if shape.wide else 64
    enough = (t for t in TEAMS if t <= most and t * (_MULTIPASS_ITEMS if t <= 32 else 64) <= shape.length)
    return [1, *enough]


def _merit(s: ColumnSchedule, shape: ColumnShape) -> float:
    """The fraction of the memory's speed that a machine full of such blocks should reach."""
    used = shape.length / (s.team * s.items)
    moved = s.items * max(1, shape.reads + shape.writes)
    exchange = 1.6 * shape.exchanges * shape.exchanged / moved if s.team > 1 else 0.0
    best = 0.0
    for lanes in lanes_that_fit(s, shape):
        blocks = blocks_resident(s, lanes, shape)
        resident = blocks * lanes * s.team
        in_flight = resident * s.deep * s.vector * max(1, shape.reads)
        latency = min(1.0, in_flight / _IN_FLIGHT) * sqrt(min(1.0, resident / _needed(s, shape)))
        share = latency * _overlap(s, blocks) * _line(s, lanes, shape)
        best = max(best, share * _merging(s, lanes, blocks, shape))
    speed = FORMS[s.form].speed * (_AHEAD if s.ahead else 1.0)
    return best * speed * used * _width(s, shape) * _amortised(s, shape) / (1 + 0.5 * exchange)


def _needed(s: ColumnSchedule, shape: ColumnShape) -> int:
    """Threads per multiprocessor that hide the latency of arithmetic."""
    if not s.ahead:
        return _RESIDENT_MANY if _merges_long(shape) and s.items * s.vector >= _MANY else _RESIDENT
    return _RESIDENT_NARROW if shape.narrowest < 4 else _RESIDENT_WIDE


def _amortised(s: ColumnSchedule, shape: ColumnShape) -> float:
    """What the functions of narrow elements gain where a thread of a small block has many of them, in whole
    words: they are bound by instructions."""
    whole = s.holds and s.vector * shape.narrowest == _WORD and shape.narrowest < 4
    small = whole and s.team <= 16
    return _AMORTISED if shape.held and small and 64 <= s.items * s.vector <= 96 else 1.0


def _line(s: ColumnSchedule, lanes: int, shape: ColumnShape) -> float:
    """What runs of so many columns reach."""
    size = lanes * s.vector * shape.narrowest
    return next(share for least, share in _LINES if size >= least)


def _width(s: ColumnSchedule, shape: ColumnShape) -> float:
    """What accesses of a thread's width reach."""
    return _WIDTHS[min(_WORD, s.vector * shape.narrowest)]


def _overlap(s: ColumnSchedule, blocks: int) -> float:
    """What so many blocks per multiprocessor reach, which load, reduce and store in turn."""
    return (_OVERLAP_AHEAD if s.ahead else _OVERLAP).get(blocks, 1.0) if s.holds else 1.0


def _merging(s: ColumnSchedule, lanes: int, blocks: int, shape: ColumnShape) -> float:
    """What is left of long columns where one thread merges the moments of a thread group, one after
    another, while only other blocks move any bytes, and where some thread's last element is not there."""
    if not (s.holds and _merges_long(shape)):
        return 1.0
    moved = lanes * s.items * s.vector * max(1, shape.reads + shape.writes)
    return shape.length / (s.team * s.items) / (1 + _MERGE / (moved * blocks))


def _merges_long(shape: ColumnShape) -> bool:
    return shape.moments and shape.length >= _LONG and shape.narrowest < 4


# ------------------------------------------------------------------------------------------------ across


def across(s: ColumnSchedule, shape: ColumnShape) -> list[ColumnSchedule]:
    """How many columns a block takes, the best first: whole lines, and blocks that fill the machine."""
    found = [_share(s, lanes, shape) for lanes in lanes_that_fit(s, shape)]
    found.sort(key=lambda each: (each[0], each[1].lanes, each[1].blocks), reverse=True)
    return [made for _, made in found]


def _share(s: ColumnSchedule, lanes: int, shape: ColumnShape) -> tuple[float, ColumnSchedule]:
    """The schedule with so many threads across the columns, after its share of the memory's speed."""
    chunks, multiprocessors = shape.columns // s.vector, shape.multiprocessors
    blocks = blocks_resident(s, lanes, shape)
    tiles = -(-chunks // lanes) * shape.segments
    room = blocks * multiprocessors if tiles > multiprocessors else multiprocessors
    last = tiles / (-(-tiles // room) * room)
    threads = min(tiles, blocks * multiprocessors) * lanes * s.team
    in_flight = threads * s.deep * s.vector * max(1, shape.reads)
    busy = min(1.0, in_flight / (_IN_FLIGHT * multiprocessors))
    used = chunks / (-(-chunks // lanes) * lanes)
    full = _overlap(s, min(blocks, -(-tiles // multiprocessors)))
    share = _line(s, lanes, shape) * busy * full * used * (0.6 + 0.4 * last)
    share *= _merging(s, lanes, blocks, shape)
    reason = FORMS[s.form].because.format(shape, counted(s.team, "thread"), counted(s.items, "element"))
    efficiency = share * _width(s, shape)
    return share, replace(s, lanes=lanes, blocks=blocks, efficiency=efficiency, reason=reason)


def describe(s: ColumnSchedule) -> str:
    """A way to hold a column, in a few words."""
    across, along = counted(s.vector, "column"), counted(s.team, "thread")
    each = f"{s.form}, {across} per thread, {along} per column, {counted(s.items, 'element')} per thread"
    return each + (", the next tile on its way" if s.ahead else "")
