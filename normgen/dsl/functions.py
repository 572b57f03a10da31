"""The functions that a spec may call, and how it writes those of other languages."""

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

    `axes`: whether it takes axes in brackets. None if it may: max[D](v) reduces, max(a, b) does not.
    """

    axes: bool | None
    parameters: int


_OTHERS: dict[str, Signature] = {
    **{name: Signature(False, 1) for name in (*ROOTS, *ROUNDING_FUNCTIONS)},
    "sum": Signature(True, 1),
    CAST: Signature(False, 2),
}


def built_in(name: str) -> Signature | None:
    """How a built-in function is called; None if there is none of this name."""
    primitive = PRIMITIVES.get(name)
    if primitive and primitive.called:
        return Signature(None if name in REDUCTIONS else False, primitive.arity)
    return _OTHERS.get(name)


def built_in_names() -> list[str]:
    """The names of the built-in functions."""
    return [name for name in (*PRIMITIVES, *_OTHERS) if built_in(name)]


# Values and functions of other languages, and how the same is written here.
PRODUCT = "multiply with `*`, and sum the products with `sum[D](a * b)`"
_POWERS = "write powers with `^`, as in `x^2`"
_INDEX = "nothing sorts or returns indices; `max[D](v)` and `min[D](v)` are the extremes"
_CHOICE = "a choice is written `a if condition else b`"
_STD = "write `sqrt(var[D](v))`; `var` divides by the number of elements, not by one less"
_JOIN = "tensors cannot be joined or reshaped; declare one output for each part"
VALUES_ELSEWHERE: dict[str, str] = {
    "ones": "a default is a number: `param w[D] = 1`",
    "zeros": "a default is a number: `param w[D] = 0`",
    "inf": "constants are finite; the largest is `3.4028234e38`",
    "pi": "write the number, `3.14159265`",
}
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("where", "select"), _CHOICE),
    **dict.fromkeys(("std", "stddev"), _STD),
    **dict.fromkeys(("argmax", "argmin", "argsort", "topk", "sort", "median", "quantile"), _INDEX),
    **dict.fromkeys(("pow", "power", "square"), _POWERS),
    **dict.fromkeys(("concat", "cat", "stack", "split", "chunk", "reshape"), _JOIN),
    **dict.fromkeys(("einsum", "matmul", "dot"), PRODUCT),
    **dict.fromkeys(("sin", "cos", "tan", "atan", "atanh", "sinh", "cosh"), ""),  # nothing like them
    "variance": "write `var[D](v)`, which divides by the number of elements, not by one less",
    "average": "write `mean[D](v)`",
    "norm": "write `sqrt(sum[D](v^2))`",
    "prod": "there is no product over axes; for positive values, write `exp(sum[D](log(v)))`",
    "log2": "write `log(v) / log(2)`",
    "log10": "write `log(v) / log(10)`",
    "expm1": "write `exp(v) - 1`",
    "erfc": "write `1 - erf(v)`",
    "relu6": "write `clamp(v, 0, 6)`",
    "swish": "write `silu(v)`",
    "elu": "write `v if v > 0 else exp(v) - 1`",
    "amax": "write `max[D](v)`",
    "amin": "write `min[D](v)`",
    "maximum": "write `max(a, b)`",
    "minimum": "write `min(a, b)`",
    "clip": "write `clamp(v, low, high)`",
    "cumsum": "there is no cumulative sum; a window sums neighbors, as in `sum[C: -1..1](v)`",
    "sign": "write `1 if v > 0 else (-1 if v < 0 else 0)`",
    "reciprocal": "write `1 / v`",
    "detach": "write `stop(v)`",
    "len": "the length of an axis is `size[D]`",
}


def apply(name: str, *arguments: ir.Expr) -> ir.Expr:
    """Applies an elementwise primitive."""
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
