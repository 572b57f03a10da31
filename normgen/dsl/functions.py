"""The functions a spec may call: those of the language, the prelude and the spec's own as syntax trees."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files

from normgen.diagnostics import Source
from normgen.dsl import ast
from normgen.dtypes import ROUNDING_FUNCTIONS
from normgen.ir import expr as ir
from normgen.ir.primitives import FOLDS, PRIMITIVES

ROOTS: dict[str, Fraction] = {"sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2)}
REDUCTIONS = tuple(FOLDS)
CAST = "cast"  # cast(v, x): v rounded to the dtype of tensor x


@dataclass(frozen=True, slots=True)
class Signature:
    """How a function is called.

    `axes`: whether brackets are refused (False), needed (True), or decide (None): max[D](v) reduces, but
    max(a, b) does not.
    """

    axes: bool | None
    parameters: int


_OTHERS: dict[str, Signature] = {
    **{name: Signature(False, 1) for name in (*ROOTS, *ROUNDING_FUNCTIONS)},
    "sum": Signature(True, 1),
    CAST: Signature(False, 2),
}


def built_in(name: str) -> Signature | None:
    """How a function of the language is called; None if it has none of that name."""
    primitive = PRIMITIVES.get(name)
    if primitive and primitive.called:
        return Signature(None if name in REDUCTIONS else False, primitive.arity)
    return _OTHERS.get(name)


def built_in_names() -> list[str]:
    """The functions of the language."""
    return [name for name in (*PRIMITIVES, *_OTHERS) if built_in(name)]


# Functions that other languages have, and how the same is written here.
_POWERS = "write powers with `^`, as in `x^2`"
_INDEX = "a reduction gives values, not where they are; `max[D](v)` and `min[D](v)` are the extremes"
VALUES_ELSEWHERE: dict[str, str] = {
    "ones": "a default is a number: `param w[D] = 1`",
    "zeros": "a default is a number: `param w[D] = 0`",
    "None": "an operand that may be left out has the number that stands in for it: `param w[D] = 1`",
    "inf": "numbers are finite; the largest float32 is `3.4028235e38`",
    "pi": "write the number, `3.14159265`",
}
ELSEWHERE: dict[str, str] = {
    "where": "a choice is written `a if condition else b`",
    "select": "a choice is written `a if condition else b`",
    "std": "write `sqrt(var[D](v))`; `var` divides by the number of elements, not one less",
    "stddev": "write `sqrt(var[D](v))`; `var` divides by the number of elements, not one less",
    "variance": "write `var[D](v)`, which divides by the number of elements, not one less",
    "average": "write `mean[D](v)`",
    "norm": "write `sqrt(sum[D](v^2))`",
    "argmax": _INDEX,
    "argmin": _INDEX,
    "argsort": _INDEX,
    "topk": _INDEX,
    "pow": _POWERS,
    "power": _POWERS,
    "square": _POWERS,
    "prod": "there is no product over axes; of positive values it is `exp(sum[D](log(v)))`",
    "amax": "write `max[D](v)`",
    "amin": "write `min[D](v)`",
    "maximum": "write `max(a, b)`",
    "minimum": "write `min(a, b)`",
    "clip": "write `clamp(v, low, high)`",
    "cumsum": "there are no running sums; a window sums neighbours, as in `sum[C: -1..1](v)`",
    "sign": "write `1 if v > 0 else (-1 if v < 0 else 0)`",
    "reciprocal": "write `1 / v`",
    "detach": "write `stop(v)`",
    "len": "the length of an axis is `size[D]`",
}


def apply(name: str, *arguments: ir.Expr) -> ir.Expr:
    """An elementwise primitive applied."""
    if name in ROOTS:
        return ir.power(arguments[0], ROOTS[name])
    if name in ROUNDING_FUNCTIONS:
        return ir.round_to(arguments[0], name)
    return ir.call(name, *arguments)


def signature(function: ast.Function) -> Signature:
    """How a function written in the language is called."""
    return Signature(function.axis is not None, len(function.parameters))


@cache
def prelude() -> dict[str, ast.Function]:
    """The functions of prelude.norm by name, checked."""
    from normgen.dsl.names import Scope, check_function
    from normgen.dsl.syntax import parse_prelude

    text = files("normgen.dsl").joinpath("prelude.norm").read_text(encoding="utf-8")
    scope = Scope(functions={})
    for function in parse_prelude(Source("prelude.norm", text)):
        faults = check_function(function, scope)
        assert not faults, faults
        scope.functions[function.name.text] = function
    return scope.functions
