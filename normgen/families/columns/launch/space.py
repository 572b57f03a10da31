"""What the columns family offers for a kernel: the divisions of a column among threads, and of the columns
among the lanes of a block. Nothing here prefers one to another.

Form, threads along a column and their elements decide the arithmetic. `starts` have each of them with a few
numbers of lanes, and are what others are neighbours of: the same in other numbers of lanes, with vectors of
another width, and with the next tile on its way or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from math import log2

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
from normgen.launching.knobs import distinct, settled
from normgen.launching.machine import LINE
from normgen.launching.support import Support

MOST_STARTS, MOST_NEIGHBOURS = 60, 20
_REGISTERS = 168  # per thread that holds a part of a column
_USUAL_BYTES = 64  # of a column in one thread: divisions near it are kept where there are too many
_MULTIPASS_ITEMS = 16  # elements per thread, at least, where columns stream
_LINES = (1, 4)  # of neighbouring columns that a block of the starts has, nearly
_NEAR = 3  # numbers of lanes, of schedules that differ in another knob


# ------------------------------------------------------------------------------------------------ starts


def starts(shape: ColumnShape) -> list[ColumnSchedule]:
    """The schedules that others are neighbours of, at most so many."""
    along = sorted(_along(shape), key=lambda each: _unusual(each, shape))
    fit = islice((each for each in along if not _unfit(each, shape)), MOST_STARTS // len(_LINES))
    return [across(each, lanes, shape) for each in fit for lanes in _few_lanes(each, shape)]


def _along(shape: ColumnShape) -> Iterator[ColumnSchedule]:
    """The divisions of a column among threads."""
    for vector in _vectors(shape):
        held = [_held(shape, vector, team) for team in _holding_teams(shape)]
        ahead = [_with_next(each, shape) for each in held] if _comes_ahead(shape) else []
        passed = [_passed(shape, vector, team) for team in _streaming_teams(shape)]
        yield from (*held, *ahead, *passed)
    for vector in _misaligned(shape):
        yield from (_held(shape, vector, team, True) for team in _holding_teams(shape))


def _few_lanes(s: ColumnSchedule, shape: ColumnShape) -> list[int]:
    """Lanes of which the columns have a line, or a few."""
    fit = lanes_that_fit(s, shape)
    own = s.vector * shape.narrowest
    return list(dict.fromkeys(min(fit, key=lambda n: abs(log2(n * own / (LINE * of)))) for of in _LINES))


def _unusual(s: ColumnSchedule, shape: ColumnShape) -> float:
    """How far a division is from what most columns take."""
    if not s.holds:
        return abs(log2(s.items / _MULTIPASS_ITEMS))
    held = s.items * s.vector * max(1, shape.reads)
    return 4 * log2(s.items * s.team / shape.length) + abs(log2(held / _USUAL_BYTES))


# ------------------------------------------------------------------------------------------------ neighbours


def neighbours(s: ColumnSchedule, shape: ColumnShape) -> list[ColumnSchedule]:
    """The schedules that give a column the same bits: with all lanes that there may be, or with one other
    knob and nearly as many columns of a block. At most so many."""
    same = (across(s, lanes, shape) for lanes in lanes_that_fit(s, shape))
    others = (across(each, n, shape) for each in _alike(s, shape) for n in _near_lanes(each, s, shape))
    return list(islice(distinct(chain([s], same, others)), MOST_NEIGHBOURS))


def _alike(s: ColumnSchedule, shape: ColumnShape) -> Iterator[ColumnSchedule]:
    """The same division of a column, with the next tile on its way or not, or with other vectors."""
    made = _held if s.holds else _passed
    if s.ahead:
        yield made(shape, s.vector, s.team)
    elif s.holds and not s.realigned and _comes_ahead(shape):
        yield _with_next(made(shape, s.vector, s.team), shape)
    for vector in _vectors(shape):
        if s.realigned or vector != s.vector:
            other = made(shape, vector, s.team)
            yield _with_next(other, shape) if s.ahead else other
    if s.holds:
        yield from (_held(shape, vector, s.team, True) for vector in _misaligned(shape))


def _near_lanes(each: ColumnSchedule, s: ColumnSchedule, shape: ColumnShape) -> list[int]:
    """Lanes with which a block has nearly as many columns as that of a schedule."""
    if _unfit(each, shape):
        return []
    columns = s.lanes * s.vector
    return sorted(lanes_that_fit(each, shape), key=lambda lanes: abs(log2(lanes * each.vector / columns)))[
        :_NEAR
    ]


# ------------------------------------------------------------------------------------------------ legality


def settle(s: ColumnSchedule, shape: ColumnShape) -> ColumnSchedule | Support:
    """A schedule with what is estimated of it, or why none of a kernel with this shape is so.

    Any vector, and any thread group that has the column, will do."""
    if s.form not in FORMS:
        return Support(False, f"there is no form {s.form}")
    if s.vector not in (_misaligned if s.realigned else _vectors)(shape):
        return Support(False, f"vectors of {s.vector} columns are not aligned, or too narrow")
    if s.realigned and (s.ahead or not s.holds):
        return Support(False, "no vectors are realigned but of columns that are held, as they come")
    found = _held(shape, s.vector, s.team, s.realigned) if s.holds else _passed(shape, s.vector, s.team)
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
    return settled(s, across(found, s.lanes, shape))


def _unfit(s: ColumnSchedule, shape: ColumnShape) -> str:
    """Why a way to hold a column has no block, if it has none."""
    if s.registers > _REGISTERS:
        return f"needs about {s.registers} registers per thread"
    return "" if lanes_that_fit(s, shape) else "no block of such threads fits a multiprocessor"


def _holding_teams(shape: ColumnShape) -> list[int]:
    """How many threads may hold a column: no more than leave each an element, or the next such number."""
    return [team for team, fewer in zip(TEAMS, (0, *TEAMS), strict=False) if fewer < shape.length]


def _streaming_teams(shape: ColumnShape) -> list[int]:
    """How many threads may share a column of any length."""
    most = 8 if shape.wide else 64
    enough = (t for t in TEAMS if t <= most and t * (_MULTIPASS_ITEMS if t <= 32 else 64) <= shape.length)
    return [1, *enough]


def _vectors(shape: ColumnShape) -> list[int]:
    """The widest vector, and narrower ones of 4 bytes at least: fewer values are then kept for columns."""
    found = [shape.vector]
    while found[-1] > 1 and found[-1] // 2 * shape.narrowest >= 4:
        found.append(found[-1] // 2)
    return found


def _misaligned(shape: ColumnShape) -> list[int]:
    """The vectors of 4 bytes at least that are wider than any that is aligned."""
    found, vector = [], shape.misaligned
    while vector > shape.vector and vector * shape.narrowest >= 4:
        found.append(vector)
        vector //= 2
    return found


def _comes_ahead(shape: ColumnShape) -> bool:
    """Whether the next tile of a block can be on its way."""
    return shape.persistent and shape.reads > 0


# ----------------------------------------------------------------------------------------------- constructors


def _held(shape: ColumnShape, vector: int, team: int, realigned: bool = False) -> ColumnSchedule:
    """A column in the registers of so many threads."""
    items = -(-shape.length // team)
    registers = registers_of(shape, vector, items, team, realigned=realigned)
    return ColumnSchedule("registers", vector, team, items, registers, realigned=realigned)


def _with_next(s: ColumnSchedule, shape: ColumnShape) -> ColumnSchedule:
    """The same, with the next tile on its way. Its values of columns wait in registers, of which wide vectors
    have none to spare."""
    registers = registers_of(shape, s.vector, s.items, s.team, 7 / 6) + 4 * max(0, s.vector - 4)
    return replace(s, ahead=True, registers=registers)


def _passed(shape: ColumnShape, vector: int, team: int) -> ColumnSchedule:
    """A column of any length, past which so many threads walk."""
    items = -(-shape.length // team)
    return ColumnSchedule("multipass", vector, team, items, multipass_registers(shape, vector))


def across(s: ColumnSchedule, lanes: int, shape: ColumnShape) -> ColumnSchedule:
    """The same, with so many threads across the columns."""
    return replace(s, lanes=lanes, blocks=blocks_resident(s, lanes, shape))
