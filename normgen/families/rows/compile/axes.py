"""Which axes of a group are a row of the rows family, and which number the rows.

`inner` are the axes of a row, contiguous in memory; `kept` are the others. A reduction is over the inner
axes, or it is an accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from normgen.ir.expr import Load, Reduce, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Program, Result
from normgen.kernel.accumulators import Column, above, accumulators
from normgen.kernel.group import Group, Order, memory_order, without

SHORT = 1024  # elements of a row that keep fewer than a block busy


@dataclass(frozen=True, slots=True)
class Rows:
    """The axes that number the rows of a group, those of a row, and what is accumulated over rows.

    `group`: with expressions of which reductions over these rows can be had. `pieces`: the axes that number
    the pieces of a row, where it is in several.
    """

    group: Group
    kept: Order
    inner: Order
    columns: tuple[Column, ...]
    pieces: Order = ()

    @property
    def row(self) -> Axes:
        """The axes of a row, in no order."""
        return frozenset(self.inner)

    @property
    def settled(self) -> bool:
        """Whether what is made of accumulators can be written in the second stage."""
        return all(_is_settled(r, self.columns, self.row) for r in self.group.results)

    def only_accumulates(self, sums: list[Reduce]) -> bool:
        """Whether every result is made of accumulators that take in every element of each row."""
        nodes = frozenset(n for c in self.columns for n in c.nodes)
        made = all(nodes & set(walk(root)) for root in self.group.roots)
        return self.settled and made and all(s.arg.axes | self.row == self.group.space for s in sums)


def choose_rows(group: Group, sums: list[Reduce]) -> Rows:
    """The rows over which these reductions of a group can be had; raises `Misfit`."""
    order = axis_order(group)
    fitting = (_rows_of(inner, order, group, sums) for inner in _inner_candidates(order, group.program))
    found = next(filter(None, fitting), None)
    if found is None:
        over = ", ".join(sorted({f"[{', '.join(sorted(s.over))}]" for s in sums}))
        raise group.misfit(
            f"reduces over {over}, which are not the innermost contiguous axes of [{', '.join(order)}]"
        )
    return _widened(found, order, sums)


def choose_folded_rows(group: Group, sums: list[Reduce]) -> Rows:
    """Rows of the innermost axes that everything reduces, and of the dimension around them that nothing does,
    where further axes are reduced too: moments of each element, which blocks fold; raises `Misfit`.

        mean[C, ...](x) of x[B, ..., (G C)]       rows [B, ...] of [G, C], and of these [C] is folded
    """
    order = axis_order(group)
    over = group.space.intersection(*(s.over for s in sums))
    folded = trailing(order, over)
    around = order[: len(order) - len(folded)]
    inner = trailing(around, _dimension(around[-1:], group.program) - over) + folded
    kept = order[: len(order) - len(inner)]
    columns = accumulators(group.roots, kept, inner) or ()
    rows = Rows(group, kept, inner, tuple(replace(c, folded=folded) for c in columns))
    apart = folded and not (rows.row <= over or over <= rows.row)
    moments = all(c.op == "moments" and c.reduce.over == over for c in rows.columns)
    if not (apart and moments and rows.only_accumulates(sums)):
        raise group.misfit(f"has no moments of neighboring elements in rows of [{', '.join(order)}]")
    return rows


def _dimension(axes: Order, program: Program) -> Axes:
    """The axes that share a dimension with these, in the tensor that has most axes."""
    tensors = sorted(program.operands, key=lambda t: -len(t.axes))
    found = (dim for t in tensors for dim in t.dims if set(axes) & set(dim))
    return frozenset(next(found, axes))


def trailing(order: Order, axes: Axes) -> Order:
    """The last axes of an order, as far as they are among these."""
    return next((order[k:] for k in range(len(order)) if set(order[k:]) <= axes), ())


def _widened(found: Rows, order: Order, sums: list[Reduce]) -> Rows:
    """The longest rows that do as well, where every row is only a part of what is accumulated."""
    group = found.group
    for start in range(len(order) - len(found.inner) - 1, -1, -1):
        longer = _rows_of(order[start:], order, group, sums)
        if longer is None or not sums or not all(longer.row < node.over for node in sums):
            break
        if any(t.axes & longer.row not in (frozenset(), longer.row) for t in group.read):
            break
        found = longer
    return found


def axis_order(group: Group) -> Order:
    """The axes of a group as they lie in memory."""
    return memory_order(group.space, [*(r.tensor for r in group.results), *group.read])


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
    """Rows of these axes, if they do for every reduction."""
    row, kept = frozenset(inner), without(order, inner)
    if not sums and len(group.space) == 1:
        # elementwise over one axis: one element a row, so that its length stays a runtime value
        return None if inner else Rows(group, kept, inner, ())
    for node in sums:
        if node.over & row not in (frozenset(), row):
            return None
        if node.arg.axes | row != group.space:
            return None  # each row has sums of its own, and accumulators see each row exactly once
    columns = accumulators(group.roots, kept, inner)
    rows = None if columns is None else Rows(group, kept, inner, columns)
    return rows if rows and rows.settled else None


def _is_settled(result: Result, columns: tuple[Column, ...], row: Axes) -> bool:
    """Whether a result that is made of accumulators has their shape, and of nothing else that rows compute:
    it is written in the second stage.
    """
    below = set(walk(result.expr))
    mine = [c for c in columns if below & set(c.nodes)]
    rest = list(above([result.expr], frozenset(n for c in mine for n in c.nodes)))
    return not mine or (
        all(c.reduce.axes == result.tensor.axes for c in mine)
        and not any(isinstance(n, Reduce) for n in rest)
        and all(n.axes & row in (frozenset(), row) for n in rest if isinstance(n, Load))
    )
