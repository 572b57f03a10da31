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

from normgen.ir.algebra import (
    NOWHERE,
    ONE,
    ZERO,
    Value,
    add,
    as_term,
    axes_of,
    build_product,
    const,
    div,
    extent,
    factors,
    lift,
    load,
    make_power,
    mul,
    neg,
    negated,
    power,
    scalar,
    sub,
    terms,
)
from normgen.ir.facts import is_finite, is_nonnegative
from normgen.ir.nodes import (
    Add,
    Axes,
    Call,
    Const,
    Expr,
    Extent,
    InOrder,
    Load,
    Mul,
    Reduce,
    Round,
    Scalar,
    Select,
    Told,
    Window,
    children,
    make,
    order,
    reductions,
    walk,
)
from normgen.ir.primitives import PRIMITIVES

__all__ = [
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
    "call",
    "children",
    "compare",
    "const",
    "div",
    "extent",
    "factors",
    "in_order",
    "load",
    "minus",
    "mul",
    "neg",
    "order",
    "power",
    "reduce",
    "reductions",
    "rewrite",
    "round_to",
    "scalar",
    "select",
    "sub",
    "terms",
    "told",
    "walk",
    "window_sum",
]


# -------------------------------------------------------------------------------- primitives


def call(op: str, *values: Value) -> Expr:
    """A primitive applied to values; numbers fold where the result is exact."""
    args = tuple(map(lift, values))
    primitive = PRIMITIVES[op]
    assert len(args) == primitive.arity, f"{op} takes {primitive.arity} arguments"
    numbers = [arg.value for arg in args if isinstance(arg, Const)]
    if len(numbers) == len(args) and (exact := primitive.exact(*numbers)) is not None:
        return const(exact)
    match op, args:
        case "pow", (base, exponent):
            return power(base, exponent)
        case "abs", (arg,) if is_nonnegative(arg):
            return arg
        case "stop", (Const() | Scalar() | Extent() | Call(op="stop") as arg,):
            return arg
        case "minus", (left, right) if right is ZERO:
            return left
        case "not", (Call(op="not", args=(inner,)),):
            return inner
        case "and", (Const(value=v), other) | (other, Const(value=v)):
            return other if v else ZERO
        case "or", (Const(value=v), other) | (other, Const(value=v)):
            return ONE if v else other
        case (("max" | "min" | "and" | "or"), (left, right)) if left is right:
            return left
        case (("eq" | "ne"), (left, right)):
            args = tuple(sorted(args, key=order))
    return make(Call, axes_of(args), op, args)


_BY_SIGN = {primitive.sign: name for name, primitive in PRIMITIVES.items() if primitive.sign}


def compare(sign: str, left: Value, right: Value) -> Expr:
    """A condition; the sign as in a spec. Constants give ONE or ZERO."""
    if sign in (">", ">="):
        return call(_BY_SIGN[sign.replace(">", "<")], right, left)
    return call(_BY_SIGN[sign], left, right)


def minus(left: Value, right: Value) -> Expr:
    """The difference that no rule takes apart: both sides are subtracted before anything else happens."""
    return call("minus", left, right)


def select(condition: Value, then: Value, otherwise: Value) -> Expr:
    """`then if condition else otherwise`."""
    condition, then, otherwise = lift(condition), lift(then), lift(otherwise)
    if isinstance(condition, Const):
        return then if condition.value else otherwise
    if isinstance(condition, Call) and condition.op == "not":
        (condition,), then, otherwise = condition.args, otherwise, then
    if isinstance(then, Select) and then.condition is condition:
        then = then.then
    if isinstance(otherwise, Select) and otherwise.condition is condition:
        otherwise = otherwise.otherwise
    if then is otherwise:
        return then
    return make(Select, axes_of((condition, then, otherwise)), condition, then, otherwise)


def round_to(value: Value, to: str) -> Expr:
    """The value rounded to an element type (a name, or "like t")."""
    node = lift(value)
    if node is ZERO or (isinstance(node, Round) and node.to == to):
        return node
    return make(Round, node.axes, node, to)


