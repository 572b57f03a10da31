"""Rows that only teams that hold them can have: those summed in parts besides, and those in pieces.

The statistics of a group of channels are sums over all of it; the gradients of what scales and shifts a
channel are sums over its places, or over those of all samples. A team that has the group reads it once for
both: it exchanges the sums of the row, and leaves partials of those that keep the outer axes of the row.

    dx = f(sum[C, ...](w dy)), db = sum[B, ...](dy)       rows [B, G] of [C, ...]; db keeps [G] and [C]

The statistics of a channel are sums over samples and places, on both sides of it in memory: a row of as many
pieces as there are samples. Where a cluster holds it, it too is read once.

    mu = mean[B, ...](x), y[B, C, ...] = x - mu           rows [C] of [B, ...], in pieces [B]

Where channels come last, the row of a group is in pieces too, one for each pixel; and its pieces may be added
up, channel by channel, for the gradients of gains.

    dx = f(sum[..., C](w dy)), db = sum[B, ...](dy)       rows [B, G] of [..., C]; db keeps [G] and [C]
"""

from __future__ import annotations

from dataclasses import replace

from normgen.families.rows.compile.axes import Rows, axis_order, is_settled, trailing
from normgen.ir.expr import Add, Expr, Load, Mul, Reduce, add, mul, power, reduce, reductions, rewrite, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Result
from normgen.kernel.accumulators import Column
from normgen.kernel.group import Group, Misfit, Order


def whole_rows(group: Group) -> tuple[Group, Rows]:
    """The rows of a group, as reductions over them can be had; raises `Misfit`."""
    order = axis_order(group)
    for cut in range(1, len(order)):
        kept, inner = order[:cut], order[cut:]
        row = frozenset(inner)
        gathered = replace(group, results=tuple(_gathered(r, row) for r in group.results))
        sums = reductions(*(r.expr for r in gathered.results))
        across = [n for n in sums if n.over != row]
        parts = {tuple(a for a in inner if a not in n.over) for n in across}
        part = next(iter(parts), ())
        columns = tuple(
            Column(n, tuple(a for a in kept if a not in n.over), False, part=part) for n in across
        )
        if (
            len(across) < len(sums)
            and len(parts) == 1
            and 0 < len(part) < len(inner)
            and part == inner[: len(part)]
            and all(n.op == "sum" and n.arg.axes == group.space for n in across)
            and not any(set(across) & set(walk(n.arg)) for n in across)
            and all(is_settled(r, columns, row) for r in gathered.results)
        ):
            return gathered, (kept, inner, columns)
    raise Misfit(f"`{group.program.name}` keeps no outer axes of rows")


def rows_in_pieces(group: Group) -> tuple[Group, Rows, Order]:
    """The group as reductions over its rows in pieces can be had, those rows, and the axes that number their
    pieces; raises `Misfit`."""
    order = axis_order(group)
    row = _row_in_pieces(order, group)
    gathered = replace(group, results=tuple(_gathered(r, row) for r in group.results))
    roots = [r.expr for r in gathered.results]
    sums = reductions(*roots)
    inner, kept = (tuple(a for a in order if (a in row) == within) for within in (True, False))
    contiguous = trailing(order, row)
    pieces = inner[: len(inner) - len(contiguous)]
    across = [n for n in sums if n.over != row]
    columns = tuple(
        Column(n, tuple(a for a in kept if a not in n.over), False, part=contiguous) for n in across
    )
    loads = [n.axes & row for n in walk(*roots) if isinstance(n, Load)]
    stored = [r.tensor.axes & row for r in gathered.results if not set(across) & set(walk(r.expr))]
    if (
        not kept
        or not contiguous
        or not pieces
        or any(n.window for n in sums)
        or any(n.op != "sum" or n.over & row != set(pieces) for n in across)
        or any(n.arg.axes != group.space or set(across) & set(walk(n.arg)) for n in across)
        or not all(is_settled(r, columns, row) for r in gathered.results)
        or any(each not in (frozenset(), frozenset(contiguous), row) for each in loads)
        or any(each not in (frozenset(), row) for each in stored)
        or any(r.tensor.role == "state" and r.tensor.axes != set(kept) for r in group.results)
        or _states_read(group)
    ):
        raise Misfit(f"`{group.program.name}` has no rows in pieces")
    return gathered, (kept, inner, columns), pieces


def _row_in_pieces(order: Order, group: Group) -> Axes:
    """The axes that are reduced with the innermost one; others are reduced piece by piece."""
    sums = reductions(*(r.expr for r in group.results))
    return next((n.over for n in sums if order[-1] in n.over), frozenset())


def _states_read(group: Group) -> bool:
    """Whether something is made of a state that is updated but states, which one thread of a team writes."""
    updated = {r.tensor.name for r in group.results if r.tensor.role == "state"}
    others = [r.expr for r in group.results if r.tensor.name not in updated]
    return any(isinstance(n, Load) and n.tensor in updated for n in walk(*others))


def _gathered(result: Result, row: Axes) -> Result:
    """The result with sums over parts of rows that take in what is known of the row: sum(a) - m sum(b), for
    a sum m of the row, as sum(a - m b), which is known when all rows are."""
    table: dict[Expr, Expr] = {}
    for node in walk(result.expr):
        found = reductions(node) if isinstance(node, Add) else []
        across = {n.over for n in found if n.over != row}
        if len(across) == 1 and len(found) > len([n for n in found if n.over != row]):
            (over,) = across
            body = _below(node, over)
            if body is not None:
                table[node] = reduce("sum", over, body)
    return replace(result, expr=rewrite(result.expr, table))


def _below(node: Expr, over: Axes) -> Expr | None:
    """What the node is the sum of over these axes; None where it is not linear in such sums."""
    match node:
        case Reduce(op="sum", over=axes, window=(), arg=arg) if axes == over:
            return arg
        case Add(terms=terms):
            bodies = [_below(term, over) for term, _ in terms]
            if any(body is None for body in bodies):
                return None
            return add(
                *(mul(c, body) for body, (_, c) in zip(bodies, terms, strict=True) if body is not None)
            )
        case Mul(coefficient=c, factors=factors):
            linear = [(base, _below(base, over)) for base, e in factors if e == 1]
            sums = [(base, body) for base, body in linear if body is not None]
            rest = [power(base, e) for base, e in factors if base not in dict(sums)]
            if len(sums) != 1 or any(each.axes & over for each in rest):
                return None
            return mul(c, sums[0][1], *rest)
        case _:
            return None
