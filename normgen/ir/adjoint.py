"""Reverse mode over expressions: the cotangents of chosen nodes, given those of the roots.

Broadcasting is by axis name, so the transpose of a sum is the identity and every reduction of a backward is
born in one place, `unbroadcast`. Sums made here, by accumulating cotangents, distribute over reductions, and
over products where their terms hold reductions that may cancel; sums that the user wrote stay whole (`x - mu`
is never expanded). So does a sum of many parts: distributed over each product that it meets, it would double
with every line of a chain of lets that use the line before twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from normgen.ir.algebra import Value
from normgen.ir.expr import (
    ONE,
    ZERO,
    add,
    call,
    compare,
    const,
    mul,
    neg,
    power,
    reduce,
    reductions,
    select,
    sub,
    terms,
    walk,
    window_sum,
)
from normgen.ir.nodes import Add, Axes, Call, Expr, Mul, Reduce, Round, Select, children
from normgen.ir.primitives import PRIMITIVES, Builder

MOST_PARTS = 8  # of a sum that is distributed over a product


def total(cotangents: Iterable[Expr]) -> Expr:
    """The sum of cotangents, flat. A cotangent that is a sum was made here: no user's value is one."""
    return add(*(mul(c, t) for g in cotangents for t, c in terms(g)), real=True)


def times(cotangent: Expr, *derivatives: Value) -> Expr:
    """The cotangent scaled, inside the branches of a select: there 0 stays 0 whatever the derivative."""
    pairs = terms(cotangent)
    masked = any(isinstance(term, Select) for term, _ in pairs)
    distributes = masked or cotangent.reduces or len(pairs) == 1
    if not distributes or _has_more_parts(cotangent):
        whole = mul(cotangent, *derivatives, real=True)
        # (see `guarded_by`)
        return select(compare("==", cotangent, ZERO), ZERO, whole) if masked else whole
    pieces = []
    for term, c in pairs:
        if isinstance(term, Select):
            scales = derivatives if c == 1 else (*derivatives, const(c))
            branches = (times(branch, *scales) for branch in (term.then, term.otherwise))
            pieces.append(select(term.condition, *branches))
        else:
            pieces.append(mul(c, term, *derivatives, real=True))
    return total(pieces)


def _has_more_parts(cotangent: Expr) -> bool:
    """Whether there are more than `MOST_PARTS` selects and products in them; looks at no more than it takes
    to know."""
    left = [cotangent]
    found = 0
    while left and found <= MOST_PARTS:
        pairs = terms(left.pop())
        found += len(pairs)
        for term, _ in pairs:
            if isinstance(term, Select):
                left += [term.then, term.otherwise]
    return found > MOST_PARTS


def unbroadcast(cotangent: Expr, over: Axes, known: Collection[Expr]) -> Expr:
    """The cotangent of a value that was broadcast over axes; `known` reductions cost nothing more."""
    if not over:
        return cotangent
    cheap: list[Expr] = []
    rest: list[Expr] = []
    new: set[Expr] = set()
    for term, c in terms(cotangent):
        summed = reduce("sum", over, mul(c, term), real=True)
        found = {r for r in reductions(summed) if r not in known}
        new |= found
        (rest if found else cheap).append(mul(c, term) if found else summed)
    # Several sums, or one sum over all of it: whichever leaves fewer.
    if len(new) <= 1:
        rest = [reduce("sum", over, g, real=True) for g in rest]
        return total([*cheap, *rest])
    return total([*cheap, reduce("sum", over, total(rest), real=True)])


