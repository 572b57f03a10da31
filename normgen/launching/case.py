"""Cases: the result of planning, as formulas of the lengths that stay open, and the limits on these lengths.

Planning runs once, with lengths that record how they are used (`tracing`). Results that depend on them, such
as grids of launches, become formulas. Every comparison made on the way becomes a limit.
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
    """A function call that is made once the open lengths are known."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Case(Generic[T]):
    """A result for all calls whose open lengths are within `limits`. `value`: tuples and records, with
    formulas instead of numbers."""

    limits: Limits
    value: T

    @cached_property
    def at(self) -> Callable[[Mapping[str, int]], T]:
        """The result for given lengths, compiled to one function."""
        constants: list[Any] = []
        return compiled(_text(self.value, constants), constants)


def traced(
    sizes: Mapping[str, int], left_open: Iterable[str], make: Callable[[dict[str, int]], T]
) -> Case[T]:
    """The case of a call with these sizes. `make` computes the result from the lengths that stay open."""
    trace = Trace(sizes)
    value = make({name: cast("int", trace.axis(name)) for name in left_open})
    limits = limits_of(trace.conditions)
    assert limits.hold(sizes)
    return Case(limits, _with_formulas(value))


def _parts(value: Any) -> tuple[Any, ...]:
    """The elements of a tuple, or the fields of a record."""
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
    """A value as Python source. Parts without open lengths are appended to `constants`."""
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
