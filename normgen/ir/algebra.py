"""Canonical numbers, sums, products and powers; the rules are those that `expr` states."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import floor

from normgen.ir.facts import is_finite, is_nonnegative, is_positive
from normgen.ir.nodes import Add, Axes, Call, Const, Expr, Extent, Load, Mul, Scalar, make, order
from normgen.ir.work import spend

Number = int | Fraction
Value = Expr | int | Fraction
Pair = tuple[Expr, Fraction]
NOWHERE: Axes = frozenset()


# -------------------------------------------------------------------------------- leaves


def const(value: Number) -> Const:
    """An exact number."""
    return make(Const, NOWHERE, Fraction(value))


def scalar(name: str) -> Scalar:
    """A float attribute given at run time."""
    return make(Scalar, NOWHERE, name)


def extent(axis: str) -> Extent:
    """The length of an axis."""
    return make(Extent, NOWHERE, axis)


def load(tensor: str, axes: Iterable[str]) -> Load:
    """The element of a tensor that varies over these axes."""
    return make(Load, frozenset(axes), tensor)


ZERO, ONE = const(0), const(1)
HALF = Fraction(1, 2)
_UNIT = Fraction(1)


def lift(value: Value) -> Expr:
    """A number as a node."""
    return value if isinstance(value, Expr) else const(value)


def axes_of(nodes: Iterable[Expr]) -> Axes:
    """The axes over which any of the nodes varies."""
    return frozenset().union(*(n.axes for n in nodes))


# -------------------------------------------------------------------------------- sums


def terms(node: Expr) -> tuple[Pair, ...]:
    """The node as a sum of `coefficient * term`."""
    return node.terms if isinstance(node, Add) else (as_term(node),) if node is not ZERO else ()


def as_term(node: Expr) -> tuple[Expr, Fraction]:
    """The node as one `coefficient * term` of a sum; a sum stays together."""
    match node:
        case Const(value=value):
            return ONE, value
        case Mul(coefficient=c, factors=pairs) if c not in (0, 1):
            return build_product(Fraction(1), pairs), c
        case Add(terms=pairs) if pairs[-1][1] < 0:
            return negated(node), Fraction(-1)
        case _:
            return node, Fraction(1)


def negated(node: Add) -> Add:
    """The sum with every sign turned."""
    return make(Add, node.axes, tuple((t, -c) for t, c in node.terms))


def add(*values: Value, real: bool = False) -> Expr:
    """The sum. Terms of a sum that is added stay together, as they were written."""
    spend(len(values))
    positive: dict[Expr, Fraction] = {}
    negative: dict[Expr, Fraction] = {}
    for value in values:
        node = lift(value)
        if node is ZERO:
            continue
        term, c = as_term(node)
        side = negative if c < 0 and not (real or is_finite(term)) else positive
        side[term] = side.get(term, Fraction(0)) + c
    total = dict(positive)
    for term, c in negative.items():
        total[term] = total.get(term, Fraction(0)) + c
        if term in positive:  # inf - inf is NaN, and so is 0 * inf
            total[mul(0, term)] = Fraction(1)
    pairs = [(t, Fraction(1) if _is_poison(t) else c) for t, c in total.items() if c]
    return _build_sum(pairs)


def _is_poison(node: Expr) -> bool:
    return isinstance(node, Mul) and node.coefficient == 0


def _build_sum(pairs: list[Pair]) -> Expr:
    if not pairs:
        return ZERO
    if len(pairs) == 1:
        ((term, c),) = pairs
        return mul(c, term)
    pairs.sort(key=lambda pair: order(pair[0]))
    return make(Add, axes_of(t for t, _ in pairs), tuple(pairs))


def neg(value: Value) -> Expr:
    """`-value`."""
    return mul(-1, value)


def sub(left: Value, right: Value) -> Expr:
    """`left - right`."""
    return add(left, neg(right))


# -------------------------------------------------------------------------------- products


def factors(node: Expr) -> tuple[Fraction, tuple[Pair, ...]]:
    """The node as `coefficient * product of base^exponent`."""
    match node:
        case Const(value=value):
            return value, ()
        case Mul(coefficient=c, factors=pairs):
            return c, pairs
        case _:
            return _UNIT, ((node, _UNIT),)


def mul(*values: Value, real: bool = False) -> Expr:
    """The product."""
    coefficient = Fraction(1)
    pairs: list[Pair] = []
    for value in values:
        c, found = factors(lift(value))
        if c is not _UNIT:
            coefficient *= c
        pairs.extend(found)
    spend(len(pairs))
    return _product(coefficient, pairs, real)


def div(left: Value, right: Value) -> Expr:
    """`left / right`."""
    return mul(left, power(right, -1))


def power(base: Value, exponent: Value, real: bool = False) -> Expr:
    """`base ^ exponent`; NaN for a negative base and a fractional exponent."""
    base, exponent = lift(base), lift(exponent)
    if not isinstance(exponent, Const):
        return make(Call, base.axes | exponent.axes, "pow", (base, exponent))
    if exponent is ZERO:
        return ONE  # as IEEE: also of NaN
    return _product(Fraction(1), [(base, exponent.value)], real)


# A power while it is collected: the exponent, and whether the value is NaN below zero. x^(1/2) * x^(1/2) is x
# only where x is not negative; it is kept as (x^(1/2))^2.
_Power = tuple[Expr, Fraction, bool]


def _product(coefficient: Fraction, pairs: Iterable[Pair], real: bool) -> Expr:
    collected: dict[Expr, list[tuple[Fraction, bool]]] = {}
    for base, exponent in pairs:
        c, powers = _expand(base, exponent)
        if c is not _UNIT:
            coefficient *= c
        for inner, e, rooted in powers:
            collected.setdefault(inner, []).append((e, rooted))
    out: list[Pair] = []
    opened = False
    for base, found in collected.items():
        c, merged = _merge(base, found, real)
        if c is not _UNIT:
            coefficient *= c
        out.extend(merged)
        opened |= any(b is base and _opens(b, e) for b, e in merged)
    if opened:  # roots of a product that made up a whole power of it
        return _product(coefficient, out, real)
    if coefficient == 0 and (real or all(is_finite(make_power(b, e)) for b, e in out)):
        return ZERO
    out.sort(key=lambda pair: (*order(pair[0]), pair[1]))
    return build_product(coefficient, out)


def _opens(base: Expr, e: Fraction) -> bool:
    """Whether a power of a product is one of its factors."""
    return isinstance(base, Mul) and e.denominator == 1 and (base.coefficient != 0 or e > 0)


def _merge(base: Expr, found: list[tuple[Fraction, bool]], real: bool) -> tuple[Fraction, list[Pair]]:
    """All powers of one base as one; as two where merging would hide that x * x^-1 is NaN at 0 and inf."""
    if len(found) == 1 and not isinstance(base, Const):
        ((e, rooted),) = found
        return _UNIT, _root_form(base, e, rooted and not is_nonnegative(base))
    coefficient = Fraction(1)
    out: list[Pair] = []
    sides = [found]
    if not real and not is_positive(base):
        sides = [[p for p in found if p[0] > 0], [p for p in found if p[0] < 0]]
    for side in filter(None, sides):
        e, rooted = sum((p[0] for p in side), Fraction(0)), any(p[1] for p in side)
        if isinstance(base, Const) and not (rooted and base.value < 0):
            c, single = _constant_power(base, e)
            coefficient *= c
        else:
            single = _root_form(base, e, rooted and not is_nonnegative(base))
        if out and single:
            single = [(build_product(Fraction(1), single), Fraction(1))]
        out += single
    return coefficient, out


def make_power(base: Expr, exponent: Fraction) -> Expr:
    """One canonical factor as a node."""
    return build_product(Fraction(1), [(base, exponent)])


def _root_form(base: Expr, exponent: Fraction, rooted: bool) -> list[Pair]:
    if exponent == 0:
        return []
    if rooted and exponent.denominator == 1:
        return [(build_product(Fraction(1), [(base, HALF)]), 2 * exponent)]
    return [(base, exponent)]


def _expand(base: Expr, exponent: Fraction) -> tuple[Fraction, list[_Power]]:
    """`base^exponent` as powers of bases that are no products, where that has the same value everywhere."""
    whole = exponent.denominator == 1
    match base:
        case Const(value=value):
            c, pairs = _constant_power(base, exponent)
            return c, [(b, e, value < 0) for b, e in pairs]
        case Add(terms=pairs) if whole and pairs[-1][1] < 0:
            return Fraction(-1) ** int(exponent), [(negated(base), exponent, False)]
        case Mul(coefficient=c, factors=pairs) if _opens(base, exponent):
            return _spread(c ** int(exponent), pairs, exponent)
        case Mul(coefficient=c) if not whole and c != 0:
            return _expand_root(base, exponent)
        case _:
            return _UNIT, [(base, exponent, not whole)]


def _spread(
    coefficient: Fraction, pairs: Iterable[Pair], exponent: Fraction
) -> tuple[Fraction, list[_Power]]:
    """coefficient * (product of pairs)^exponent, pair by pair."""
    powers: list[_Power] = []
    for base, e in pairs:
        if isinstance(base, Mul) and e.denominator == 1:
            c, deeper = _expand(base, e * exponent)
            coefficient *= c
            powers += deeper
        else:
            powers.append((base, e * exponent, e.denominator != 1 or exponent.denominator != 1))
    return coefficient, powers


def _expand_root(base: Mul, exponent: Fraction) -> tuple[Fraction, list[_Power]]:
    """A root of a product: positive factors leave it; the rest leaves where none of it can be negative."""
    outside = [pair for pair in base.factors if is_positive(pair[0])]
    inside = [pair for pair in base.factors if not is_positive(pair[0])]
    coefficient, constants = _constant_power(const(abs(base.coefficient)), exponent)
    coefficient, powers = _spread(coefficient, [*outside], exponent)
    powers += [(b, e, False) for b, e in constants]
    if base.coefficient > 0 and all(is_nonnegative(b) or e.denominator != 1 for b, e in inside):
        coefficient, rest = _spread(coefficient, inside, exponent)
        return coefficient, powers + rest
    sign = Fraction(1 if base.coefficient > 0 else -1)
    return coefficient, [*powers, (build_product(sign, inside), exponent, True)]


def _constant_power(base: Const, exponent: Fraction) -> tuple[Fraction, list[Pair]]:
    """A power of a number: exact where rational, else a whole part and a root with exponent in (0, 1)."""
    value = base.value
    if value == 1 or exponent == 0:
        return Fraction(1), []
    if value == 0:
        return (Fraction(0), []) if exponent > 0 else (Fraction(1), [(base, Fraction(-1))])
    if exponent.denominator == 1:
        return value ** int(exponent), []
    if value < 0:
        return Fraction(1), [(base, exponent)]
    whole = floor(exponent)
    rest = exponent - whole
    top, bottom = (_exact_root(n, rest.denominator) for n in (value.numerator, value.denominator))
    if top is not None and bottom is not None:
        return value**whole * Fraction(top, bottom) ** rest.numerator, []
    return value**whole, [(base, rest)]


def _exact_root(number: int, degree: int) -> int | None:
    if number > 1 and degree >= number.bit_length():
        return None  # 2^degree is larger already; it may be too large to write down
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < number else (low, middle)
    return low if low**degree == number else None


def build_product(coefficient: Fraction, pairs: Iterable[Pair]) -> Expr:
    """A node of factors that are canonical already."""
    pairs = tuple(pairs)
    if not pairs:
        return const(coefficient)
    base, exponent = pairs[0]
    if len(pairs) == 1 and exponent == 1:
        if coefficient == 1:
            return base
        if coefficient == -1 and isinstance(base, Add):
            return negated(base)
    return make(Mul, axes_of(b for b, _ in pairs), coefficient, pairs)
