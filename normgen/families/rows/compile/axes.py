"""Which axes of a group are a row of the rows family, and which number the rows.

`inner` are the axes of a row, contiguous in memory; `kept` are the others. A reduction is over the inner
axes, or it is an accumulator: over kept ones, or in shared rows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from normgen.ir.expr import Load, Reduce, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Program, Result
from normgen.kernel.accumulators import Column, above, accumulators
from normgen.kernel.group import Group, Misfit, Order, memory_order

# The axes that number the rows, those of a row, and the accumulators.
Rows = tuple[Order, Order, tuple[Column, ...]]
SHORT = 1024  # elements of a row that keep fewer than a block busy


def choose_rows(group: Group, sums: list[Reduce]) -> Rows:
    """The rows over which these reductions of a group can be had; raises `Misfit`."""
    order = axis_order(group)
    fitting = (_rows_of(inner, order, group, sums) for inner in _inner_candidates(order, group.program))
    found = next(filter(None, fitting), None)
    if found is None:
        over = ", ".join(sorted({f"[{', '.join(sorted(s.over))}]" for s in sums}))
        raise Misfit(
            f"`{group.program.name}` reduces over {over}, "
            f"which are not the innermost contiguous axes of [{', '.join(order)}]"
        )
    return _widened(found, order, group, sums)


def choose_shared_rows(group: Group, sums: list[Reduce]) -> Rows:
    """Rows of all trailing axes that everything reduces, each reduction an accumulator; raises `Misfit`."""
    order = axis_order(group)
    common = frozenset(order).intersection(*(s.over for s in sums))
    cut = next((k for k in range(len(order)) if set(order[k:]) <= common), len(order))
    kept, inner = order[:cut], order[cut:]
    columns = accumulators([r.expr for r in group.results], kept, inner, within=True)
    nodes = frozenset(n for c in columns or () for n in c.nodes)
    whole = all(s.arg.axes | set(inner) == group.space for s in sums)
    if (
        columns is None
        or not whole
        or not all(is_settled(r, columns, frozenset(inner)) for r in group.results)
        or not all(nodes & set(walk(r.expr)) for r in group.results)
    ):
        raise Misfit(f"`{group.program.name}` is not made of reductions over rows of [{', '.join(order)}]")
    return kept, inner, columns


def choose_folded_rows(group: Group, sums: list[Reduce]) -> Rows:
    """Rows of the innermost axes that everything reduces, and of the dimension around them that nothing does,
    where further axes are reduced too: moments of each element, which blocks fold; raises `Misfit`.

        mean[C, ...](x) of x[B, ..., (G C)]       rows [B, ...] of [G, C], and of these [C] is folded
    """
    order = axis_order(group)
    over = frozenset(order).intersection(*(s.over for s in sums))
    folded = trailing(order, over)
    around = order[: len(order) - len(folded)]
    inner = trailing(around, _dimension(around[-1:], group.program) - over) + folded
    row, kept = frozenset(inner), order[: len(order) - len(inner)]
    found = accumulators([r.expr for r in group.results], kept, inner, within=True) or ()
    columns = tuple(replace(c, folded=folded) for c in found)
    nodes = frozenset(n for c in columns for n in c.nodes)
    if (
        not folded
        or row <= over
        or over <= row
        or any(c.op != "moments" or c.reduce.over != over for c in columns)
        or any(s.arg.axes | row != group.space for s in sums)
        or not all(nodes & set(walk(r.expr)) and is_settled(r, columns, row) for r in group.results)
    ):
        raise Misfit(f"`{group.program.name}` has no moments of neighbours in rows of [{', '.join(order)}]")
    return kept, inner, columns


def _dimension(axes: Order, program: Program) -> Axes:
    """The axes that share a dimension with these, in the tensor that has most axes."""
    tensors = sorted(program.operands, key=lambda t: -len(t.axes))
    found = (dim for t in tensors for dim in t.dims if set(axes) & set(dim))
    return frozenset(next(found, axes))


def trailing(order: Order, axes: Axes) -> Order:
    """The last axes of an order, as far as they are among these."""
    return next((order[k:] for k in range(len(order)) if set(order[k:]) <= axes), ())


def _widened(found: Rows, order: Order, group: Group, sums: list[Reduce]) -> Rows:
    """The longest rows that do as well, where every row is only a part of what is accumulated."""
    for inner in _longer(found[1], order):
        row = frozenset(inner)
        longer = _rows_of(inner, order, group, sums)
        narrow = sums and all(row < node.over for node in sums)
        whole = all(
            n.axes & row in (frozenset(), row)
            for r in group.results
            for n in walk(r.expr)
            if isinstance(n, Load)
        )
        if longer is None or not narrow or not whole:
            break
        found = longer
    return found


def _longer(inner: Order, order: Order) -> list[Order]:
    return [order[i:] for i in range(len(order) - len(inner) - 1, -1, -1)]


def axis_order(group: Group) -> Order:
    operands = {t.name: t for t in group.program.operands}
    read = [operands[n.tensor] for n in walk(*(r.expr for r in group.results)) if isinstance(n, Load)]
    return memory_order(group.space, [*(r.tensor for r in group.results), *read])


def _inner_candidates(order: Order, program: Program) -> list[Order]:
    """Trailing axes, the shortest first, but before them those that are whole dimensions of an array, since a
    part of one is short: 10 channels of a group. Rows that the spec makes very short go next to last, before
    all axes in one row. An elementwise value over a single axis has rows of one element.
    """
    if len(order) == 1:
        return [order, ()]
    extents = {axis.name: axis.extent for axis in program.axes}

    def is_short(inner: Order) -> bool:
        fixed = [extents.get(axis) for axis in inner]
        return prod(n for n in fixed if n is not None) < SHORT if None not in fixed else False

    tensors = (*program.operands, *(r.tensor for r in program.results))
    parts = {group[1:] for t in tensors for group in t.dims}
    parts = {part[i:] for part in parts for i in range(len(part))}

    def is_part(inner: Order) -> bool:
        return any(inner[: len(part)] == part for part in parts if part)

    candidates = [order[i:] for i in range(len(order) - 1, 0, -1)]
    return [*sorted(candidates, key=lambda inner: (is_short(inner), is_part(inner))), order]


def _rows_of(inner: Order, order: Order, group: Group, sums: list[Reduce]) -> Rows | None:
    """The kept and inner axes, and the accumulators, if rows over these inner axes do for every reduction."""
    row, kept = frozenset(inner), tuple(a for a in order if a not in inner)
    if not sums and len(group.space) == 1:
        # elementwise over one axis: one element a row, so that its length stays a runtime value
        return None if inner else (kept, inner, ())
    for node in sums:
        if node.over & row not in (frozenset(), row):
            return None
        if node.over - row and node.arg.axes | row != group.space:
            return None  # an accumulator must see every row of the kernel exactly once
    columns = accumulators([r.expr for r in group.results], kept, inner)
    if columns is None or not all(is_settled(r, columns, row) for r in group.results):
        return None
    return kept, inner, columns


def is_settled(result: Result, columns: tuple[Column, ...], row: Axes) -> bool:
    """Whether a result that is made of accumulators has their shape, and of nothing else that rows compute:
    it is written where they are finalised.
    """
    below = set(walk(result.expr))
    mine = [c for c in columns if below & set(c.nodes)]
    rest = list(above([result.expr], frozenset(n for c in mine for n in c.nodes)))
    if not mine:
        return True
    return (
        all(c.reduce.axes == result.tensor.axes for c in mine)
        and not any(isinstance(n, Reduce) for n in rest)
        and all(n.axes & row in (frozenset(), row) for n in rest if isinstance(n, Load))
    )
