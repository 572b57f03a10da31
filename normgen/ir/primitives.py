"""The primitives of expressions: one table, a row for each, which everything else reads.

A row says what a primitive means, how it is differentiated, how a spec and a kernel write it, and what is
known of its values and errors. To add one is to add its row.

Rows come before nodes, so that nodes can look at them; a derivative rule is given the constructors that it
makes nodes with (`Builder`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from normgen.ir.nodes import Expr

Array = Any
Number = int | Fraction


Constructor = Callable[..., "Expr"]


@dataclass(frozen=True, slots=True)
class Builder:
    """What a derivative rule makes nodes with; numbers may stand for nodes."""

    times: Constructor  # times(cotangent, *derivatives)
    add: Constructor
    call: Constructor  # call(name of a primitive, *arguments)
    compare: Constructor  # compare("<", left, right)
    mul: Constructor
    neg: Constructor
    power: Constructor
    select: Constructor  # select(condition, then, otherwise)
    sub: Constructor


# From a builder, the cotangent, the node itself and its arguments to the cotangent of each argument, or None
# where nothing flows. What is not smooth selects the cotangent; it never multiplies it by 0 or 1, for 0 * inf
# is not 0.
Pull = Callable[..., tuple["Expr | None", ...]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A function of values that expressions are made of.

    `increasing` and `steepest` bound what errors of its arguments do to it. The few that have neither are
    those of the language itself, whose rules stand with the analysis of errors.
    """

    name: str
    arity: int  # number of arguments
    meaning: Callable[..., Array]  # the NumPy function, in whatever precision its arguments have
    pull: Pull  # its derivative rule
    _: KW_ONLY
    cuda: str = ""  # the function that a kernel calls; "" where the printer has its own way to write it
    sign: str = ""  # of a condition: what stands between its sides in a spec, and in a kernel if it compares
    called: bool = True  # a spec calls it by its name; others have an operator, or only passes make them
    condition: bool = False  # its value is 1 or 0, for an `if` to choose by
    exact: Callable[..., Number | None] = lambda *numbers: None  # the result for numbers, where rational
    integral: bool = False  # whole numbers give a whole number
    refuses: Callable[[Fraction], str] = lambda number: ""  # what is wrong with a number as its argument
    nonnegative: Callable[[Iterator[bool]], bool] = lambda signs: False  # given which arguments are
    increasing: bool = False  # never decreases in any argument
    steepest: float | None = None  # the most that it changes by, of what its argument changes by
    roundings: float = 0.0  # of one call, in units of 2^-24 of the result: twice the ulps that CUDA documents
    costly: bool = False  # takes many instructions: worth a register to keep


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), np.where(np.isnan(x), x, small / (1 + small)))


