"""The short way from a call to its prepared form, for calls like one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normgen import arrays
from normgen.arrays.views import Library
from normgen.runtime.calls.prepared import PreparedCall, Take, taking

# A call in brief: a key, equal for calls that differ in addresses and in the values of numbers alone; those
# addresses and numbers; what they are of. The key begins with how many arguments go by position, the names of
# the others, and the names of the results that are given.
Brief = tuple[tuple[Any, ...], list[Any], tuple[Any, ...]]


def brief(
    given: tuple[Any, ...],
    named: Mapping[str, Any],
    out: Mapping[str, Any] | None,
    choice: tuple[Any, ...],
    states: tuple[Any, ...],
) -> Brief | None:
    """A call in brief; None where one of its arguments takes a full look. `choice`: whatever else of the call
    its plan depends on; `states`: those of its arguments that it updates."""
    written = states
    if out is None:
        objects, results = (*given, *named.values()), ()
    elif type(out) is dict:
        objects, results = (*given, *named.values(), *out.values()), tuple(out)
        written = (*states, *out.values())
    else:
        return None
    found = arrays.glance(objects, written)
    if found is None:
        return None
    values, keys = found
    return (len(given), tuple(named), results, *choice, *keys), values, objects


@dataclass(frozen=True, slots=True)
class Shortcut:
    """From the values of a call in brief to the prepared call."""

    prepared: PreparedCall
    library: Library
    like: int  # the argument whose library makes the results
    out: tuple[int, ...]  # the arguments that are results
    take: Take  # the head of the pool, out of the values and the defaults
    defaults: tuple[float, ...]  # of numbers
    bounds: tuple[tuple[int, float, float], ...]  # (argument, low, high) of numbers that need no other check

    def head(self, values: list[Any]) -> tuple[Any, ...] | None:
        """The head of the pool; None where a number is not plainly within its bounds."""
        for place, low, high in self.bounds:
            if not low <= values[place] <= high:
                return None
        return self.take([*values, *self.defaults])


def shortcut(
    found: Brief,
    reads: tuple[str, ...],
    prepared: PreparedCall,
    like: tuple[str, Library],
    numbers: Mapping[str, float],
    bounds: Callable[[str], tuple[float, float] | None],
) -> Shortcut:
    """The shortcut of a call, all of whose operands are arrays. `reads`: the operands that go by position;
    `like`: the one whose library makes the results; `bounds` of an attr, by name."""
    count, named, results, *_ = found[0]
    places = {name: place for place, name in enumerate((*reads[:count], *named))}
    out = [len(places) + results.index(name) for name in prepared.given]
    defaults = [name for name in prepared.numbers if name not in places]
    after = len(found[1])
    taken = [*(places[name] for name in prepared.operands), *out]
    taken += [places[n] if n in places else after + defaults.index(n) for n in prepared.numbers]
    ranges = ((places[name], bounds(name)) for name in named)
    return Shortcut(
        prepared,
        like[1],
        places[like[0]],
        tuple(out),
        taking(taken),
        tuple(numbers[name] for name in defaults),
        tuple((place, *limits) for place, limits in ranges if limits is not None),
    )
