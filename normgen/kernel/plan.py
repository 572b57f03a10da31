"""What a kernel computes, as its text needs it: operands, what is reduced when, results and accumulators.

It is said of rows: `inner` are the axes of a row, `kept` number the rows. Other families say what they have
in these words too, columns for one with what lies strided in the place of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.ir.expr import Expr, Load, Reduce, round_to, walk
from normgen.ir.nodes import Told
from normgen.ir.program import Binding, Result, Tensor
from normgen.kernel.accumulators import Column, loads_below
from normgen.kernel.group import Group, Order
from normgen.kernel.levels import Exponentials, Level, Moments, exponentials_of, levels_of, moments_of
from normgen.package.kernels import RowAxes


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel touches. `kept` and `inner`: which of the kernel's axes index it, in the
    kernel's order.
    """

    tensor: Tensor
    kept: Order
    inner: Order


@dataclass(frozen=True, slots=True)
class KernelPlan(RowAxes):
    """One kernel over rows.

    `pieces`: the outermost axes of a row, where they lie outside the kept ones in memory. It then is in
    several pieces, numbered by them; a piece, of the other axes, is contiguous.
    `results` are written by the rows themselves; `finals` from column sums, by the second-stage kernel.
    `segment` are the kept axes that some column sum keeps, or that operands shared by the rows of a purely
    elementwise kernel have: a block works within one segment. `told`: what ranks tell each other of a row
    within the kernel.
    """

    name: str
    kept: Order
    inner: Order
    operands: tuple[Operand, ...]
    final_operands: tuple[Operand, ...]
    levels: tuple[Level, ...]
    results: tuple[Result, ...]
    columns: tuple[Column, ...]
    finals: tuple[Result, ...]
    segment: Order
    moments: Moments | None
    exponentials: Exponentials | None
    bindings: tuple[Binding, ...]
    scalars: tuple[str, ...]
    pieces: Order = ()
    told: tuple[Told, ...] = ()

    @property
    def roots(self) -> list[Expr]:
        """What the rows write."""
        return [r.expr for r in self.results]

    @property
    def channel(self) -> str:
        """The operand that says where ranks tell that; empty where they tell nothing."""
        return next((n.channel.tensor for n in self.told if isinstance(n.channel, Load)), "")

    @property
    def wanted(self) -> int:
        """How many results there are to want."""
        return len(self.results) + len(self.finals)

    def needing(self, sums: tuple[Reduce, ...]) -> tuple[str, ...]:
        """The results that are computed from any of these sums."""
        found = set(sums)
        found |= {c.reduce for c in self.columns if c.row is not None and found & set(walk(c.row))}
        return tuple(r.tensor.name for r in (*self.results, *self.finals) if found & set(walk(r.expr)))

    def passes(self, tensor: str) -> int:
        """How many passes over a streaming row read a tensor: one for each exchange that needs it, and the
        last."""
        row_sums = frozenset(reduce for level in self.levels for reduce in level.sums)
        roots = [[reduce.arg for reduce in level.sums] for level in self.paired_levels]
        if roots:
            roots[-1] += [v for c in self.columns for _, v in c.terms]
        roots.append([r.expr for r in self.results] + [e for c in self.columns for e in c.last])
        return sum(tensor in loads_below(each, row_sums) for each in roots)

    @property
    def splits(self) -> bool:
        """Whether blocks may share a row: nothing is exchanged in it, nor computed once per row."""
        row = set(self.inner)
        elements = [r.tensor.axes for r in self.results] + [c.value.axes for c in self.columns]
        narrow = not any(c.wide for c in self.columns)
        return narrow and bool(row) and not self.levels and all(axes & row for axes in elements)

    @property
    def merged_levels(self) -> tuple[Level, ...]:
        """The levels where the data is resident: moments take one exchange, not two."""
        if self.moments is None:
            return self.levels
        first, second, *rest = self.levels
        return (Level(first.sums + second.sums, self.moments), *rest)

    @property
    def paired_levels(self) -> tuple[Level, ...]:
        """The levels where a maximum and the sum of exponentials take one exchange too, or one pass of data
        that streams by.
        """
        if self.exponentials is None:
            return self.merged_levels
        first, second, *rest = self.levels
        return (Level(first.sums + second.sums, exponentials=self.exponentials), *rest)


