"""Group -> plan of a kernel of the columns family: what is reduced lies strided, what is kept contiguous.

The space is O x R x I: `across`, the innermost axes I, are kept and contiguous; `reduced`, R, are the axes of
the reductions; `outer`, O, are the rest. A thread owns a few neighbouring *columns*, each of them one element
of O x I, and walks along R; neighbouring threads own neighbouring columns, so that a warp reads whole lines.

    y[B, C, H, W] = exp(x - max[C](x)) / ...   O = [B], R = [C], I = [H, W]
    dw[C] = sum[B, H, W](dy * x)               a sum over columns: one value for each element of R

What is computed once per column, what for each element, and in which order, is what the rows family asks of
rows, so that a plan holds the answers in the same form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from normgen.ir.expr import Reduce, reductions, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Result, Tensor
from normgen.kernel.accumulators import Column, above
from normgen.kernel.group import Group, Misfit, Order, without
from normgen.kernel.plan import KernelPlan, Parts, kernel_plan


@dataclass(frozen=True, slots=True)
class ColumnsPlan(Parts):
    """One kernel of the columns family.

    `parts` is what it computes, with R in the place of a row's axes: its `inner` are the axes of R, its
    `kept` those of O, then of I; its `columns` are the sums over columns.
    """

    parts: KernelPlan
    outer: Order
    reduced: Order
    across: Order


def plan_columns(group: Group) -> ColumnsPlan:
    """The kernel of a group that reduces over strided axes; raises `Misfit` for any other."""
    if any(r.tensor.role == "state" for r in group.results):
        # running statistics come of long sums over a batch: better split over blocks than left to one
        raise group.misfit("updates a state")
    used, sums = group.read, reductions(*group.roots)
    order = _memory_order(group.space, [*(r.tensor for r in group.results), *used])
    reduced, across = _reduced_and_across(sums, order)
    outer = without(order, reduced + across)
    columns = _sums_over_columns(sums, outer, reduced, across, group.space)
    parts = kernel_plan(group, outer + across, reduced, columns)
    for tensor in {t.name: t for t in [*(r.tensor for r in parts.results), *used]}.values():
        _check_across(tensor, across)
    for result in parts.results:
        _check_direct(result, outer, reduced, across)
    for result in parts.finals:
        _check_final(result, columns, outer, reduced)
    return ColumnsPlan(parts, outer, reduced, across)


def _text(axes: Iterable[str]) -> str:
    return f"[{', '.join(axes)}]"


def _declaration(tensor: Tensor) -> str:
    return f"`{tensor.name}{_text(tensor.order)}`"


def _memory_order(space: Axes, tensors: list[Tensor]) -> Order:
    """The axes of the space in the memory order of a tensor that has all of them."""
    full = next((t for t in tensors if t.axes == space), None)
    if full is None:
        raise Misfit(f"no tensor has all of {_text(sorted(space))}, so these axes have no order in memory")
    return full.order


def _reduced_and_across(sums: list[Reduce], order: Order) -> tuple[Order, Order]:
    """R, the one set of axes that reductions along columns are over, and I, what lies within it in memory."""
    if any(s.window for s in sums):
        raise Misfit("it sums over a window, not over whole columns")
    if not sums:
        raise Misfit("it has no reduction")
    # A sum over columns takes the innermost axes too.
    along = {s.over for s in sums if order[-1] not in s.over}
    if len(along) != 1:
        found = ", ".join(sorted(_text(a for a in order if a in over) for over in along)) or "none"
        raise Misfit(
            f"a kernel can reduce over one set of axes without the innermost, {order[-1]}, not over {found}"
        )
    (over,) = along
    reduced = tuple(a for a in order if a in over)
    return reduced, order[order.index(reduced[-1]) + 1 :]


def _sums_over_columns(
    sums: list[Reduce], outer: Order, reduced: Order, across: Order, space: Axes
) -> tuple[Column, ...]:
    """The sums that take in every column once, for each element of R or over all of them."""
    found = []
    for node in sums:
        if node.over == frozenset(reduced):
            if node.arg.axes | set(reduced) != space:
                raise Misfit(f"a {node.op} over {_text(sorted(node.over))} has one value for several columns")
            continue
        if not set(across) <= node.over or node.over & set(reduced) not in (frozenset(), frozenset(reduced)):
            raise Misfit(f"a sum over {_text(sorted(node.over))} is neither along columns nor over them")
        if node.op != "sum" or node.arg.axes | set(reduced) != space:
            raise Misfit(f"a {node.op} over {_text(sorted(node.over))} does not cover every column once")
        kept = without(outer, node.over)
        found.append(Column(node, kept, bool(node.axes & set(reduced))))
    nodes = {c.reduce for c in found}
    if any(nodes & set(walk(n.arg)) for n in sums):
        raise Misfit("a reduction uses a sum over columns, which is known only at the end")
    return tuple(found)


def _check_across(tensor: Tensor, across: Order) -> None:
    """Innermost axes lie as those of the space do, or are picked one by one where some are missing."""
    mine = tuple(a for a in tensor.order if a in across)
    if mine == across and tensor.order[-len(across) :] != across:
        raise Misfit(f"{_declaration(tensor)} does not have {', '.join(across)} as its innermost axes")
    if set(mine) == set(across) and mine != across:
        raise Misfit(f"{_declaration(tensor)} has the axes {', '.join(across)} in another order")


def _check_direct(result: Result, outer: Order, reduced: Order, across: Order) -> None:
    """A column's result has a value for each column, or for each element of each column."""
    axes, tensor = result.tensor.axes, result.tensor
    if not set(outer + across) <= axes:
        raise Misfit(f"{_declaration(tensor)} does not have all of the axes {_text(outer + across)}")
    if set(reduced) & axes and not set(reduced) <= axes:
        raise Misfit(f"{_declaration(tensor)} has only some of the axes {_text(reduced)}")


def _check_final(result: Result, columns: tuple[Column, ...], outer: Order, reduced: Order) -> None:
    """What is made of sums over columns has their shape, R contiguous: it is written where they are added."""
    tensor, present = result.tensor, set(walk(result.expr))
    mine = [c for c in columns if c.reduce in present]
    if any(c.reduce.axes != tensor.axes for c in mine) or len({(c.kept, c.wide) for c in mine}) != 1:
        raise Misfit(f"{_declaration(tensor)} does not have the axes of the sums that it uses")
    wanted = mine[0].kept + (reduced if mine[0].wide else ())
    if tensor.order != wanted:
        raise Misfit(f"{_declaration(tensor)} is not declared in the order {_text(wanted)}")
    if any(isinstance(n, Reduce) for n in above([result.expr], frozenset(c.reduce for c in mine))):
        raise Misfit(f"{_declaration(tensor)} mixes sums along columns with sums over columns")