def elementwise(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's floats as one of arrays, computed in double precision."""
    each = np.vectorize(function, otypes=[np.float64])
    return lambda x: each(x).astype(x.dtype) if x.size else x


def _boolean(function: Callable[..., Array]) -> Callable[..., Array]:
    """Conditions are 1 and 0 in the type of their operands."""
    return lambda *args: function(*args).astype(np.asarray(args[0]).dtype)


def _pull_abs(ir: Builder, g: Expr, out: Expr, x: Expr) -> tuple[Expr]:
    zero_or_more = ir.select(ir.compare("==", x, 0), 0, g)
    return (ir.select(ir.compare("<", x, 0), ir.times(g, -1), zero_or_more),)


def _pull_larger(sign: str) -> Pull:
    """Of the argument that the comparison picks. A tie goes to the second argument, and so does NaN."""

    def pull(ir: Builder, g: Expr, out: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        first = ir.compare(sign, a, b)
        return ir.select(first, g, 0), ir.select(first, 0, g)

    return pull


def _pull_pow(ir: Builder, g: Expr, out: Expr, base: Expr, exponent: Expr) -> tuple[Expr, Expr]:
    # (0 * b^0 where the exponent is 0: at b = 0 too, where b^-1 is infinite)
    less = ir.select(ir.compare("==", exponent, 0), 0, ir.sub(exponent, 1))
    down = ir.times(g, exponent, ir.power(base, less))
    # The limit of b^e * log(b) at b = 0 is 0 unless e < 0, where log alone is -inf.
    zero = ir.call("and", ir.compare("==", base, 0), ir.compare(">=", exponent, 0))
    up = ir.select(zero, 0, ir.times(g, out, ir.call("log", base)))
    return down, up


def _nothing(ir: Builder, g: Expr, out: Expr, *args: Expr) -> tuple[None, ...]:
    return (None,) * len(args)


def _always(signs: Iterator[bool]) -> bool:
    return True


_ERF_SLOPE = Fraction("1.1283791670955126")  # 2 / sqrt(pi), exact to the last bit of a double
_NOT_ABOVE_ZERO = "the logarithm of a number that is not above 0"


_condition = partial(Primitive, pull=_nothing, called=False, condition=True)

_ROWS = (
    Primitive(
        "exp", 1, np.exp, lambda ir, g, out, x: (ir.times(g, out),),
        cuda="expf", roundings=4.0, increasing=True, costly=True, exact={0: 1}.get, nonnegative=_always,
    ),
    Primitive(
        "log", 1, np.log, lambda ir, g, out, x: (ir.times(g, ir.power(x, -1)),),
        cuda="logf", roundings=2.0, increasing=True, costly=True, exact={1: 0}.get,
        refuses=lambda number: "" if number > 0 else _NOT_ABOVE_ZERO,
    ),
    Primitive(
        "log1p", 1, np.log1p, lambda ir, g, out, x: (ir.times(g, ir.power(ir.add(1, x), -1)),),
        cuda="log1pf", roundings=2.0, increasing=True, costly=True, exact={0: 0}.get, nonnegative=all,
        refuses=lambda number: "" if number > -1 else _NOT_ABOVE_ZERO,
    ),
    Primitive(
        "tanh", 1, np.tanh, lambda ir, g, out, x: (ir.times(g, ir.sub(1, ir.power(out, 2))),),
        cuda="tanhf", roundings=4.0, increasing=True, costly=True, exact={0: 0}.get,
    ),
    Primitive(
        "erf", 1, elementwise(math.erf),
        lambda ir, g, out, x: (ir.times(g, _ERF_SLOPE, ir.call("exp", ir.neg(ir.power(x, 2)))),),
        cuda="erff", roundings=4.0, increasing=True, costly=True, exact={0: 0}.get,
    ),
    # An expf, an addition, and a reciprocal by its unit, which has one rounding.
    Primitive(
        "sigmoid", 1, _sigmoid, lambda ir, g, out, x: (ir.times(g, out, ir.sub(1, out)),),
        cuda="sigmoid", roundings=7.0, increasing=True, costly=True, exact={0: Fraction(1, 2)}.get,
        nonnegative=_always,
    ),
    Primitive(
        "abs", 1, np.abs, _pull_abs,
        cuda="fabsf", steepest=1.0, exact=abs, integral=True, nonnegative=_always,
    ),
    # The value, through which no derivative flows.
    Primitive("stop", 1, lambda x: x, _nothing, nonnegative=all),
    # Both propagate NaN.
    Primitive(
        "max", 2, np.maximum, _pull_larger(">"),
        cuda="maximum", increasing=True, exact=max, integral=True, nonnegative=any,
    ),
    Primitive(
        "min", 2, np.minimum, _pull_larger("<"),
        cuda="minimum", increasing=True, exact=min, integral=True, nonnegative=all,
    ),
    # A power whose exponent is known at run time only.
    Primitive(
        "pow", 2, np.power, _pull_pow,
        cuda="power", called=False, roundings=16.0, costly=True, nonnegative=next,
    ),
    # A difference that no rule may take apart.
    Primitive("minus", 2, np.subtract, lambda ir, g, out, a, b: (g, ir.times(g, -1)), called=False),
    _condition("lt", 2, _boolean(np.less), sign="<", exact=operator.lt),
    _condition("le", 2, _boolean(np.less_equal), sign="<=", exact=operator.le),
    _condition("eq", 2, _boolean(np.equal), sign="==", exact=operator.eq),
    _condition("ne", 2, _boolean(np.not_equal), sign="!=", exact=operator.ne),
    _condition("and", 2, _boolean(np.logical_and), sign="and", nonnegative=all),
    _condition("or", 2, _boolean(np.logical_or), sign="or", nonnegative=all),
    # Never the opposite comparison: NaN makes both false.
    _condition("not", 1, _boolean(np.logical_not), exact=operator.not_),
)  # fmt: skip
PRIMITIVES: dict[str, Primitive] = {row.name: row for row in _ROWS}

# What reductions do to an array; `sum` alone is no primitive too.
FOLDS: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min}
