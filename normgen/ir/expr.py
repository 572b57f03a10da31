"""Canonical constructors: the only way to make a node.

Folding, flattening, cancellation and sharing happen here, once, so that two ways to write a value that are
the same by these rules are one node. Every rule is sound for IEEE values: at negative numbers, zero,
infinity and NaN the canonical node has the value of what was written (rounding and overflow of intermediate
results aside). So `x - x` is `0 * x`, `x / x` stays, and `sqrt(x^2)` is not `x`. Sums stay as they were
written: adding to a sum nests it.

`real=True` is for derived values alone (see `grad`): there what cancels over the real numbers vanishes,
factors without the reduced axes leave a sum, and a sum over an addition vanishes where its parts cancel.

    mul(load("x", d), power(load("x", d), 2))  is  x^3;    reduce("sum", d, mul(2, x))  is  2 * sum[D](x)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import floor

from normgen.ir.facts import is_finite, is_nonnegative, is_positive
from normgen.ir.nodes import (
    ARITY,
    CONDITIONS,
    Add,
    Axes,
    Call,
    Const,
    Expr,
    Extent,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    Select,
    Window,
    children,
    make,
    order,
    reductions,
    walk,
)

__all__ = [
    "ARITY",
    "CONDITIONS",
    "ONE",
    "ZERO",
    "Add",
    "Axes",
    "Call",
    "Const",
    "Expr",
    "Extent",
    "Load",
    "Mul",
    "Reduce",
    "Round",
    "Scalar",
    "Select",
    "Window",
    "add",
    "as_term",
    "both",
    "call",
    "children",
    "compare",
    "const",
    "div",
    "either",
    "extent",
    "factors",
    "load",
    "minus",
    "mul",
    "neg",
    "negate_condition",
    "power",
    "reduce",
    "reductions",
    "rewrite",
    "round_to",
    "scalar",
    "select",
    "sub",
    "terms",
    "walk",
    "window_sum",
]

Number = int | Fraction
Value = Expr | int | Fraction
_NOWHERE: Axes = frozenset()


# -------------------------------------------------------------------------------- leaves


def const(value: Number) -> Const:
    """An exact number."""
    return make(Const, _NOWHERE, Fraction(value))


def scalar(name: str) -> Scalar:
    """A float attribute given at run time."""
    return make(Scalar, _NOWHERE, name)


def extent(axis: str) -> Extent:
    """The length of an axis."""
    return make(Extent, _NOWHERE, axis)


def load(tensor: str, axes: Iterable[str]) -> Load:
    """The element of a tensor that varies over these axes."""
    return make(Load, frozenset(axes), tensor)


ZERO, ONE = const(0), const(1)
_HALF = Fraction(1, 2)


def _lift(value: Value) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def _axes(nodes: Iterable[Expr]) -> Axes:
    return frozenset().union(*(n.axes for n in nodes))


# -------------------------------------------------------------------------------- sums


def terms(node: Expr) -> tuple[tuple[Expr, Fraction], ...]:
    """The node as a sum of `coefficient * term`."""
    return node.terms if isinstance(node, Add) else (as_term(node),) if node is not ZERO else ()


def as_term(node: Expr) -> tuple[Expr, Fraction]:
    """The node as one `coefficient * term` of a sum; a sum stays together."""
    match node:
        case Const(value=value):
            return ONE, value
        case Mul(coefficient=c, factors=pairs) if c not in (0, 1):
            return _build_product(Fraction(1), pairs), c
        case Add(terms=pairs) if pairs[-1][1] < 0:
            return _negated(node), Fraction(-1)
        case _:
            return node, Fraction(1)


def _negated(node: Add) -> Add:
    return make(Add, node.axes, tuple((t, -c) for t, c in node.terms))


def add(*values: Value, real: bool = False) -> Expr:
    """The sum. Terms of a sum that is added stay together, as they were written."""
    positive: dict[Expr, Fraction] = {}
    negative: dict[Expr, Fraction] = {}
    for value in values:
        node = _lift(value)
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


def _build_sum(pairs: list[tuple[Expr, Fraction]]) -> Expr:
    if not pairs:
        return ZERO
    if len(pairs) == 1:
        ((term, c),) = pairs
        return mul(c, term)
    pairs.sort(key=lambda pair: order(pair[0]))
    return make(Add, _axes(t for t, _ in pairs), tuple(pairs))


def neg(value: Value) -> Expr:
    """`-value`."""
    return mul(-1, value)


def sub(left: Value, right: Value) -> Expr:
    """`left - right`."""
    return add(left, neg(right))


# -------------------------------------------------------------------------------- products


def factors(node: Expr) -> tuple[Fraction, tuple[tuple[Expr, Fraction], ...]]:
    """The node as `coefficient * product of base^exponent`."""
    match node:
        case Const(value=value):
            return value, ()
        case Mul(coefficient=c, factors=pairs):
            return c, pairs
        case _:
            return Fraction(1), ((node, Fraction(1)),)


def mul(*values: Value, real: bool = False) -> Expr:
    """The product."""
    coefficient = Fraction(1)
    pairs: list[tuple[Expr, Fraction]] = []
    for value in values:
        c, found = factors(_lift(value))
        coefficient *= c
        pairs.extend(found)
    return _product(coefficient, pairs, real)


def div(left: Value, right: Value) -> Expr:
    """`left / right`."""
    return mul(left, power(right, -1))


def power(base: Value, exponent: Value, real: bool = False) -> Expr:
    """`base ^ exponent`; NaN for a negative base and a fractional exponent."""
    base, exponent = _lift(base), _lift(exponent)
    if not isinstance(exponent, Const):
        return make(Call, base.axes | exponent.axes, "pow", (base, exponent))
    if exponent is ZERO:
        return ONE  # as IEEE: also of NaN
    return _product(Fraction(1), [(base, exponent.value)], real)


# A power while it is collected: the exponent, and whether the value is NaN below zero. x^(1/2) * x^(1/2) is x
# only where x is not negative; it is kept as (x^(1/2))^2.
_Power = tuple[Expr, Fraction, bool]


def _product(coefficient: Fraction, pairs: Iterable[tuple[Expr, Fraction]], real: bool) -> Expr:
    collected: dict[Expr, list[tuple[Fraction, bool]]] = {}
    for base, exponent in pairs:
        c, powers = _expand(base, exponent)
        coefficient *= c
        for inner, e, rooted in powers:
            collected.setdefault(inner, []).append((e, rooted))
    out: list[tuple[Expr, Fraction]] = []
    opened = False
    for base, found in collected.items():
        c, merged = _merge(base, found, real)
        coefficient *= c
        out.extend(merged)
        opened |= isinstance(base, Mul) and any(b is base and e.denominator == 1 for b, e in merged)
    if opened:  # roots of a product that made up a whole power of it
        return _product(coefficient, out, real)
    if coefficient == 0 and (real or all(is_finite(make_power(b, e)) for b, e in out)):
        return ZERO
    out.sort(key=lambda pair: (*order(pair[0]), pair[1]))
    return _build_product(coefficient, out)


def _merge(
    base: Expr, found: list[tuple[Fraction, bool]], real: bool
) -> tuple[Fraction, list[tuple[Expr, Fraction]]]:
    """All powers of one base as one; as two where merging would hide that x * x^-1 is NaN at 0 and inf."""
    coefficient = Fraction(1)
    out: list[tuple[Expr, Fraction]] = []
    sides = [found]
    if not real and not is_positive(base):
        sides = [[p for p in found if p[0] > 0], [p for p in found if p[0] < 0]]
    for side in filter(None, sides):
        e, rooted = sum((p[0] for p in side), Fraction(0)), any(p[1] for p in side)
        if isinstance(base, Const):
            c, single = _constant_power(base, e)
            coefficient *= c
        else:
            single = _root_form(base, e, rooted and not is_nonnegative(base))
        if out and single:
            single = [(_build_product(Fraction(1), single), Fraction(1))]
        out += single
    return coefficient, out


def make_power(base: Expr, exponent: Fraction) -> Expr:
    """One canonical factor as a node."""
    return _build_product(Fraction(1), [(base, exponent)])


def _root_form(base: Expr, exponent: Fraction, rooted: bool) -> list[tuple[Expr, Fraction]]:
    if exponent == 0:
        return []
    if rooted and exponent.denominator == 1:
        return [(_build_product(Fraction(1), [(base, _HALF)]), 2 * exponent)]
    return [(base, exponent)]


def _expand(base: Expr, exponent: Fraction) -> tuple[Fraction, list[_Power]]:
    """`base^exponent` as powers of bases that are no products, where that has the same value everywhere."""
    whole = exponent.denominator == 1
    match base:
        case Const():
            c, pairs = _constant_power(base, exponent)
            return c, [(b, e, False) for b, e in pairs]
        case Add(terms=pairs) if whole and pairs[-1][1] < 0:
            return Fraction(-1) ** int(exponent), [(_negated(base), exponent, False)]
        case Mul(coefficient=c, factors=pairs) if whole and (c != 0 or exponent > 0):
            return _expand_each(c ** int(exponent), pairs, exponent)
        case Mul(coefficient=c, factors=pairs) if not whole and c != 0:
            return _expand_root(base, exponent)
        case _:
            return Fraction(1), [(base, exponent, not whole)]


def _expand_each(
    coefficient: Fraction, pairs: Iterable[tuple[Expr, Fraction]], exponent: Fraction
) -> tuple[Fraction, list[_Power]]:
    powers: list[_Power] = []
    for inner, e in pairs:
        if isinstance(inner, Mul):
            c, deeper = _expand(inner, e * exponent) if e.denominator == 1 else (Fraction(1), None)
            if deeper is not None:
                coefficient *= c
                powers += deeper
                continue
        powers.append((inner, e * exponent, e.denominator != 1))
    return coefficient, powers


def _expand_root(base: Mul, exponent: Fraction) -> tuple[Fraction, list[_Power]]:
    """A root of a product: positive factors leave it; the rest leaves where none of it can be negative."""
    outside: list[tuple[Expr, Fraction]] = []
    inside: list[tuple[Expr, Fraction]] = []
    for pair in base.factors:
        (outside if is_positive(pair[0]) else inside).append(pair)
    sign = Fraction(1 if base.coefficient > 0 else -1)
    coefficient, constants = _constant_power(const(abs(base.coefficient)), exponent)
    powers: list[_Power] = [(b, e, False) for b, e in constants]
    powers += [(b, e * exponent, False) for b, e in outside]
    if sign > 0 and all(is_nonnegative(b) or e.denominator != 1 for b, e in inside):
        return _expand_more(coefficient, powers, inside, exponent)
    if outside or abs(base.coefficient) != 1:
        rest = _build_product(sign, inside)
        return coefficient, [*powers, (rest, exponent, True)]
    return coefficient, [*powers, (base, exponent, True)]


def _expand_more(
    coefficient: Fraction, powers: list[_Power], inside: list[tuple[Expr, Fraction]], exponent: Fraction
) -> tuple[Fraction, list[_Power]]:
    for b, e in inside:
        if isinstance(b, Mul) and e.denominator == 1:
            c, deeper = _expand(b, e * exponent)
            coefficient *= c
            powers += deeper
        else:
            powers.append((b, e * exponent, e.denominator != 1 or exponent.denominator != 1))
    return coefficient, powers


def _constant_power(base: Const, exponent: Fraction) -> tuple[Fraction, list[tuple[Expr, Fraction]]]:
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
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < number else (low, middle)
    return low if low**degree == number else None


def _build_product(coefficient: Fraction, pairs: Iterable[tuple[Expr, Fraction]]) -> Expr:
    pairs = tuple(pairs)
    if not pairs:
        return const(coefficient)
    base, exponent = pairs[0]
    if len(pairs) == 1 and exponent == 1:
        if coefficient == 1:
            return base
        if coefficient == -1 and isinstance(base, Add):
            return _negated(base)
    return make(Mul, _axes(b for b, _ in pairs), coefficient, pairs)


# -------------------------------------------------------------------------------- primitives


def call(op: str, *values: Value) -> Expr:
    """A primitive of `ARITY` applied to values; numbers fold where the result is exact."""
    args = tuple(map(_lift, values))
    assert len(args) == ARITY[op], f"{op} takes {ARITY[op]} arguments"
    match op, args:
        case "pow", (base, exponent):
            return power(base, exponent)
        case "exp", (Const(value=v),) if v == 0:
            return ONE
        case "log", (Const(value=v),) if v == 1:
            return ZERO
        case (("tanh" | "erf"), (Const(value=v),)) if v == 0:
            return ZERO
        case "sigmoid", (Const(value=v),) if v == 0:
            return const(_HALF)
        case "abs", (arg,) if is_nonnegative(arg):
            return arg
        case "abs", (Const(value=v),):
            return const(abs(v))
        case "stop", (Const() | Scalar() | Extent() | Call(op="stop") as arg,):
            return arg
        case (("max" | "min"), (left, right)) if left is right:
            return left
        case (("max" | "min"), (Const(value=a), Const(value=b))):
            return const(max(a, b) if op == "max" else min(a, b))
        case "minus", (left, right) if right is ZERO:
            return left
        case (("lt" | "le" | "eq" | "ne"), (Const(value=a), Const(value=b))):
            return ONE if {"lt": a < b, "le": a <= b, "eq": a == b, "ne": a != b}[op] else ZERO
        case "not", (Const(value=v),):
            return ONE if v == 0 else ZERO
        case "not", (Call(op="not", args=(inner,)),):
            return inner
        case "and", (Const(value=v), other) | (other, Const(value=v)):
            return other if v else ZERO
        case "or", (Const(value=v), other) | (other, Const(value=v)):
            return ONE if v else other
        case (("and" | "or"), (left, right)) if left is right:
            return left
        case (("eq" | "ne"), (left, right)):
            args = tuple(sorted(args, key=order))
    return make(Call, _axes(args), op, args)


_SWAPPED = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "lt", ">=": "le"}


def compare(op: str, left: Value, right: Value) -> Expr:
    """A condition; `op` as in a spec (`<`) or as in `ARITY` (`lt`). Constants give ONE or ZERO."""
    if op in (">", ">="):
        left, right = right, left
    return call(_SWAPPED.get(op, op), left, right)


def both(left: Value, right: Value) -> Expr:
    """`left and right`."""
    return call("and", left, right)


def either(left: Value, right: Value) -> Expr:
    """`left or right`."""
    return call("or", left, right)


def negate_condition(condition: Value) -> Expr:
    """`not condition`. Never the opposite comparison: NaN makes both false."""
    return call("not", condition)


def minus(left: Value, right: Value) -> Expr:
    """The difference that no rule takes apart: both sides are subtracted before anything else happens."""
    return call("minus", left, right)


def select(condition: Value, then: Value, otherwise: Value) -> Expr:
    """`then if condition else otherwise`."""
    condition, then, otherwise = _lift(condition), _lift(then), _lift(otherwise)
    if isinstance(condition, Const):
        return then if condition.value else otherwise
    if then is otherwise:
        return then
    if isinstance(condition, Call) and condition.op == "not":
        (condition,), then, otherwise = condition.args, otherwise, then
    return make(Select, _axes((condition, then, otherwise)), condition, then, otherwise)


def round_to(value: Value, to: str) -> Expr:
    """The value rounded to an element type (a name, or "like t")."""
    node = _lift(value)
    if node is ZERO or (isinstance(node, Round) and node.to == to):
        return node
    return make(Round, node.axes, node, to)


# -------------------------------------------------------------------------------- reductions


def reduce(op: str, axes: Iterable[str], value: Value, real: bool = False) -> Expr:
    """`op` (sum, max, min) over axes; an axis that the value lacks counts as that many copies."""
    over, node = frozenset(axes), _lift(value)
    idle, live = over - node.axes, over & node.axes
    if op != "sum":
        return _reduce_plain(op, live, node)
    outside, body = _pull_out(node, live, real)
    copies = [extent(axis) for axis in sorted(idle)]
    return mul(outside, *copies, _reduce_sum(live, body, real), real=real)


def _reduce_plain(op: str, over: Axes, node: Expr) -> Expr:
    if not over:
        return node
    if isinstance(node, Reduce) and node.op == op and not node.window:
        return make(Reduce, node.axes - over, op, over | node.over, (), node.arg)
    return make(Reduce, node.axes - over, op, over, (), node)


def _reduce_sum(over: Axes, body: Expr, real: bool) -> Expr:
    if real and isinstance(body, Add):
        parts = [mul(c, reduce("sum", over, t, real=True), real=True) for t, c in body.terms]
        total = add(*parts, real=True)
        if set(reductions(total)) <= set(reductions(body)):
            return total
    if real and isinstance(body, Select) and not body.condition.axes & over:
        branches = (body.then, body.otherwise)
        if ZERO in branches:
            return select(body.condition, *(reduce("sum", over, branch, real=True) for branch in branches))
    return _reduce_plain("sum", over, body)


def _pull_out(node: Expr, over: Axes, real: bool) -> tuple[Expr, Expr]:
    """(outside, inside) of a sum: what it does not run over, if that is known finite or `real` says so."""
    c, pairs = factors(node)
    if isinstance(node, Add) and node.terms[-1][1] < 0:
        c, pairs = Fraction(-1), ((_negated(node), Fraction(1)),)
    outside: list[tuple[Expr, Fraction]] = []
    inside: list[tuple[Expr, Fraction]] = []
    for base, e in pairs:
        leaves = not base.axes & over and (real or is_finite(make_power(base, e)))
        (outside if leaves else inside).append((base, e))
    return _build_product(c, outside), _build_product(Fraction(1), inside)


def window_sum(value: Value, window: Window, real: bool = False) -> Expr:
    """The sum over neighbours low..high along each axis; what lies outside contributes nothing."""
    node = _lift(value)
    window = tuple(sorted((axis, low, high) for axis, low, high in window))
    assert all(low <= high for _, low, high in window), "an empty window"
    # An axis that the value lacks still matters: fewer neighbours at the edges.
    window = tuple(reach for reach in window if reach[1:] != (0, 0))
    if not window or node is ZERO:
        return node
    axes = frozenset(axis for axis, _, _ in window)
    outside, body = _pull_out(node, axes, real)
    return mul(outside, make(Reduce, body.axes | axes, "sum", _NOWHERE, window, body), real=real)


# -------------------------------------------------------------------------------- rewriting


def rebuild(node: Expr, args: tuple[Expr, ...], real: bool = False) -> Expr:
    """The node with other operands, canonical again."""
    match node:
        case Add(terms=pairs):
            return add(*(mul(c, a, real=real) for a, (_, c) in zip(args, pairs, strict=True)), real=real)
        case Mul(coefficient=c, factors=pairs):
            return mul(c, *(power(a, e, real=real) for a, (_, e) in zip(args, pairs, strict=True)), real=real)
        case Call(op=op):
            return call(op, *args)
        case Round(to=to):
            return round_to(args[0], to)
        case Reduce(op=op, over=over, window=()):
            return reduce(op, over, args[0], real=real)
        case Reduce(window=window):
            return window_sum(args[0], window, real=real)
        case Select():
            return select(*args)
        case _:
            return node


def rewrite(root: Expr, table: Mapping[Expr, Expr], real: bool = False) -> Expr:
    """The expression with nodes replaced by the table; what is unaffected stays the very same nodes."""
    done: dict[Expr, Expr] = dict(table)
    for node in walk(root):
        if node not in done:
            old = children(node)
            new = tuple(done[child] for child in old)
            done[node] = node if new == old else rebuild(node, new, real)
    return done[root]
