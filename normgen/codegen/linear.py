"""Sums, and largest magnitudes, of values up to factors that are the same for many.

The gradient of a gain is a sum of dy * (x - mean) * rstd, where the mean may have a correction that is known
only when the row has been summed; the row itself needs the sums of w * dy and w * dy * (x - mean). So that of
each element only dy and dy * (x - mean) are added up, a value is taken apart into products c * v: c is the
same for all that is added up, v needs none of the row's sums.

    rstd * dy * (x - mean + row)  =  rstd * [dy * (x - mean)] + rstd * row * [dy]
    max |rstd * x * w|            =  |rstd| * max |x * w|
"""

from __future__ import annotations

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
    the largest but for rounding, and NaN where any v is. Empty where it cannot be taken apart.
    """
    match value:
        case Call(op="abs", args=(Mul() as product,)):
            same, rest = split(product, within)
            late = any(node in sums for node in walk(rest)) or rest is ONE
            return () if late else ((call("abs", same), call("abs", rest)),)
        case _:
            return ()


def common_of(values: list[tuple[str, Expr]], partial: frozenset[str]) -> dict[Expr, Expr]:
    """Of values that are summed, or whose largest is found, the factor that is made of operands of which a
    vector has one element, where it has one; empty where some value has such an operand elsewhere.
    """
    found = {v: _common(v, partial, op) for op, v in values}
    if any(c is None for c in found.values()):
        return {}
    return {v: c for v, c in found.items() if c is not None and c is not ONE}


def _common(value: Expr, partial: frozenset[str], op: str) -> Expr | None:
    match value:
        case Call(op="abs", args=(Mul() as product,)) if op in ("sum", "max"):
            found = _common(product, partial, "sum")
            return found if found is None or found is ONE else call("abs", found)
        case Mul(factors=pairs) if op == "sum":
            same = [power(b, e) for b, e in pairs if isinstance(b, Load) and b.tensor in partial]
            rest = [b for b, _ in pairs if not (isinstance(b, Load) and b.tensor in partial)]
        case _:
            same, rest = [], [value]
    elsewhere = any(isinstance(n, Load) and n.tensor in partial for n in walk(*rest))
    return None if elsewhere else mul(*same)


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
