"""Sums, and largest magnitudes, of values up to factors that are the same for many.

The gradient of a gain is a sum of dy * (x - mean) * rstd, where the mean may have a correction that is known
only when the row has been summed; the row itself needs the sums of w * dy and w * dy * (x - mean). So that of
each element only dy and dy * (x - mean) are added up, a value is taken apart into products c * v: c is the
same for all that is added up, v needs none of the row's sums.

    rstd * dy * (x - mean + row)  =  rstd * [dy * (x - mean)] + rstd * row * [dy]
    max |rstd * x * w|            =  |rstd| * max |x * w|
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from normgen.ir.expr import ONE, Add, Call, Expr, Load, Mul, Reduce, add, call, children, mul, power, walk
from normgen.ir.nodes import Axes
from normgen.kernel.regroup import may_regroup
from normgen.kernel.share import evaluated

Terms = tuple[tuple[Expr, Expr], ...]


def terms_of(value: Expr, within: Axes, sums: frozenset[Reduce], gradients: Collection[Expr]) -> Terms:
    """Pairs (c, v) whose products add up to the value: c has none of the axes `within`, v all that the sums
    over them need, and none of `sums`. Empty where it cannot be taken apart. `gradients`: the values whose
    sums may be regrouped.
    """

    def opens(total: Add) -> bool:
        # (the difference of an operand as it was loaded may be exact: what it is of two products is not)
        loaded = any(isinstance(t, Load) and t.axes & within for t, _ in total.terms)
        return not loaded and may_regroup(total, gradients)

    found = _merged(_terms(value, within, sums, opens))
    return () if any(v is ONE for _, v in found) else found


def factors_of(value: Expr, within: Axes, late: frozenset[Expr], gradients: Collection[Expr]) -> Terms:
    """Such pairs of a value that nothing sums, where `late` is what each v must do without, whatever it is;
    one of them may have a v of 1."""
    return _merged(_terms(value, within, late, lambda total: total is value or may_regroup(total, gradients)))


def _merged(pairs: Iterable[tuple[Expr, Expr]] | None) -> Terms:
    found: dict[Expr, Expr] = {}
    for c, v in pairs or ():
        found[v] = add(found[v], c) if v in found else c
    return tuple((c, v) for v, c in found.items())


def degree(value: Expr, atoms: frozenset[Expr]) -> int | None:
    """1 where the value of sums of atoms is the sum of the values of these, 0 where it has none, or None."""
    if value in atoms:
        return 1
    match value:
        case Add(terms=pairs):
            return _same(degree(t, atoms) for t, _ in pairs)
        case Call(op="minus", args=args):
            return _same(degree(a, atoms) for a in args)
        case Mul(factors=pairs):
            found = [(degree(b, atoms), e) for b, e in pairs]
            if any(d is None or (d and e != 1) for d, e in found):
                return None
            total = sum(d or 0 for d, _ in found)
            return total if total < 2 else None
        case _:
            return 0 if all(degree(c, atoms) == 0 for c in children(value)) else None


def _same(degrees: Iterable[int | None]) -> int | None:
    found = set(degrees)
    return found.pop() if len(found) == 1 else None


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


def _terms(
    value: Expr, within: Axes, sums: frozenset[Expr], opens: Callable[[Add], bool]
) -> list[tuple[Expr, Expr]] | None:
    def waits(node: Expr) -> bool:
        return bool(node.axes & within) and any(n in sums for n in walk(node))

    if not waits(value):
        return [split(value, within)]
    match value:
        case Add(terms=pairs) if opens(value):
            parts = [(_terms(t, within, sums, opens), c) for t, c in pairs]
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
            inner = _terms(base, within, sums, opens)
            same, rest = split(mul(k, *(power(b, e) for b, e in pairs if b is not base)), within)
            return None if inner is None else [(mul(same, c), mul(rest, v)) for c, v in inner]
        case _:
            return None
