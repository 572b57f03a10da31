"""Sums over several axes in terms of sums over some of them: the algebra of cutting reductions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from normgen.ir.expr import add, call, const, div, extent, factors, minus, mul, power, reduce, rewrite
from normgen.ir.nodes import Add, Axes, Call, Expr, Reduce, reductions
from normgen.ir.ties import computed_ties
from normgen.kernel.group import Misfit
from normgen.kernel.regroup import may_regroup


def is_partner(node: Reduce, chosen: set[Reduce]) -> bool:
    """Whether this is the sum of v - m or of its square, where the sum of v is among those chosen."""
    base, exponent = _single(node.arg)
    if node.op != "sum" or node.window or exponent not in (1, 2):
        return False
    if not (isinstance(base, Call) and base.op == "minus"):
        return False
    total = next((n for n in chosen if n.op == "sum" and n.arg is base.args[0] and n.over == node.over), None)
    return total is not None and set(reductions(base.args[1])) == {total}


def _single(arg: Expr) -> tuple[Expr, int]:
    """arg as base^exponent; exponent 0 where it is no such thing."""
    coefficient, pairs = factors(arg)
    if coefficient == 1 and len(pairs) == 1 and pairs[0][1] in (1, 2):
        return pairs[0][0], int(pairs[0][1])
    return arg, 0


def opened(node: Reduce, base: Axes, gradients: Collection[Expr]) -> tuple[tuple[Expr, Expr], ...] | None:
    """A sum over more than the base axes as a sum of outside_i * sum[base](inside_i), in which no inside
    holds a reduction: what does not vary over the base axes leaves. None where that cannot be had, or would
    regroup a sum that is not among the `gradients`."""
    if node.op != "sum":
        return None if reductions(node.arg) else ((const(1), node.arg),)
    coefficient, pairs = factors(node.arg)
    outside = mul(coefficient, *(power(b, e) for b, e in pairs if not b.axes & base))
    inside = [(b, e) for b, e in pairs if b.axes & base]
    open_sums = [b for b, e in inside if isinstance(b, Add) and e == 1 and reductions(b)]
    if not open_sums:
        body = mul(*(power(b, e) for b, e in inside))
        return None if reductions(body) else ((outside, body),)
    shift = open_sums[0]
    if not may_regroup(shift, gradients):
        return None
    rest = mul(*(power(b, e) for b, e in inside if b is not shift))
    parts = _distributed(outside, shift, rest, base)
    return None if any(reductions(inside) for _, inside in parts) else parts


def _distributed(outside: Expr, total: Add, rest: Expr, base: Axes) -> tuple[tuple[Expr, Expr], ...]:
    """outside * total * rest, in which the terms that do not vary over the base axes leave."""
    leaving = [(t, c) for t, c in total.terms if not t.axes & base]
    staying = add(*(mul(c, t) for t, c in total.terms if t.axes & base))
    return ((outside, mul(staying, rest)), *((mul(outside, c, t), rest) for t, c in leaving))


def outer(
    node: Reduce,
    base: Axes,
    kept: Callable[[Expr], Expr],
    table: Mapping[Expr, Expr],
    gradients: Collection[Expr],
) -> Expr:
    """A sum over more than the base axes, by sums over the base axes."""
    if node.over == base and not reductions(node.arg):
        return kept(node)
    parts = opened(node, base, gradients)
    assert parts is not None
    terms = [mul(rewrite(outside, table), kept(reduce(node.op, base, inside))) for outside, inside in parts]
    return reduce(node.op, node.over - base, add(*terms))


def chan(node: Reduce, base: Axes, kept: Callable[[Expr], Expr], table: Mapping[Expr, Expr]) -> Expr:
    """The sum of v - m, or of its square, from means and squares over the base axes."""
    number = mul(*map(extent, sorted(base)))
    return reduce("sum", node.over - base, chan_share(node, base, (number, number), kept, table))


def chan_share(
    node: Reduce,
    base: Axes,
    numbers: tuple[Expr, Expr],
    kept: Callable[[Expr], Expr],
    table: Mapping[Expr, Expr],
) -> Expr:
    """What the elements along the base axes add to the sum of v - m, or of its square (Chan et al., 1979).
    `numbers`: how many they are, to whoever sums over them and to whoever reads what is kept of that."""
    difference, exponent = _single(node.arg)
    assert isinstance(difference, Call)
    value, mean = difference.args
    own = div(reduce("sum", base, value), numbers[0])
    apart = minus(value, own)
    left, squares = kept(reduce("sum", base, apart)), kept(reduce("sum", base, power(apart, 2)))
    distance = minus(kept(own), rewrite(mean, table))
    if exponent == 1:
        return add(left, mul(numbers[1], distance))
    return add(call("max", squares, 0), mul(2, distance, left), mul(numbers[1], power(distance, 2)))


def partnered(node: Reduce) -> Expr:
    """The values v of a sum of v - m, or of its square."""
    difference, _ = _single(node.arg)
    assert isinstance(difference, Call)
    return difference.args[0]


def check_ties(sums: Iterable[Reduce], roots: Iterable[Expr]) -> None:
    """Refuse to compare an extreme with values that another kernel computes anew and may round otherwise:
    none of them might be equal to it, and a gradient that is shared among no elements is NaN."""
    found = set(sums)
    if any(extreme in found for _, extreme in computed_ties(*roots)):
        raise Misfit("the gradient of a maximum needs values that another kernel recomputes")
