"""The short way from a call to its prepared form, for calls like one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from normgen import arrays
from normgen.arrays.views import Library
from normgen.runtime.calls.direction import Direction
from normgen.runtime.calls.prepared import Prepared
from normgen.runtime.calls.steps import Take, taking

# A call in brief: a key, equal for calls that differ in addresses and in the values of numbers alone; those
# addresses and numbers; what they are of. The key begins with how many arguments go by position, the names of
# the others, and the names of the results that are given.
Seen = tuple[tuple[Any, ...], list[Any], tuple[Any, ...]]


def see(
    given: tuple[Any, ...], named: Mapping[str, Any], out: Mapping[str, Any] | None, *options: Any
) -> Seen | None:
    """A call in brief; None where one of its arguments takes a full look. `options`: whatever else of the
    call its plan depends on."""
    if out is None:
        objects, results = (*given, *named.values()), ()
    elif type(out) is dict:
        objects, results = (*given, *named.values(), *out.values()), tuple(out)
    else:
        return None
    found = arrays.glance(objects)
    if found is None:
        return None
    values, keys = found
    return ((len(given), tuple(named), results), options, *keys), values, objects


@dataclass(frozen=True, slots=True)
class Shortcut:
    """From the values of a call in brief to the prepared call.

    `take`: the head of the pool, out of the values and the `defaults` of numbers. `like`: the argument whose
    library makes the results; `out`: those that are results. `bounds`: (argument, low, high) of numbers that
    need no other check.
    """

    prepared: Prepared
    adapter: Library
    like: int
    out: tuple[int, ...]
    take: Take
    defaults: tuple[float, ...]
    bounds: tuple[tuple[int, float, float], ...]

    def head(self, values: list[Any]) -> tuple[Any, ...] | None:
        """The head of the pool; None where a number is not plainly within its bounds."""
        for place, low, high in self.bounds:
            if not low <= values[place] <= high:
                return None
        return self.take([*values, *self.defaults])


def shortcut(
    seen: Seen,
    direction: Direction,
    prepared: Prepared,
    adapter: Library,
    like: str,
    numbers: Mapping[str, float],
    bounds: Callable[[str], tuple[float, float] | None],
) -> Shortcut:
    """The shortcut of a call that was seen, all of whose operands are arrays. `like`: the operand whose
    library makes the results; `bounds` of an attr, by name."""
    (count, named, results), *_ = seen[0]
    length = len(seen[1])
    places = {name: place for place, name in enumerate((*direction.reads[:count], *named))}
    out = tuple(len(places) + results.index(name) for name in prepared.given)
    defaults = tuple(numbers[name] for name in prepared.numbers if name not in places)
    tail = iter(range(length, length + len(defaults)))
    taken = [places[name] for name in prepared.operands]
    taken += out
    taken += [places[name] if name in places else next(tail) for name in prepared.numbers]
    ranges = ((places[name], bounds(name)) for name in named)
    return Shortcut(
        prepared,
        adapter,
        places[like],
        out,
        taking(taken),
        defaults,
        tuple((place, *limits) for place, limits in ranges if limits is not None),
    )
