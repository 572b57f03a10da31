"""Group -> tiles plan: elementwise results in two memory orders that exchange two blocks of axes.

A kernel of the tiles family covers a matrix of *rows* by *columns* with tiles; `batch` axes number such
matrices. What lies in the order batch + rows + columns is *straight*: a thread reads and writes runs of
columns. What lies in the order batch + columns + rows is *turned*: it passes through shared memory, so that
memory sees runs of rows.

    output q [..., (G E)] = x / scale      straight: rows [...], columns [G, E]
    output qt[(G E), ...] = x / scale      turned
"""

from __future__ import annotations

from dataclasses import dataclass

from normgen.ir.expr import reductions
from normgen.ir.nodes import Axes
from normgen.ir.program import Tensor
from normgen.kernel.group import Group, Misfit, Order
from normgen.kernel.plan import KernelPlan, Operand, Parts, elementwise_plan


@dataclass(frozen=True, slots=True)
class TilesPlan(Parts):
    """One kernel of the tiles family.

    An operand's `inner` are its innermost axes, all columns (straight) or all rows (turned), in contiguous
    runs; () for what is read element by element. Its `kept` are the others.
    """

    parts: KernelPlan  # what it computes, as rows over the columns
    batch: Order  # the axes that number matrices
    rows: Order
    columns: Order
    operands: tuple[Operand, ...]
    targets: tuple[Operand, ...]  # what it writes


def plan_tiles(group: Group) -> TilesPlan:
    """The kernel of a group; raises `Misfit` unless it is elementwise and its whole tensors lie in two orders
    that exchange two blocks of axes.
    """
    program, space = group.program, group.space
    if reductions(*group.roots):
        raise Misfit(f"`{program.name}` has a reduction, and results with two orders in memory")
    used = [o.tensor for o in elementwise_plan(group, ()).operands]
    targets = [r.tensor for r in group.results]
    for tensor in targets:
        if tensor.axes != space:
            raise Misfit(f"`{tensor.name}` does not have all axes of the values that it is computed from")
    batch, rows, columns = _blocks(*_orders(used, targets, space))
    turned = [t for t in (*used, *targets) if _ends(t, rows, columns)]
    params = {f"d{t.name}" for t in program.operands if t.role == "param"}
    for tensor in turned:
        if tensor.name in params:  # what its memory holds may have to be added, and a tile is rounded already
            raise Misfit(f"`{tensor.name}` is transposed with respect to what it is computed from")
    return TilesPlan(
        parts=elementwise_plan(group, batch + rows, columns),
        batch=batch,
        rows=rows,
        columns=columns,
        operands=tuple(_operand(t, batch, rows, columns, t in turned) for t in used),
        targets=tuple(_operand(t, batch, rows, columns, t in turned) for t in targets),
    )


def _orders(used: list[Tensor], targets: list[Tensor], space: Axes) -> tuple[Order, Order]:
    """The two memory orders of the tensors that have all axes: first that of more operands, or of more
    results.
    """
    whole = [t for t in (*used, *targets) if t.axes == space]
    orders = list(dict.fromkeys(t.order for t in whole))
    if len(orders) != 2:
        how = "one memory order" if len(orders) < 2 else "more than two memory orders"
        raise Misfit(f"{', '.join(f'`{t.name}`' for t in whole)} have {how}")
    read, written = [t.order for t in used], [t.order for t in targets]
    first, second = sorted(orders, key=lambda o: (-read.count(o), -written.count(o), orders.index(o)))
    return first, second


def _blocks(first: Order, second: Order) -> tuple[Order, Order, Order]:
    """(batch, rows, columns) such that the orders are batch + rows + columns and batch + columns + rows."""
    shared = next(k for k, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    batch, straight, turned = first[:shared], first[shared:], second[shared:]
    at = straight.index(turned[0])
    rows, columns = straight[:at], straight[at:]
    if columns + rows != turned:
        raise Misfit(f"[{', '.join(first)}] and [{', '.join(second)}] do not exchange two blocks of axes")
    return batch, rows, columns


def _ends(tensor: Tensor, rows: Order, columns: Order) -> bool:
    """Whether the tensor has all rows and columns, and runs of rows in memory."""
    return tensor.axes >= set(rows + columns) and tensor.order[-len(rows) :] == rows


def _operand(tensor: Tensor, batch: Order, rows: Order, columns: Order, turned: bool) -> Operand:
    every = batch + rows + columns
    straight = tensor.order[-len(columns) :] == columns
    if not (turned or straight) and tensor.axes >= set(rows + columns):
        raise Misfit(f"`{tensor.name}[{', '.join(tensor.order)}]` is contiguous along neither block")
    inner = rows if turned else columns if straight else ()
    return Operand(tensor, tuple(a for a in every if a in tensor.axes and a not in inner), inner)
