"""Cases: what planning makes of a call, as formulas of lengths that stay open, with the limits of these.

It is made once, with lengths that remember how they are used (`tracing`): what depends on them, such as grids
of launches, is a formula, and what was asked of them on the way are the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

from normgen.launching.formula import Formula, compiled, length
from normgen.launching.limits import Limits, limits_of
from normgen.launching.tracing import Size, Trace
from normgen.locks import cached_property

T = TypeVar("T")


@dataclass(frozen=True)
class Later:
    """A call that waits for the lengths that its arguments depend on."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Case(Generic[T]):
    """What is made of calls whose open lengths are within limits: tuples and records, with formulas in place
    of numbers."""

    limits: Limits
    value: T

    @cached_property
    def at(self) -> Callable[[Mapping[str, int]], T]:
        """What is made of a call with given lengths."""
        constants: list[Any] = []
        return compiled(_text(self.value, constants), constants)


def traced(
    sizes: Mapping[str, int], left_open: Iterable[str], make: Callable[[dict[str, int]], T]
) -> Case[T]:
    """The case of a call with these sizes. `make`: what is made of those that are left open."""
    trace = Trace(sizes)
    value = make({name: cast("int", trace.axis(name)) for name in left_open})
    limits = limits_of(trace.conditions)
    assert limits.hold(sizes)
    return Case(limits, _with_formulas(value))


def _parts(value: Any) -> tuple[Any, ...]:
    """What a tuple or a record holds."""
    if isinstance(value, tuple):
        return value
    is_record = is_dataclass(value) and not isinstance(value, type)
    return tuple(getattr(value, each.name) for each in fields(value)) if is_record else ()


def _is_open(value: Any) -> bool:
    return isinstance(value, Size | Formula | Later) or any(map(_is_open, _parts(value)))


def _with_formulas(value: Any) -> Any:
    if isinstance(value, Size):
        return value.formula
    if not _is_open(value):
        return value
    parts = tuple(map(_with_formulas, _parts(value)))
    return parts if isinstance(value, tuple) else type(value)(*parts)


def _text(value: Any, constants: list[Any]) -> str:
    """A value as Python writes it, beside constants."""
    if isinstance(value, Formula):
        return value.text(length)
    if not _is_open(value):
        constants.append(value)
        return f"k[{len(constants) - 1}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_text(part, constants)}, ' for part in value)})"
    deferred = isinstance(value, Later)
    function, given = (value.function, value.arguments) if deferred else (type(value), _parts(value))
    return f"{_text(function, constants)}(*{_text(given, constants)})"
