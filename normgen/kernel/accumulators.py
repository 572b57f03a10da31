"""What is accumulated over rows: sums, maxima, minima, and the moments of a value in one pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from normgen.ir.centre import as_mean
from normgen.ir.expr import Call, Expr, Load, Reduce, power, walk
from normgen.ir.nodes import Axes
from normgen.kernel.group import Order, without
from normgen.kernel.levels import Moments
from normgen.kernel.linear import Terms


@dataclass(frozen=True, slots=True)
class Column:
    """An accumulator over rows, of `reduce.arg`: a sum, maximum or minimum; or with `moments`, the sum of v
    and what else one pass finds, the sums of c = v - mean and c^2.

    `kept`: the kept axes it keeps; `wide`: one value for each element of the row, not one in all. `part`: the
    outer axes of the row that it keeps, where it keeps some: one value for each run of the others; of a row
    in pieces the axes of a piece. `folded`:
    the innermost axes of the row, where it has one value for each element of the others: threads have one for
    each element, and a block merges those when it has seen all of its rows. `terms`:
    the pairs (c, v) whose sums of v, times c, are what a part adds; or the one whose largest v, times c, is
    what a thread takes in of a row. `row`: what a row adds, where its own sums say that.
    """

    reduce: Reduce
    kept: Order
    wide: bool
    moments: Moments | None = None
    part: Order = ()
    terms: Terms = ()
    row: Expr | None = None
    folded: Order = ()

    @property
    def op(self) -> str:
        """sum, max, min or moments."""
        return self.reduce.op if self.moments is None else "moments"

    @property
    def value(self) -> Expr:
        """What it takes in of each element of the row, or of each row."""
        return self.reduce.arg if self.row is None else self.row

    @property
    def last(self) -> tuple[Expr, ...]:
        """What the last pass over a row computes for it."""
        return tuple(c for c, _ in self.terms) or (self.value,)

    @property
    def nodes(self) -> tuple[Expr, ...]:
        """The expressions that are known in the second stage."""
        m = self.moments
        others = () if m is None else (m.mean, m.centred, m.squares)
        return (self.reduce, *(n for n in others if n is not None))


def accumulators(roots: list[Expr], kept: Order, inner: Order) -> tuple[Column, ...] | None:
    """The accumulators of the reductions over rows; None where one needs the result of another."""
    row = frozenset(inner)
    across = [n for n in walk(*roots) if isinstance(n, Reduce) and n.over - row]
    out: dict[Reduce, Column] = {}
    for node in walk(*roots):
        found = _moments(node, across) if isinstance(node, Call) and node.op == "minus" else None
        if found is not None:
            total, moments = found
            column = Column(total, *_shape(total, kept, row), moments)
            out.update({n: column for n in column.nodes if isinstance(n, Reduce)})
    for node in across:
        out.setdefault(node, Column(node, *_shape(node, kept, row)))
    columns = tuple(dict.fromkeys(out[node] for node in across))
    nodes = frozenset(across)
    return None if any(nodes & set(walk(c.value)) for c in columns) else columns


def _moments(difference: Call, across: list[Reduce]) -> tuple[Reduce, Moments] | None:
    """The sum of v over rows, and what goes with it: its mean, and the sums of c = minus(v, mean) and c^2
    over the same; None where no c is summed."""
    value, mean = difference.args
    found = as_mean(mean)
    if found is None or found.arg is not value or found.coefficient != 1:
        return None
    sums: dict[Expr, Reduce] = {n.arg: n for n in across if n.op == "sum" and n.over == found.over}
    centred, squares = sums.get(difference), sums.get(power(difference, 2))
    if value not in sums or not (centred or squares):
        return None
    return sums[value], Moments(value, mean, centred, squares)


def _shape(node: Reduce, kept: Order, row: Axes) -> tuple[Order, bool]:
    return without(kept, node.over), bool(node.axes & row)


def above(roots: list[Expr], stop: frozenset[Expr]) -> Iterator[Expr]:
    """Every node below the roots once, not looking below those of `stop`, which it leaves out."""
    return walk(*roots, seen=set(stop))


def loads_below(roots: list[Expr], stop: frozenset[Expr]) -> set[str]:
    """Tensors read by the roots, not looking below the nodes of `stop`."""
    return {n.tensor for n in above(roots, stop) if isinstance(n, Load)}


def needed_for(read: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """For each tensor the results that are computed from it, by what each result reads."""
    tensors = dict.fromkeys(name for found in read.values() for name in found)
    return {name: tuple(result for result, found in read.items() if name in found) for name in tensors}