class Parts:
    """What plans of families but rows have in common. `parts`: what a kernel computes, said of rows."""

    __slots__ = ()
    parts: KernelPlan

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.parts.name

    @property
    def results(self) -> tuple[Result, ...]:
        """What the kernel itself writes."""
        return self.parts.results

    @property
    def roots(self) -> list[Expr]:
        """What these are."""
        return self.parts.roots


def operand_of(tensor: Tensor, kept: Order, inner: Order, pieces: Order = ()) -> Operand:
    """The tensor as a kernel with these axes sees it. What numbers the pieces of rows any stride may step
    along, as along what numbers rows."""
    outer, contiguous = pieces + kept, inner[len(pieces) :]
    return Operand(
        tensor, tuple(a for a in outer if a in tensor.axes), tuple(a for a in contiguous if a in tensor.axes)
    )


def as_stored(plan: KernelPlan) -> KernelPlan:
    """The plan with each result as it is rounded where something else is computed from that: what is stored
    is then that value, which need not be computed twice.
    """
    nodes = set(walk(*plan.roots, *(c.value for c in plan.columns)))

    def stored(result: Result) -> Result:
        tensor = result.tensor
        to = f"like {tensor.like}" if tensor.like else tensor.dtype
        rounded = round_to(result.expr, to) if to else result.expr
        return replace(result, expr=rounded) if rounded in nodes else result

    return replace(plan, results=tuple(map(stored, plan.results)))


def kernel_plan(
    group: Group, kept: Order, inner: Order, columns: tuple[Column, ...] = (), pieces: Order = ()
) -> KernelPlan:
    """The plan of a group whose axes and accumulators are known."""
    program, known = group.program, frozenset(n for c in columns for n in c.nodes)
    finals = tuple(r for r in group.results if known & set(walk(r.expr)))
    direct = tuple(r for r in group.results if r not in finals)
    roots = [r.expr for r in direct] + [c.value for c in columns]
    levels = levels_of(roots, frozenset(inner))

    def operands_of(values: list[Expr], known: frozenset[Expr], pieces: Order = ()) -> tuple[Operand, ...]:
        read = loads_below(values, known)
        return tuple(operand_of(t, kept, inner, pieces) for t in program.operands if t.name in read)

    nodes = list(walk(*group.roots))
    told = tuple(n for n in nodes if isinstance(n, Told))

    present = set(nodes)  # a `let` that nothing uses may reduce other axes
    return KernelPlan(
        name=group.name,
        kept=kept,
        inner=inner,
        operands=operands_of(roots, frozenset(), pieces),
        final_operands=operands_of([r.expr for r in finals], known),
        levels=levels,
        results=direct,
        columns=columns,
        finals=finals,
        segment=_segment(kept, columns),
        moments=moments_of(levels, roots, [value for each in told for value in each.values]),
        exponentials=exponentials_of(levels),
        bindings=tuple(b for b in program.bindings if b.expr in present),
        scalars=tuple(a.name for a in program.attrs if a.kind == "float" and not a.folded),
        pieces=pieces,
        told=told,
    )


def _segment(kept: Order, columns: tuple[Column, ...]) -> Order:
    """The axes within which a block stays, since an accumulator has a value for each of them."""
    return tuple(a for a in kept if any(a in c.kept and not c.part for c in columns))


def elementwise_plan(group: Group, kept: Order, inner: Order = ()) -> KernelPlan:
    """The plan of a group of which each element of a row stands alone. Which axes operands have, and how they
    are addressed, is for the family to say."""
    plan = kernel_plan(group, kept, inner)
    operands = tuple(Operand(o.tensor, (), ()) for o in plan.operands)
    return replace(plan, operands=operands, levels=(), moments=None, exponentials=None)
