"""Rows that only thread groups that hold them can have: those summed in parts besides, and those in pieces.

The statistics of a group of channels are sums over all of it; the gradients of what scales and shifts a
channel are sums over its places, or over those of all samples. A thread group that has the group reads it
once for both: it exchanges the sums of the row, and leaves partials of those that keep the outer axes of
the row.

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

from normgen.families.rows.compile.axes import Rows, axis_order, trailing
from normgen.ir.expr import Add, Expr, Load, Mul, Reduce, add, mul, power, reduce, reductions, rewrite, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Result
from normgen.kernel.accumulators import Column
from normgen.kernel.group import Group, Order, without


def whole_rows(group: Group) -> Rows:
    """The rows of a group, as reductions over them can be had; raises `Misfit`."""
    order = axis_order(group)
    for cut in range(1, len(order)):
        rows = _parted(group, order[:cut], order[cut:])
        parts = {c.part for c in rows.columns}
        exchanges = len(rows.columns) < len(reductions(*rows.group.roots))
        outermost = all(0 < len(p) < len(rows.inner) and p == rows.inner[: len(p)] for p in parts)
        if exchanges and len(parts) == 1 and outermost and _adds_up(rows):
            return rows
    raise group.misfit("keeps no outer axes of rows")


def rows_in_pieces(group: Group) -> Rows:
    """The rows of a group in pieces, as reductions over them can be had; raises `Misfit`."""
    order = axis_order(group)
    # others than are reduced with the innermost axis are reduced piece by piece
    row = next((n.over for n in reductions(*group.roots) if order[-1] in n.over), frozenset())
    inner, kept = (tuple(a for a in order if (a in row) == within) for within in (True, False))
    contiguous = trailing(order, row)
    pieces = inner[: len(inner) - len(contiguous)]
    rows = _parted(group, kept, inner)
    if (
        not kept
        or not contiguous
        or not pieces
        or not _comes_in(rows, frozenset(pieces), frozenset(contiguous))
        or not _adds_up(rows)
        or any(r.tensor.role == "state" and r.tensor.axes != set(kept) for r in group.results)
        or _states_read(group)
    ):
        raise group.misfit("has no rows in pieces")
    return replace(rows, pieces=pieces)


def _comes_in(rows: Rows, pieces: Axes, contiguous: Axes) -> bool:
    """Whether accumulators add up whole pieces, operands have pieces or rows whole, and results rows."""
    across, roots = {c.reduce for c in rows.columns}, rows.group.roots
    loads = {n.axes & rows.row for n in walk(*roots) if isinstance(n, Load)}
    stored = {r.tensor.axes & rows.row for r in rows.group.results if across.isdisjoint(walk(r.expr))}
    return (
        not any(n.window for n in reductions(*roots))
        and all(n.over & rows.row == pieces for n in across)
        and loads <= {frozenset(), contiguous, rows.row}
        and stored <= {frozenset(), rows.row}
    )


def _parted(group: Group, kept: Order, inner: Order) -> Rows:
    """Such rows, of which accumulators keep some axes."""
    row = frozenset(inner)
    gathered = replace(group, results=tuple(_gathered(r, row) for r in group.results))
    across = [n for n in reductions(*gathered.roots) if n.over != row]
    columns = (Column(n, without(kept, n.over), False, part=without(inner, n.over)) for n in across)
    return Rows(gathered, kept, inner, tuple(columns))


def _adds_up(rows: Rows) -> bool:
    """Whether each row has sums of its own, and accumulators are sums that take in each element once, and
    nothing of one another."""
    across = [c.reduce for c in rows.columns]
    if any(n.arg.axes | rows.row != rows.group.space for n in reductions(*rows.group.roots)):
        return False
    plain = all(n.op == "sum" and n.arg.axes == rows.group.space for n in across)
    return plain and rows.settled and not any(set(across) & set(walk(n.arg)) for n in across)


def _states_read(group: Group) -> bool:
    """Whether something is made of a state that is updated but states, which one thread of a thread group
    writes."""
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
