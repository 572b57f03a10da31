"""Differences from a mean, made accurate for data whose mean is large beside its deviation.

A mean that is computed (or was stored) in f32 misses the true mean by some units in its last place, and
v - m misses by as much. Wherever v - mean[A](v) occurs, whatever the names, it becomes c - delta with

    c = minus(v, m)          one subtraction that nothing takes apart
    delta = mean[A](c)       what m misses

Sums over A that are affine or quadratic in c - delta are expanded, so that the sum in delta is
exchanged with them and not before them:  S[f (c - d)] = S[f c] - d S[f],  S[(c - d)^2] = S[c^2] -
S[c]^2 / N. So are sums of which a condition masks values by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from normgen.ir.expr import (
    ZERO,
    add,
    as_term,
    call,
    div,
    extent,
    factors,
    load,
    minus,
    mul,
    power,
    reduce,
    select,
    walk,
)
from normgen.ir.facts import is_nonnegative
from normgen.ir.nodes import Add, Axes, Expr, Reduce, Select
from normgen.ir.program import Program, made_of_cotangents
from normgen.ir.recover import transform


@dataclass(frozen=True, slots=True)
class Mean:
    """coefficient * mean[over](arg)."""

    coefficient: Fraction
    arg: Expr
    over: Axes

    def of(self, image: Mapping[Expr, Expr]) -> Expr:
        """What it is the mean of, with nodes replaced by their images."""
        return mul(self.coefficient, image[self.arg])


def as_mean(node: Expr) -> Mean | None:
    """The node as a mean over axes of something, if it is one."""
    coefficient, pairs = factors(node)
    sums = [b for b, e in pairs if isinstance(b, Reduce) and b.op == "sum" and not b.window and e == 1]
    if len(sums) != 1:
        return None
    (total,) = sums
    rest = {(b, e) for b, e in pairs if b is not total}
    if rest != {(extent(axis), Fraction(-1)) for axis in total.over}:
        return None
    return Mean(coefficient, total.arg, total.over)


def centre(program: Program) -> Program:
    """The program with its differences from a mean corrected."""
    saved: dict[Expr, Mean] = {
        load(name, v.axes - over): Mean(Fraction(1), v, over) for name, v, over in program.saved_means
    }
    values = [b.expr for b in program.bindings]
    values += [r.expr for r in program.results] + [u.expr for u in program.updates]
    values += [v for _, v, _ in program.saved_means]
    derived = made_of_cotangents(program.operands, *values)
    misses: set[Expr] = set()

    def visit(node: Expr, new: tuple[Expr, ...]) -> Expr | None:
        if isinstance(node, Add):
            return _centred(node, new)
        if isinstance(node, Reduce) and node.op == "sum" and not node.window and misses:
            return _sum(node.over, new[0], misses)
        return None

    def _centred(node: Add, new: tuple[Expr, ...]) -> Expr | None:
        places = {term: index for index, (term, _) in enumerate(node.terms)}
        for index, (term, c) in enumerate(node.terms):
            mean = saved.get(term) or as_mean(term)
            if mean is None or mean.arg in derived:
                continue  # a gradient minus its mean is as accurate as the gradient
            value, sign = as_term(mean.arg)
            other = places.get(value)
            if other is None or node.terms[other][1] != -c * sign:
                continue
            difference = minus(mul(sign, new[other]), new[index])
            missed = div(reduce("sum", mean.over, difference), mul(*map(extent, sorted(mean.over))))
            misses.add(missed)
            rest = [mul(k, new[i]) for i, (_, k) in enumerate(node.terms) if i not in (index, other)]
            return add(*rest, mul(-c, difference), mul(c, missed))
        return None

    done = transform(values, visit, real=False)
    return replace(
        program,
        bindings=tuple(replace(b, expr=done[b.expr]) for b in program.bindings),
        results=tuple(replace(r, expr=done[r.expr]) for r in program.results),
        updates=tuple(replace(u, expr=done[u.expr]) for u in program.updates),
    )


def _sum(over: Axes, body: Expr, misses: set[Expr], masked: Callable[[Expr], Expr] = lambda v: v) -> Expr:
    """sum[over](masked(body)), with what a mean misses moved out of it."""
    if isinstance(body, Select) and ZERO in (body.then, body.otherwise):
        condition, turned = body.condition, body.then is ZERO
        if misses.isdisjoint(walk(condition)):

            def behind(value: Expr) -> Expr:
                return masked(select(condition, *((ZERO, value) if turned else (value, ZERO))))

            return _sum(over, body.otherwise if turned else body.then, misses, behind)
    coefficient, pairs = factors(body)
    for index, (base, e) in enumerate(pairs):
        if not isinstance(base, Add) or e not in (1, 2):
            continue
        missed = [(t, c) for t, c in base.terms if t in misses and not t.axes & over]
        if not missed:
            continue
        rest = mul(coefficient, *(power(b, p) for i, (b, p) in enumerate(pairs) if i != index))
        kept = add(*(mul(c, t) for t, c in base.terms if t not in dict(missed)))
        shift = add(*(mul(c, t) for t, c in missed))
        # (kept + shift)^e by powers of the shift, which no longer stands under the sum.
        parts = [_sum(over, mul(rest, power(kept, e)), misses, masked)]
        if e == 2:
            parts.append(mul(2, shift, _sum(over, mul(rest, kept), misses, masked)))
        parts.append(mul(power(shift, e), _sum(over, rest, misses, masked)))
        total = add(*parts, real=True)
        # Rounding may take a vanishing sum of squares below zero, and a root of it to NaN.
        return call("max", total, 0) if is_nonnegative(body) else total
    return reduce("sum", over, masked(body))
