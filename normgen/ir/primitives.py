"""What each primitive means and how it is differentiated: the two stand side by side.

`meaning` is the NumPy function, in whatever precision its arguments have. `pull` takes `times(cotangent,
factor, ...)` (see `grad`), the cotangent, the node itself and its arguments, and gives the cotangent of
each argument, or None where nothing flows. What is not smooth selects the cotangent; it never multiplies it
by 0 or 1, for 0 * inf is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from normgen.ir.expr import ONE, ZERO, call, compare, const, neg, power, select, sub
from normgen.ir.nodes import ARITY, Expr

Array = Any


class Times(Protocol):
    """Scales a cotangent by derivatives."""

    def __call__(self, cotangent: Expr, *derivatives: Expr) -> Expr: ...


Pull = Callable[..., tuple[Expr | None, ...]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """The meaning of a primitive and its derivative rule."""

    meaning: Callable[..., Array]
    pull: Pull


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), np.where(np.isnan(x), x, small / (1 + small)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def erf(x: Array) -> Array:
    """The error function, computed in double precision."""
    return _erf(x).astype(x.dtype) if x.size else x


def _boolean(function: Callable[..., Array]) -> Callable[..., Array]:
    """Conditions are 1 and 0 in the type of their operands."""
    return lambda *args: function(*args).astype(np.asarray(args[0]).dtype)


def _pull_abs(times: Times, g: Expr, out: Expr, x: Expr) -> tuple[Expr]:
    return (select(compare("<", x, ZERO), times(g, const(-1)), select(compare("==", x, ZERO), ZERO, g)),)


def _pull_pow(times: Times, g: Expr, out: Expr, base: Expr, exponent: Expr) -> tuple[Expr, Expr]:
    down = times(g, exponent, power(base, sub(exponent, ONE)))
    # The limit of b^e * log(b) at b = 0 is 0, where log alone is -inf.
    return down, select(compare("==", base, ZERO), ZERO, times(g, out, call("log", base)))


def _nothing(times: Times, g: Expr, out: Expr, *args: Expr) -> tuple[None, ...]:
    return (None,) * len(args)


# 2 / sqrt(pi), exact to the last bit of a double.
_ERF_SLOPE = const(Fraction("1.1283791670955126"))

PRIMITIVES: dict[str, Primitive] = {
    "exp": Primitive(np.exp, lambda times, g, out, x: (times(g, out),)),
    "log": Primitive(np.log, lambda times, g, out, x: (times(g, power(x, -1)),)),
    "tanh": Primitive(np.tanh, lambda times, g, out, x: (times(g, sub(ONE, power(out, 2))),)),
    "erf": Primitive(erf, lambda times, g, out, x: (times(g, _ERF_SLOPE, call("exp", neg(power(x, 2)))),)),
    "sigmoid": Primitive(sigmoid, lambda times, g, out, x: (times(g, out, sub(ONE, out)),)),
    "abs": Primitive(np.abs, _pull_abs),
    "stop": Primitive(lambda x: x, _nothing),
    # A tie goes to the second argument, and so does NaN.
    "max": Primitive(
        np.maximum,
        lambda times, g, out, a, b: (
            select(compare(">", a, b), g, ZERO),
            select(compare(">", a, b), ZERO, g),
        ),
    ),
    "min": Primitive(
        np.minimum,
        lambda times, g, out, a, b: (
            select(compare("<", a, b), g, ZERO),
            select(compare("<", a, b), ZERO, g),
        ),
    ),
    "pow": Primitive(np.power, _pull_pow),
    "minus": Primitive(np.subtract, lambda times, g, out, a, b: (g, times(g, const(-1)))),
    "lt": Primitive(_boolean(np.less), _nothing),
    "le": Primitive(_boolean(np.less_equal), _nothing),
    "eq": Primitive(_boolean(np.equal), _nothing),
    "ne": Primitive(_boolean(np.not_equal), _nothing),
    "and": Primitive(_boolean(np.logical_and), _nothing),
    "or": Primitive(_boolean(np.logical_or), _nothing),
    "not": Primitive(_boolean(np.logical_not), _nothing),
}
assert PRIMITIVES.keys() == ARITY.keys()


def pull_extreme(times: Times, g: Expr, out: Expr, value: Expr, count: Expr) -> Expr:
    """The cotangent of the argument of max[A] or min[A]: equal shares to the elements that attain it."""
    return select(compare("==", value, out), times(g, power(count, -1)), ZERO)


def attains(out: Expr, value: Expr) -> Expr:
    """1 where an element attains the extreme."""
    return select(compare("==", value, out), ONE, ZERO)
