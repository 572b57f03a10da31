"""Knobs: what names a schedule, in a form that can be compared, hashed and written down.

A schedule is a frozen dataclass of its family. Each field is a knob, unless it is declared to be an estimate.
A knob may have a fixed set of values, and says whether it decides the bits of results.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

from normgen.launching.support import Support

Knob = int | str | bool
Knobs = tuple[tuple[str, Knob], ...]
Schedule = TypeVar("Schedule")

_KNOB = "knob"
_COUNTS = range(1 << 63)  # the values of a number of which nothing else is said


class _Declared(NamedTuple):
    """What is declared of a knob."""

    bits: bool
    values: Container[Any] | None


def knob(default: Any = MISSING, *, bits: bool = True, values: Container[Any] | None = None) -> Any:
    """A field that decides how a kernel runs.

    `bits`: whether schedules that differ in it may give a row other bits. `values`: those that it may have;
    where none are given, any of its type, and no negative numbers.
    """
    return field(default=default, metadata={_KNOB: _Declared(bits, values)})


def estimate(default: Any = MISSING) -> Any:
    """A field that is expected or said of a schedule, and decides nothing."""
    return field(default=default, metadata={_KNOB: None})


def knobs_of(schedule: Any) -> Knobs:
    """Every knob of a schedule."""
    return tuple([(name, getattr(schedule, name)) for name in _names(schedule.__class__)[0]])


def bits_of(schedule: Any) -> Knobs:
    """The knobs that decide the bits of a row's results."""
    return tuple([(name, getattr(schedule, name)) for name in _names(schedule.__class__)[1]])


def short(schedule: Any) -> dict[str, Knob]:
    """The knobs of a schedule that differ from their defaults, as they are written down."""
    usual = _defaults(schedule.__class__)
    return {name: value for name, value in knobs_of(schedule) if name not in usual or value != usual[name]}


def full(kind: type[Any], knobs: Mapping[str, Any]) -> Knobs:
    """Knobs as they were written down, with the defaults of those that are left out."""
    return tuple((dict(_defaults(cast(Any, kind))) | dict(knobs)).items())


def schedule_of(kind: type[Schedule], knobs: Knobs) -> Schedule | Support:
    """The schedule of these knobs, as they may have been read from a file, with nothing estimated; or what is
    wrong with them. Whether it fits a call is for its family to say."""
    given, known = dict(knobs), _known(cast(Any, kind))
    if wrong := sorted(given.keys() ^ known.keys()):
        return Support(False, f"{wrong[0]} is {'unknown' if wrong[0] in given else 'missing'}")
    for name, (type_, values) in known.items():
        value = given[name]
        if type(value) is not type_ or (values is not None and value not in values):
            return Support(False, f"{name} cannot be {value!r}")
    return kind(**given)


def settled(schedule: Schedule, wanted: Schedule) -> Schedule | Support:
    """`wanted`, which has its estimates, where the schedule has the same knobs; else which it has not."""
    for (name, has), (_, fits) in zip(knobs_of(schedule), knobs_of(wanted), strict=True):
        if has != fits:
            return Support(False, f"{name} must be {fits} but is {has}")
    return wanted


def distinct(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """The schedules, each once: those of equal knobs where the first of them was."""
    every = iter(schedules)
    for first in every:
        yield first  # which is all that most ask for
        seen = {knobs_of(first)}
        break
    for each in every:
        knobs = knobs_of(each)
        if knobs not in seen:
            seen.add(knobs)
            yield each


def _declared(schedule: Any) -> dict[str, _Declared]:
    """Every knob, with what is declared of it."""
    found = {each.name: each.metadata.get(_KNOB, _Declared(True, None)) for each in fields(schedule)}
    return {name: declared for name, declared in found.items() if declared is not None}


@cache
def _defaults(schedule: type) -> Mapping[str, Knob]:
    """The defaults of the knobs that have one."""
    declared = _declared(schedule)
    found = {each.name: each.default for each in fields(cast(Any, schedule)) if each.name in declared}
    return {name: value for name, value in found.items() if value is not MISSING}


@cache
def _names(schedule: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all knobs, and of those that decide the bits of results."""
    declared = _declared(schedule)
    return tuple(declared), tuple(name for name, each in declared.items() if each.bits)


@cache
def _known(schedule: type) -> Mapping[str, tuple[type, Container[Any] | None]]:
    """The type and the values of every knob."""
    types = get_type_hints(schedule)
    counts = {name: _COUNTS if types[name] is int else None for name in types}
    return {
        name: (types[name], counts[name] if each.values is None else each.values)
        for name, each in _declared(schedule).items()
    }