# -------------------------------------------------------------------------------- ranks


def told(channel: Expr, values: tuple[Expr, ...], which: int, rank: int) -> Expr:
    """What a rank tells of the value at `which` of those that ranks exchange together."""
    return make(Told, axes_of(values), channel, values, which, rank)


def in_order(values: Iterable[Expr]) -> Expr:
    """A sum whose terms are added one after the other."""
    found = tuple(values)
    return found[0] if len(found) == 1 else make(InOrder, axes_of(found), found)


# -------------------------------------------------------------------------------- reductions


def reduce(op: str, axes: Iterable[str], value: Value, real: bool = False) -> Expr:
    """`op` (sum, max, min) over axes; an axis that the value lacks counts as that many copies."""
    over, node = frozenset(axes), lift(value)
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
    if real and isinstance(body, Select):
        return _reduce_masked(over, body)
    return _reduce_plain("sum", over, body)


def _reduce_masked(over: Axes, body: Select) -> Expr:
    """The sum of values of which some are masked, by 0, without the factors that it does not run over. A sum
    of 0 stays 0 whatever these are: all values may be masked, for that very reason."""
    masked = body.then is ZERO
    if not masked and body.otherwise is not ZERO:
        return _reduce_plain("sum", over, body)
    outside, inside = _pull_out(body.otherwise if masked else body.then, over, real=True)
    branches = (ZERO, inside) if masked else (inside, ZERO)
    summed = _reduce_plain("sum", over, select(body.condition, *branches))
    whole = mul(outside, summed, real=True)
    return whole if is_finite(outside) else select(compare("==", summed, ZERO), ZERO, whole)


def _pull_out(node: Expr, over: Axes, real: bool) -> tuple[Expr, Expr]:
    """(outside, inside) of a sum: what it does not run over, if that is known finite or `real` says so."""
    c, pairs = factors(node)
    if isinstance(node, Add) and node.terms[-1][1] < 0:
        c, pairs = Fraction(-1), ((negated(node), Fraction(1)),)
    # a high power under the sum is in range only with the high power that it is divided by
    high = any(e > 2 and base.axes & over for base, e in pairs)
    outside: list[tuple[Expr, Fraction]] = []
    inside: list[tuple[Expr, Fraction]] = []
    for base, e in pairs:
        balances = high and abs(e) > 1 and not isinstance(base, Extent)
        leaves = not base.axes & over and ((real and not balances) or is_finite(make_power(base, e)))
        (outside if leaves else inside).append((base, e))
    return build_product(c, outside), build_product(Fraction(1), inside)


def window_sum(value: Value, window: Window, real: bool = False) -> Expr:
    """The sum over neighbours low..high along each axis; what lies outside contributes nothing."""
    node = lift(value)
    window = tuple(sorted((axis, low, high) for axis, low, high in window))
    assert all(low <= high for _, low, high in window), "an empty window"
    # An axis that the value lacks still matters: fewer neighbours at the edges.
    window = tuple(reach for reach in window if reach[1:] != (0, 0))
    if not window or node is ZERO:
        return node
    axes = frozenset(axis for axis, _, _ in window)
    outside, body = _pull_out(node, axes, real)
    return mul(outside, make(Reduce, body.axes | axes, "sum", NOWHERE, window, body), real=real)


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
        case Told(which=which, rank=rank):
            return told(args[0], args[1:], which, rank)
        case InOrder():
            return in_order(args)
        case _:
            return node


def rewrite(root: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with nodes replaced by the table; what is unaffected stays the very same nodes. A power
    that the table has is replaced in products too, of which it is no node."""
    done: dict[Expr, Expr] = dict(table)
    for node in walk(root):
        if node in done:
            continue
        old = children(node)
        new = tuple(done[child] for child in old)
        if isinstance(node, Mul) and any(power(*factor) in table for factor in node.factors):
            parts = [table[p] if (p := power(b, e)) in table else power(done[b], e) for b, e in node.factors]
            done[node] = mul(node.coefficient, *parts)
        else:
            done[node] = node if new == old else rebuild(node, new)
    return done[root]