def adjoint(
    roots: Iterable[tuple[Expr, Expr]], targets: Collection[Expr], derived: Collection[Expr] = ()
) -> dict[Expr, Expr]:
    """The cotangent of every target (ZERO where none arrives) from (root, its cotangent) pairs.

    What a node receives is added up before it is summed over the axes that the node lacks, so that it is
    summed once. `derived`: values that are cotangents themselves, of a backward that is differentiated.
    """
    pairs = list(roots)
    forward = list(walk(*(root for root, _ in pairs)))
    needed = _leading_to(targets, forward)
    arrived: dict[Expr, dict[Axes, list[Expr]]] = {}
    for root, cotangent in pairs:
        arrived.setdefault(root, {}).setdefault(root.axes, []).append(cotangent)
    known: set[Expr] = set()
    seen: set[Expr] = set()
    found: dict[Expr, Expr] = {}
    for node in reversed(forward):
        if node not in needed or node not in arrived:
            continue
        cotangent = total(
            unbroadcast(total(received), axes - node.axes, known) for axes, received in arrived[node].items()
        )
        known.update(n for n in walk(cotangent, seen=seen) if isinstance(n, Reduce))
        found[node] = cotangent
        guarded = guarded_by(node)
        pull = _pull_guarded(node, guarded, cotangent) if guarded in derived else _pull(node, cotangent)
        for operand, pulled in pull:
            if operand in needed and pulled is not None and pulled is not ZERO:
                # A plain sum is broadcast to what it sums: nothing is summed on the way back.
                plain = isinstance(node, Reduce) and not node.window
                wide = operand.axes if plain else node.axes
                arrived.setdefault(operand, {}).setdefault(wide, []).append(pulled)
    return {target: found.get(target, ZERO) for target in targets}


def _leading_to(targets: Collection[Expr], forward: Iterable[Expr]) -> set[Expr]:
    """The nodes through which a derivative can flow to a target."""
    found: set[Expr] = set()
    for node in forward:
        if node in targets or any(child in found for child in _differentiable(node)):
            found.add(node)
    return found


def guarded_by(node: Expr) -> Expr | None:
    """The c of a select that is 0 where c is 0: what `times` makes of a cotangent c, lest 0 * inf be NaN."""
    match node:
        case Select(condition=Call(op="eq", args=(left, right)), then=then) if then is ZERO:
            return right if left is ZERO else left if right is ZERO else None
    return None


def _pull_guarded(node: Expr, c: Expr | None, g: Expr) -> list[tuple[Expr, Expr | None]]:
    """What `0 if c == 0 else c * s` sends on: it stands for c * s, whose slope by c is s where c is 0 too."""
    assert isinstance(node, Select) and c is not None
    slope = mul(node.otherwise, power(c, -1), real=True)
    at_zero = select(node.condition, times(g, slope), ZERO)
    return [(c, at_zero), (node.otherwise, select(node.condition, ZERO, g))]


_BUILDER = Builder(times, add, call, compare, mul, neg, power, select, sub)


def _differentiable(node: Expr) -> tuple[Expr, ...]:
    """The operands through which a derivative can flow."""
    match node:
        case Call(op="stop"):
            return ()
        case Select(then=then, otherwise=otherwise):
            return then, otherwise
        case _:
            return children(node)


def _pull(node: Expr, g: Expr) -> list[tuple[Expr, Expr | None]]:
    """The cotangent that a node sends to each operand, over the node's axes."""
    match node:
        case Add(terms=pairs):
            return [(t, times(g, const(c))) for t, c in pairs]
        case Mul(coefficient=coefficient, factors=pairs):
            sent: list[tuple[Expr, Expr | None]] = []
            for index, (base, e) in enumerate(pairs):
                others = [power(b, p) for i, (b, p) in enumerate(pairs) if i != index]
                slope = mul(coefficient * e, power(base, e - 1), *others, real=True)
                sent.append((base, times(g, slope)))
            return sent
        case Call(op=op, args=args):
            return list(zip(args, PRIMITIVES[op].pull(_BUILDER, g, node, *args), strict=True))
        case Round(arg=arg):
            return [(arg, g)]
        case Reduce(op="sum", window=(), arg=arg):
            return [(arg, g)]
        case Reduce(op="sum", window=window, arg=arg):
            mirrored = tuple((axis, -high, -low) for axis, low, high in window)
            return [(arg, window_sum(g, mirrored, real=True))]
        case Reduce(over=over, arg=arg):
            # Equal shares to the elements that attain the extreme.
            attains = compare("==", arg, node)
            count = reduce("sum", over, select(attains, ONE, ZERO), real=True)
            return [(arg, select(attains, times(g, power(count, -1)), ZERO))]
        case Select(condition=condition, then=then, otherwise=otherwise):
            return [(then, select(condition, g, ZERO)), (otherwise, select(condition, ZERO, g))]
        case _:
            return []
