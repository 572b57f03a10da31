"""The attrs of a spec: their types, ranges and defaults, and the values that callers pass."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl import ast
from normgen.dsl.evaluate import Evaluator
from normgen.dsl.limits import number_fault
from normgen.dsl.names import Names, check_names, suggestion
from normgen.dsl.values import POISON, Environment, Value, number, truth
from normgen.ir import expr as ir
from normgen.ir.program import Attr

KINDS = ("float", "int", "bool")
_LARGEST_INTEGER = 2**63 - 1
_ONLY = "the default and the range of an attr can use only numbers and the attrs above it"


@dataclass(frozen=True, slots=True)
class CheckedAttr:
    """An attr of the program, what its name means in expressions, and what it means to the attrs below it."""

    attr: Attr
    value: Value
    constant: Value


def check_attr(
    node: ast.Attr, given: Mapping[str, object], above: Mapping[str, Value], evaluator: Evaluator
) -> CheckedAttr:
    """The type, range, default and value of one attr."""
    kind = _kind(node, evaluator)
    environment = Environment(above, {})
    names = Names(above, (), evaluator.scope.functions, evaluator.scope, only=_ONLY)
    low = _low(node, kind, names, environment, evaluator)
    value = (
        None if node.default is None else _default(node, kind, node.default, names, environment, evaluator)
    )
    place, origin = node.name.span if node.default is None else node.default.span, "the default of "
    folded = kind != "float"
    failed = node.default is not None and value is None
    if node.name.text in given:
        value, folded = _given(node, kind, given[node.name.text], evaluator), True
        place, origin, failed = node.name.span, "", value is None
    if value is not None and low is not None and not _within(value, node.bound, low):
        evaluator.report(Diagnostic("attr", *_outside(node, value, low, origin, place)))
        failed = True
    if value is None and not failed and kind in ("int", "bool"):
        evaluator.report(Diagnostic("attr", *_without_value(node, kind)))
        failed = True
    strict = node.bound is not None and node.bound.operator == ">"
    final = int(value) if value is not None and kind == "int" else value
    attr = Attr(node.name.text, kind or "float", final, low, strict, folded, node.doc, node.span)
    if kind is None or failed:
        return CheckedAttr(attr, POISON, POISON)
    if isinstance(value, bool):
        return CheckedAttr(attr, truth(value), truth(value))
    runtime = number(ir.scalar(attr.name))
    constant = runtime if value is None else number(ir.const(value), kind=kind)
    return CheckedAttr(attr, constant if folded else runtime, constant)


def _outside(
    node: ast.Attr, value: Fraction | bool, low: Fraction, origin: str, place: Span
) -> tuple[str, tuple[Label, ...], tuple[str, ...]]:
    message = f"{origin}`{node.name.text}` is {_shown(value)}, which is outside its range"
    labels = Label(place), Label(node.bound.span if node.bound else place, "its range", primary=False)
    return message, labels, (f"choose a value {node.bound.operator if node.bound else '>='} {_shown(low)}",)


def _without_value(node: ast.Attr, kind: str) -> tuple[str, tuple[Label, ...], tuple[str, ...]]:
    name, python, article = node.name.text, _EXAMPLES[kind], "an" if kind == "int" else "a"
    example = python.lower()
    message = f"attr `{name}` has no value, and {article} {kind} needs one"
    help = f"pass `{name}={python}` to `load`, or `--attr {name}={example}` on the command line"
    default = f"or add a default, `attr {name}: {kind} = {example}`"
    return message, (Label(node.span),), (help, default)


def _within(value: Fraction | bool, bound: ast.Bound | None, low: Fraction) -> bool:
    return value > low if bound is not None and bound.operator == ">" else value >= low


def _kind(node: ast.Attr, evaluator: Evaluator) -> str | None:
    """float, int or bool; None if a fault is reported."""
    if node.kind is None:
        if isinstance(node.default, ast.Truth):
            help = f"write `attr {node.name.text}: bool = {str(node.default.value).lower()}`"
            message = f"`{node.name.text}` has no type, so it is a float, but its default is a bool"
            evaluator.report(Diagnostic("attr", message, (Label(node.default.span),), (help,)))
            return None
        return "float"
    if node.kind.text in KINDS:
        return node.kind.text
    help = "the types are `float` (the default), `int` and `bool`"
    message = f"there is no attr type `{node.kind.text}`"
    evaluator.report(Diagnostic("attr", message, (Label(node.kind.span),), (help,)))
    return None


def _constant(
    node: ast.Expression, what: str, kind: str, names: Names, environment: Environment, evaluator: Evaluator
) -> Value | None:
    """A compile-time value of the right kind; None if a fault is reported."""
    if faults := check_names(node, names):
        for fault in faults:
            evaluator.report(fault)
        return None
    value = evaluator.evaluate(node, environment)
    if value.kind == "poison":
        return None
    article = "an" if kind == "int" else "a"
    if (value.kind == "bool") != (kind == "bool") or (kind == "int" and value.kind != "int"):
        message = f"{what} must be {article} {kind}"
        found = {"bool": "this is a bool", "int": "this is an int", "float": "this is a float"}[value.kind]
        help = {"bool": "write `true` or `false`", "int": "write a whole number"}.get(kind, "write a number")
        if kind == "int" and value.kind == "float":
            help = "write `//` for integer division, which rounds down; `/` returns a float"
        evaluator.report(Diagnostic("attr", message, (Label(node.span, found),), (help,)))
        return None
    if value.constant is None:
        message = f"{what} is unknown at compile time"
        help_line = "use attrs with a default; a float attr without one gets its value at the call"
        evaluator.report(Diagnostic("attr", message, (Label(node.span),), (help_line,)))
        return None
    return value


def _low(
    node: ast.Attr, kind: str | None, names: Names, environment: Environment, evaluator: Evaluator
) -> Fraction | None:
    if node.bound is None or kind is None:
        return None
    if kind == "bool":
        message = f"`{node.name.text}` is a bool, and a bool has no range"
        evaluator.report(Diagnostic("attr", message, (Label(node.bound.span),), ("remove the range",)))
        return None
    what = f"the range of `{node.name.text}`"
    low = _constant(node.bound.low, what, "float", names, environment, evaluator)
    return None if low is None else low.constant


def _default(
    node: ast.Attr,
    kind: str | None,
    default: ast.Expression,
    names: Names,
    environment: Environment,
    evaluator: Evaluator,
) -> Fraction | bool | None:
    if kind is None:
        check_names(default, names)  # its names count as used
        return None
    value = _constant(default, f"the default of `{node.name.text}`", kind, names, environment, evaluator)
    if value is None or value.constant is None:
        return None
    return bool(value.constant) if kind == "bool" else value.constant


def _given(node: ast.Attr, kind: str | None, given: Any, evaluator: Evaluator) -> Fraction | bool | None:
    """The exact value that the caller passes: that of a float is the decimal that it prints as."""
    if kind is None:
        return None
    if hasattr(given, "item") and getattr(given, "shape", None) == ():
        given = given.item()  # a NumPy scalar

    try:
        return _exact(kind, given)
    except ValueError as refusal:
        help = f"pass for example `{node.name.text}={_EXAMPLES[kind]}`"
        evaluator.report(Diagnostic("attr", f"`{node.name.text}` {refusal}", (Label(node.span),), (help,)))
        return None


_EXAMPLES = {"bool": "True", "int": "4", "float": "1e-6"}


def _exact(kind: str, given: Any) -> Fraction | bool:
    """The exact value; raises ValueError with the reason if it has the wrong type."""
    if kind == "bool":
        if isinstance(given, bool):
            return given
        raise ValueError(f"must be a bool, not {_described(given)}")
    if kind == "int":
        if isinstance(given, bool) or not isinstance(given, numbers.Integral):
            raise ValueError(f"must be an int, not {_described(given)}")
        if abs(int(given)) > _LARGEST_INTEGER:
            raise ValueError("does not fit 64 bits")
        return Fraction(int(given))
    if not isinstance(given, numbers.Real):  # a bool is 0 or 1
        raise ValueError(f"must be a float, not {_described(given)}")
    if isinstance(given, numbers.Rational):
        exact = Fraction(given)
    elif math.isfinite(float(given)):
        exact = Fraction(repr(float(given)))
    else:
        raise ValueError(f"must be finite, not {float(given)}")
    if reason := number_fault(exact):
        raise ValueError(f"is {reason}")
    return exact


def _described(given: object) -> str:
    text = repr(given)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(given).__name__})"


def _shown(value: Fraction | bool) -> str:
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


def unknown_attrs(
    given: Mapping[str, object], known: Mapping[str, Span], norm: ast.Identifier
) -> list[Diagnostic]:
    """Faults for values of attrs that the spec does not have."""
    faults = []
    for name in given:
        if name not in known:
            has = f"its attrs are {', '.join(f'`{k}`' for k in known)}" if known else "it has no attrs"
            help = suggestion(str(name), known) or (has,)
            message = f"`{norm.text}` has no attr `{name}`"
            faults.append(Diagnostic("attr", message, (Label(norm.span),), help))
    return faults
