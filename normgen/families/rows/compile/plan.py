"""Program -> kernel plans: which axes are rows, what is reduced when, what is summed over rows.

A kernel of the rows family gives each row to a thread group. `inner` are the axes of a row, contiguous in
memory; `kept` are the others, which number the rows. A reduction over exactly the inner axes is a *row
sum*: row sums of one dependency level share one exchange between the threads of the thread group. A sum
over kept axes is a *column sum*: it is added up over the rows of a block, leaves as one partial per block,
and a second kernel adds the partials.

A row that is reduced whole may be summed in parts besides: each run of its elements that lanes side by side
have leaves a partial. And it may lie in pieces, where the axes of a row are on both sides of a kept one;
pieces may be added up besides.

    y = x * rsqrt(mean[D](x^2) + eps) * w      one level {sum[D](x^2)}, then y; no column sums
    dw = sum[...](dy * x * rstd)               a column sum, wide: one value for each element of the row
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from normgen.families.rows.compile.axes import Rows, choose_folded_rows, choose_rows
from normgen.families.rows.compile.whole import rows_in_pieces, whole_rows
from normgen.ir.expr import Expr, Load, Reduce, add, mul, reduce, reductions, walk
from normgen.ir.program import Result, Tensor, made_of_cotangents
from normgen.kernel.accumulators import Column
from normgen.kernel.group import Group, Misfit, Order
from normgen.kernel.levels import Level
from normgen.kernel.linear import largest_of, terms_of
from normgen.kernel.plan import KernelPlan, Operand, kernel_plan


def plan_rows(group: Group) -> KernelPlan:
    """The kernel of a group whose reductions are over rows, or over all of them; raises `Misfit`."""
    return _kernel(choose_rows(group, _sums(group)))


def plan_folded(group: Group) -> KernelPlan:
    """The kernel of a group of nothing but moments over the innermost axes and over rows, where blocks merge
    those of neighbouring elements; raises `Misfit`.
    """
    return _kernel(choose_folded_rows(group, _some_sums(group)))


def plan_whole(group: Group) -> KernelPlan:
    """The kernel of a group whose rows are reduced whole, and in parts, by thread groups that hold them;
    raises `Misfit`."""
    _sums(group)
    return _kernel(whole_rows(group))


def plan_in_pieces(group: Group) -> KernelPlan:
    """The kernel of a group whose rows lie in several pieces, by thread groups that hold them; raises
    `Misfit`."""
    return _kernel(rows_in_pieces(group))


def plan_told(group: Group) -> KernelPlan:
    """The kernel of a group whose rows ranks share, and tell each other of; raises `Misfit`."""
    plan = _kernel(choose_rows(group, _sums(group)))
    rows = frozenset(plan.kept)
    if plan.columns or plan.segment or any(value.axes != rows for n in plan.told for value in n.values):
        raise group.misfit("accumulates over rows, or exchanges values that are not per row")
    if len({node.values for node in plan.told}) != 1 or any(n.axes & set(plan.inner) for n in plan.told):
        raise group.misfit("does not have exactly one exchange between ranks per row")
    return plan


def _sums(group: Group) -> list[Reduce]:
    """The reductions of a group, none of them over a window."""
    sums = reductions(*group.roots)
    if any(s.window for s in sums):
        raise group.misfit("sums over a window")
    return sums


def _some_sums(group: Group) -> list[Reduce]:
    sums = _sums(group)
    if not sums:
        raise group.misfit("reduces nothing")
    return sums


def _kernel(rows: Rows) -> KernelPlan:
    """The plan of a group with these rows."""
    group, inner, row, columns = rows.group, rows.inner, rows.row, rows.columns
    plan = kernel_plan(group, rows.kept, inner, columns, rows.pieces)
    for tensor in [*(r.tensor for r in group.results), *group.read]:
        _check_layout(tensor, plan.piece)
    _check_states(plan.results, plan.finals, () if rows.pieces else inner)
    for result in plan.results:
        if result.tensor.axes & row and not row <= result.tensor.axes:
            raise Misfit(f"`{result.tensor.name}` has only part of a row")
    if len(plan.levels) > (2 if plan.moments or plan.exponentials else 0):
        last = plan.levels[-1]  # the last pass of sums is one of nothing else
        gradients = made_of_cotangents(group.program.operands, *(c.value for c in columns))
        columns = tuple(_taken_apart(c, last, inner, gradients) for c in columns)
        if not any(r.tensor.axes & row for r in plan.results):
            columns = _all_largest(columns, last, inner)
    segment = plan.segment
    if not columns and not plan.levels and all(r.tensor.axes & row for r in plan.results):
        segment = _shared_along(plan.operands, rows.kept)
    return replace(plan, columns=columns, segment=segment)


def _taken_apart(column: Column, last: Level, inner: Order, gradients: Collection[Expr]) -> Column:
    """A sum over rows of what the last pass of sums over each row adds up anyway, as one of that."""
    if column.op != "sum" or column.wide or not column.value.axes & set(inner):
        return column
    row, sums = frozenset(inner), frozenset(last.sums)
    terms = terms_of(column.value, row - set(column.part), sums, gradients)
    if column.part:
        return replace(column, terms=() if any(c.axes & row for c, _ in terms) else terms)
    found = [(c, reduce("sum", row, v)) for c, v in terms]
    known = bool(found) and all(total in sums for _, total in found)
    return replace(column, row=add(*(mul(c, total) for c, total in found))) if known else column


def _all_largest(columns: tuple[Column, ...], last: Level, inner: Order) -> tuple[Column, ...]:
    """The columns as what the last pass of sums finds besides, if that spares rows the pass after it."""
    if not all(c.op == "max" and not c.wide and not c.part for c in columns):
        return columns
    row, sums = frozenset(inner), frozenset(last.sums)
    found = tuple(replace(c, terms=largest_of(c.value, row, sums)) for c in columns)
    return found if all(c.terms for c in found) else columns


def _shared_along(operands: tuple[Operand, ...], kept: Order) -> Order:
    """The outermost axes within which rows share every operand that has part of the kept axes: a block that
    stays within them loads it once."""
    partial = [set(o.kept) for o in operands if o.inner and o.kept != kept]
    count = max((kept.index(axis) + 1 for axes in partial for axis in axes), default=0)
    return kept[:count] if count < len(kept) and all(axes <= set(kept[:count]) for axes in partial) else ()


def _check_states(direct: tuple[Result, ...], finals: tuple[Result, ...], inner: Order) -> None:
    """A state is read whole before it is written: by the thread that writes it, or not at all."""
    read = {n.tensor for r in (*direct, *finals) for n in walk(r.expr) if isinstance(n, Load)}
    late = {n.tensor for r in finals for n in walk(r.expr) if isinstance(n, Load)}
    for result in direct:
        name = result.tensor.name
        if result.tensor.role == "state" and name in (read if inner else late):
            raise Misfit(f"`{name}` is updated while the kernel still reads rows")
    for result in finals:
        for other in finals:
            reads = any(isinstance(n, Load) and n.tensor == result.tensor.name for n in walk(other.expr))
            if result.tensor.role == "state" and reads and other.tensor.axes != result.tensor.axes:
                raise Misfit(
                    f"`{other.tensor.name}` is computed from `{result.tensor.name}`, which is updated"
                )


def _check_layout(tensor: Tensor, inner: Order) -> None:
    mine = tuple(a for a in tensor.order if a in inner)
    if mine != tuple(a for a in inner if a in mine) or (
        mine == inner and inner and tensor.order[-len(inner) :] != inner
    ):
        raise Misfit(
            f"`{tensor.name}[{', '.join(tensor.order)}]` does not have {', '.join(inner)} "
            "as its innermost axes"
        )
