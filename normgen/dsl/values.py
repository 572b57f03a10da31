"""What an expression means: a number or a condition, its axes, and a constant where the compiler knows it.

A value knows its axes by the rules of the language, which folding in the IR does not change: `x^0` varies
over the axes of x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from normgen.diagnostics import Label, Span
from normgen.dsl import ast
from normgen.dsl.names import Scope
from normgen.ir import expr as ir

Axes = frozenset[str]


@dataclass(frozen=True, slots=True)
class Value:
    """A number (`float`, or `int` if it is a compile-time integer) or a condition (`bool`).

    `constant` is its value where that is known at compile time, a condition's as 0 or 1.
    """

    kind: str
    expr: ir.Expr
    axes: Axes = frozenset()
    constant: Fraction | None = None

    @property
    def poisoned(self) -> bool:
        """Its fault is reported already, so its uses report nothing."""
        return self.kind == "poison"


POISON = Value("poison", ir.ZERO)


def number(expr: ir.Expr, axes: Axes = frozenset(), kind: str = "float") -> Value:
    return Value(kind, expr, axes, expr.value if isinstance(expr, ir.Const) and not axes else None)


def truth(value: bool) -> Value:
    return Value("bool", ir.ONE if value else ir.ZERO, frozenset(), Fraction(value))


@dataclass(frozen=True, slots=True)
class Environment:
    """What names mean: values, and axes (a function's axis parameter may stand for several).

    `site` is the call in the spec that is being expanded; faults inside a function are reported there.
    `functions`: those that calls mean, within a function of the prelude; else the scope's.
    """

    values: Mapping[str, Value]
    axes: Mapping[str, tuple[str, ...]]
    site: Span | None = None
    functions: Mapping[str, ast.Function] | None = None


class Fault(Exception):
    """A mistake in what an expression means; `others` are further labels, next to the node's."""

    def __init__(
        self,
        node: ast.Node,
        code: str,
        message: str,
        *help: str,
        label: str = "",
        others: tuple[Label, ...] = (),
    ) -> None:
        super().__init__(message)
        self.node, self.code, self.message, self.help = node, code, message, help
        self.label, self.others = label, others


def as_number(node: ast.Expression, value: Value) -> Value:
    """The value of a node that must be a number."""
    if value.kind != "bool":
        return value
    compared = isinstance(node, ast.Binary) or value.constant is None
    what = "a comparison" if compared else "a bool"
    example = "1 if a < b else 0" if compared else "1 if flag else 0"
    raise Fault(node, "type", f"{what} is a condition, not a number", f"choose a number by it: `{example}`")


def as_condition(node: ast.Expression, value: Value) -> Value:
    """The value of a node that must be a condition."""
    if value.kind in ("bool", "poison"):
        return value
    message = "a condition must be a comparison or a bool attr"
    raise Fault(node, "type", message, "compare it, as in `v != 0`", label="this is a number")


def integer(node: ast.Expression, value: Value, what: str, scope: Scope, site: Span | None) -> int:
    """The value as a compile-time integer, which `what` must be; the mistake is most often a float attr."""
    if value.kind == "int" and value.constant is not None:
        return floor(value.constant)
    message = f"{what} must be an integer known at compile time"
    below = _below(node)
    for part in below:
        entity = scope.values.get(part.text) if isinstance(part, ast.Name) else None
        if entity is not None and entity.what == "float attr" and site is None:
            other = Label(entity.head, "a float, because it has no type", primary=False)
            raise Fault(node, "integer", message, f"declare `attr {entity.name}: int`", others=(other,))
    if any(isinstance(part, ast.Binary) and part.operator == "/" for part in below):
        raise Fault(node, "integer", message, "write `//` for integer division, which rounds down")
    raise Fault(node, "integer", message, "use whole numbers, int attrs and `+ - * //`")


def _below(node: ast.Node) -> list[ast.Node]:
    found = [node]
    for part in found:
        found.extend(ast.children(part))
    return found
