"""Knobs: what names a schedule, in a form that can be compared, hashed and written down.

A schedule is a frozen dataclass of its family. Each field is a knob, unless it is declared to be an estimate;
a knob that only adjusts the schedule is declared to be fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any, TypeVar

Knob = int | str | bool
Knobs = tuple[tuple[str, Knob], ...]
Schedule = TypeVar("Schedule")

_KIND = "kind"


def knob(default: Any = MISSING, *, fine: bool = False) -> Any:
    """A field that decides how a kernel runs. Schedules that differ in fine ones alone have the same core."""
    return field(default=default, metadata={_KIND: "fine" if fine else "core"})


def estimate(default: Any = MISSING) -> Any:
    """A field that is expected or said of a schedule, and decides nothing."""
    return field(default=default, metadata={_KIND: "estimate"})


def knobs_of(schedule: Any) -> Knobs:
    """Every knob of a schedule."""
    return tuple([(name, getattr(schedule, name)) for name in _names(schedule.__class__)[0]])


def core_of(schedule: Any) -> Knobs:
    """The knobs that are not fine."""
    return tuple([(name, getattr(schedule, name)) for name in _names(schedule.__class__)[1]])


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


@cache
def _names(schedule: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all knobs, and of those that are not fine."""
    kinds = {each.name: each.metadata.get(_KIND, "core") for each in fields(schedule)}
    every = tuple(name for name, kind in kinds.items() if kind != "estimate")
    return every, tuple(name for name in every if kinds[name] == "core")
