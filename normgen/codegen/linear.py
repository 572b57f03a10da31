"""Sums, and largest magnitudes, of values up to factors that are the same for many.

The gradient of a gain is a sum of dy * (x - mean) * rstd, where the mean may have a correction that is known
only when the row has been summed; the row itself needs the sums of w * dy and w * dy * (x - mean). So that of
each element only dy and dy * (x - mean) are added up, a value is taken apart into products c * v: c is the
same for all that is added up, v needs none of the row's sums.

    rstd * dy * (x - mean + row)  =  rstd * [dy * (x - mean)] + rstd * row * [dy]
    max |rstd * x * w|            =  |rstd| * max |x * w|
"""

from __future__ import annotations

from normgen.codegen.share import evaluated
from normgen.ir.expr import ONE, Add, Call, Expr, Load, Mul, Reduce, add, call, mul, power, walk
from normgen.ir.nodes import Axes

Terms = tuple[tuple[Expr, Expr], ...]


def terms_of(value: Expr, within: Axes, sums: frozenset[Reduce]) -> Terms:
    """Pairs (c, v) whose products add up to the value: c has none of the axes `within`, v all that the sums
    over them need, and none of `sums`. Empty where it cannot be taken apart.
    """
    found: dict[Expr, Expr] = {}
    for c, v in _terms(value, within, sums) or ():
        found[v] = add(found[v], c) if v in found else c
    return () if ONE in found else tuple((c, v) for v, c in found.items())


def largest_of(value: Expr, within: Axes, sums: frozenset[Reduce]) -> Terms:
    """The pair (|c|, |v|) of a magnitude |c * v|, as `terms_of` takes sums apart: that of the largest v is
    the largest but for rounding, and NaN where any v is. Empty where it cannot be taken apart, or where c has
    operands: an infinite one makes NaN of a v that is 0, which the largest does not show.
    """
    match value:
        case Call(op="abs", args=(Mul() as product,)):
            same, rest = split(product, within)
            late = any(node in sums for node in walk(rest)) or rest is ONE
            own = any(isinstance(node, Load) for node in evaluated(same))
            return () if late or own else ((call("abs", same), call("abs", rest)),)
        case _:
            return ()


def split(value: Expr, within: Axes) -> tuple[Expr, Expr]:
    """The factors of a product without any axis `within`, and the others."""
    if not value.axes & within:
        return value, ONE
    if not isinstance(value, Mul):
        return ONE, value
    same = [power(b, e) for b, e in value.factors if not b.axes & within]
    rest = [power(b, e) for b, e in value.factors if b.axes & within]
    return mul(value.coefficient, *same), mul(*rest)


def _terms(value: Expr, within: Axes, sums: frozenset[Reduce]) -> list[tuple[Expr, Expr]] | None:
    def waits(node: Expr) -> bool:
        return bool(node.axes & within) and any(n in sums for n in walk(node))

    if not waits(value):
        return [split(value, within)]
    match value:
        # (the difference of an operand as it was loaded may be exact: what it is of two products is not)
        case Add(terms=pairs) if not any(isinstance(t, Load) and t.axes & within for t, _ in pairs):
            parts = [(_terms(t, within, sums), c) for t, c in pairs]
            if any(part is None for part, _ in parts):
                return None
            return [(mul(k, c), v) for part, k in parts for c, v in part or ()]
        case Mul(coefficient=k, factors=pairs):
            waiting = [(b, e) for b, e in pairs if waits(b)]
            if not waiting:
                return [split(value, within)]
            if len(waiting) > 1 or waiting[0][1] != 1:
                return None
            ((base, _),) = waiting
            inner = _terms(base, within, sums)
            same, rest = split(mul(k, *(power(b, e) for b, e in pairs if b is not base)), within)
            return None if inner is None else [(mul(same, c), mul(rest, v)) for c, v in inner]
        case _:
            return None
