"""The reductions over a row by level of dependency, and pairs of levels that one exchange or pass serves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

from normgen.ir.expr import (
    Add,
    Call,
    Expr,
    Extent,
    Mul,
    Reduce,
    children,
    compare,
    factors,
    select,
    sub,
    terms,
    walk,
)


@dataclass(frozen=True, slots=True)
class Moments:
    """The row sums of two levels that one exchange serves: v, its mean, and sums of c = v - mean and c^2."""

    value: Expr
    mean: Expr
    centred: Reduce | None
    squares: Reduce | None


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The row sums of two levels that one pass serves: the maximum of v, and the sum of exp(v - shift), where
    the shift is the maximum, or `finite` of it."""

    value: Expr
    top: Reduce
    shift: Expr
    total: Reduce


@dataclass(frozen=True, slots=True)
class Level:
    """Row sums that depend on no other sum of this level: one exchange.

    With `moments` or `exponentials`, those of two levels.
    """

    sums: tuple[Reduce, ...]
    moments: Moments | None = None
    exponentials: Exponentials | None = None


def is_missed(node: Reduce) -> bool:
    """Whether it is a sum of differences from a mean: what that misses, in f32. Of parts of a mean it adds
    what each of them misses too, as often as it counts."""
    return node.op == "sum" and any(map(_is_difference, terms(node.arg)))


def _is_difference(term: tuple[Expr, Fraction]) -> bool:
    varying = [pair for pair in factors(term[0])[1] if not isinstance(pair[0], Extent)]
    match varying:
        case [(Call(op="minus"), exponent)]:
            return exponent == 1
        case _:
            return False


def levels_of(roots: list[Expr], inner: frozenset[str]) -> tuple[Level, ...]:
    depth: dict[Expr, int] = {}
    by_depth: dict[int, list[Reduce]] = {}
    for node in walk(*roots):
        below = max((depth[c] for c in children(node)), default=0)
        if isinstance(node, Reduce) and node.over == inner:
            by_depth.setdefault(below + 1, []).append(node)
            below += 1
        depth[node] = below
    return tuple(Level(tuple(by_depth[d])) for d in sorted(by_depth))


def finite(top: Expr) -> Expr:
    """A maximum where it is a finite number, else 0."""
    return select(compare("==", sub(top, top), 0), top, 0)


def about_maximum(total: Reduce, tops: Collection[Reduce]) -> Exponentials | None:
    """A sum of exponentials of the distances from one of these maxima of the same values, or None."""
    match total:
        case Reduce(op="sum", window=(), arg=Call(op="exp", args=(Add(terms=((a, c), (b, d))),))):
            value, shift = (b, a) if d == 1 else (a, b)
            plain = shift.args[0] if isinstance(shift, Call) and shift.op == "stop" else shift
            fitting = [n for n in tops if n.op == "max" and n.arg is value and n.over == total.over]
            for top in fitting if {c, d} == {1, -1} else ():
                if plain in (top, finite(top)):
                    return Exponentials(value, top, plain, total)
    return None


def exponentials_of(levels: tuple[Level, ...]) -> Exponentials | None:
    """A maximum, then the sum of the exponentials of the distances from it, and nothing else."""
    if len(levels) < 2 or [len(level.sums) for level in levels[:2]] != [1, 1]:
        return None
    return about_maximum(levels[1].sums[0], levels[0].sums)


def moments_of(levels: tuple[Level, ...], roots: list[Expr], summed: Collection[Expr] = ()) -> Moments | None:
    """One exchange does for sum(v) and the sums of c = v - mean and c^2, where nothing else is summed.
    `summed`: the values that all sums are for, where others may have differences of v too."""
    if len(levels) < 2 or len(levels[0].sums) != 1 or levels[0].sums[0].op != "sum":
        return None
    total, second = levels[0].sums[0], levels[1]
    difference = _centred(total, roots, summed)
    if difference is None:
        return None
    centred = squares = None
    for node in second.sums:
        match node.arg:
            case _ if node.op != "sum":
                return None
            case Call() if node.arg is difference:
                centred = node
            case Mul(coefficient=c, factors=((base, e),)) if base is difference and c == 1 and e == 2:
                squares = node
            case _:
                return None
    return Moments(total.arg, difference.args[1], centred, squares)


def _centred(total: Reduce, roots: list[Expr], summed: Collection[Expr]) -> Call | None:
    """The only difference of what is summed from something, where the sum is for that alone."""
    calls = (n for n in walk(*(summed or roots)) if isinstance(n, Call) and n.op == "minus")
    differences = [n for n in calls if n.args[0] is total.arg]
    if len(differences) != 1:
        return None
    users = [n for n in walk(*roots) if total in children(n)]
    return differences[0] if users == [differences[0].args[1]] and total not in roots else None
