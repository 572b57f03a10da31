"""Program -> kernel plans: which axes are rows, what is reduced when, what is summed over rows.

A kernel of the rows family gives each row to a team of threads. `inner` are the axes of a row, contiguous in
memory;
`kept` are the others, which number the rows. A reduction over exactly the inner axes is a *row sum*: row sums
of one dependency level share one exchange between the threads of the team. A sum over kept axes is a *column
sum*: it is added up over the rows of a block, leaves as one partial per block, and a second kernel adds the
partials.

A row that is reduced whole may be summed in parts besides: each run of its elements that lanes side by side
have leaves a partial. And it may lie in pieces, where the axes of a row are on both sides of a kept one;
pieces may be added up besides.

    y = x * rsqrt(mean[D](x^2) + eps) * w      one level {sum[D](x^2)}, then y; no column sums
    dw = sum[...](dy * x * rstd)               a column sum, wide: one value for each element of the row
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.families.rows.compile.axes import Rows, choose_folded_rows, choose_rows, choose_shared_rows
from normgen.families.rows.compile.whole import rows_in_pieces, whole_rows
from normgen.ir.expr import Load, Reduce, add, mul, reduce, reductions, round_to, walk
from normgen.ir.program import Binding, Result, Tensor
from normgen.kernel.accumulators import Column, loads_below
from normgen.kernel.group import Group, Misfit
from normgen.kernel.levels import Exponentials, Level, Moments, exponentials_of, levels_of, moments_of
from normgen.kernel.linear import largest_of, terms_of

Order = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel touches. `kept` and `inner`: which of the kernel's axes index it, in the
    kernel's order.
    """

    tensor: Tensor
    kept: Order
    inner: Order


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel of the rows family.

    `pieces`: the outermost axes of a row, where they lie outside the kept ones in memory. It then is in
    several pieces, numbered by them; a piece, of the other axes, is contiguous.
    `results` are written by the rows themselves; `finals` from column sums, by the finalising kernel.
    `segment` are the kept axes that some column sum keeps, or that operands shared by the rows of a purely
    elementwise kernel have: a block works within one segment. `shared`: blocks
    share every row, whatever its length.
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
    shared: bool = False
    pieces: Order = ()

    @property
    def piece(self) -> Order:
        """The axes of a row that are contiguous: all of them, unless it is in pieces."""
        return self.inner[len(self.pieces) :]

    @property
    def part(self) -> Order:
        """The axes of a row that accumulators keep, where they keep some."""
        return self.columns[0].part if self.columns else ()

    @property
    def adds_pieces(self) -> bool:
        """Whether the pieces of a row are added up: accumulators keep the axes of a piece."""
        return bool(self.part and self.pieces)

    @property
    def folded(self) -> Order:
        """The innermost axes of a row, where blocks merge what they accumulate of these."""
        return self.columns[0].folded if self.columns else ()

    @property
    def inside(self) -> Order:
        """The other axes of a row: of the elements that each of its values is summed over."""
        return tuple(a for a in self.inner if a not in self.part)

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
        """Whether blocks may share a row: nothing is exchanged in it, and nothing is computed once a row."""
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


def plan_rows(group: Group) -> KernelPlan:
    """The kernel of a group whose reductions are over rows, or over all of them; raises `Misfit`."""
    sums = reductions(*(r.expr for r in group.results))
    if any(s.window for s in sums):
        raise Misfit(f"`{group.program.name}` sums over a window")
    return _kernel(group, choose_rows(group, sums))


def plan_shared(group: Group) -> KernelPlan:
    """The kernel of a group of nothing but reductions over long rows, where blocks share each row and the
    finalising kernel combines what they found; raises `Misfit`.
    """
    sums = reductions(*(r.expr for r in group.results))
    if not sums or any(s.window for s in sums):
        raise Misfit(f"`{group.program.name}` reduces nothing")
    plan = _kernel(group, choose_shared_rows(group, sums), shared=True)
    if not plan.splits:
        raise Misfit(f"`{group.program.name}` has no rows to share")
    return plan


def plan_folded(group: Group) -> KernelPlan:
    """The kernel of a group of nothing but moments over the innermost axes and over rows, where blocks merge
    those of neighbouring elements; raises `Misfit`.
    """
    sums = reductions(*(r.expr for r in group.results))
    if not sums or any(s.window for s in sums):
        raise Misfit(f"`{group.program.name}` reduces nothing")
    return _kernel(group, choose_folded_rows(group, sums))


def plan_whole(group: Group) -> KernelPlan:
    """The kernel of a group whose rows are reduced whole, and in parts, by teams that hold them; raises
    `Misfit`."""
    if any(s.window for s in reductions(*(r.expr for r in group.results))):
        raise Misfit(f"`{group.program.name}` sums over a window")
    return _kernel(*whole_rows(group))


def plan_in_pieces(group: Group) -> KernelPlan:
    """The kernel of a group whose rows lie in several pieces, by teams that hold them; raises `Misfit`."""
    gathered, rows, pieces = rows_in_pieces(group)
    return _kernel(gathered, rows, pieces=pieces)


def _kernel(group: Group, rows: Rows, shared: bool = False, pieces: Order = ()) -> KernelPlan:
    """The plan of a group with these rows."""
    program, results = group.program, group.results
    tensors = {t.name: t for t in program.operands}
    roots = [r.expr for r in results]
    used = [tensors[n.tensor] for n in walk(*roots) if isinstance(n, Load)]
    kept, inner, columns = rows
    column_nodes = frozenset(n for c in columns for n in c.nodes)
    finals = tuple(r for r in results if column_nodes & set(walk(r.expr)))
    direct = tuple(r for r in results if r not in finals)
    for tensor in [r.tensor for r in results] + used:
        _check_layout(tensor, inner[len(pieces) :])
    _check_states(direct, finals, () if pieces else inner)
    for result in direct:
        if set(result.tensor.axes) & set(inner) and not set(inner) <= result.tensor.axes:
            raise Misfit(f"`{result.tensor.name}` has part of the row")
    present = set(walk(*roots))  # a `let` that nothing uses may reduce over other axes
    row_roots = [r.expr for r in direct] + [c.value for c in columns]
    levels = levels_of(row_roots, frozenset(inner))
    moments, exponentials = moments_of(levels, row_roots), exponentials_of(levels)
    if len(levels) > (2 if moments or exponentials else 0):  # the last pass of sums is one of nothing else
        columns = tuple(_taken_apart(c, levels[-1], inner) for c in columns)
        if not any(r.tensor.axes & set(inner) for r in direct):
            columns = _all_largest(columns, levels[-1], inner)
    in_rows = loads_below(row_roots, frozenset())
    in_finals = loads_below([r.expr for r in finals], column_nodes)
    operands = tuple(operand_of(t, kept, inner, pieces) for t in program.operands if t.name in in_rows)
    segment = tuple(a for a in kept if any(a in c.kept and not c.part for c in columns))
    if not columns and not levels and all(r.tensor.axes & set(inner) for r in direct):
        segment = _shared_along(operands, kept)
    return KernelPlan(
        name=group.name,
        kept=kept,
        inner=inner,
        operands=operands,
        final_operands=tuple(operand_of(t, kept, inner) for t in program.operands if t.name in in_finals),
        levels=levels,
        results=direct,
        columns=columns,
        finals=finals,
        segment=segment,
        moments=moments,
        exponentials=exponentials,
        bindings=tuple(b for b in program.bindings if b.expr in present),
        scalars=tuple(a.name for a in program.attrs if a.kind == "float" and not a.folded),
        shared=shared,
        pieces=pieces,
    )


def _taken_apart(column: Column, last: Level, inner: Order) -> Column:
    """A sum over rows of what the last pass of sums over each row adds up anyway, as one of that."""
    if column.op != "sum" or column.wide or not column.value.axes & set(inner):
        return column
    row, sums = frozenset(inner), frozenset(last.sums)
    terms = terms_of(column.value, row - set(column.part), sums)
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
    """A state is read whole before it is written: by the thread that writes it."""
    for result in direct:
        name = result.tensor.name
        if result.tensor.role != "state":
            continue
        if inner or any(isinstance(n, Load) and n.tensor == name for r in finals for n in walk(r.expr)):
            raise Misfit(f"`{name}` is updated while rows are read")
    for result in finals:
        for other in finals:
            reads = any(isinstance(n, Load) and n.tensor == result.tensor.name for n in walk(other.expr))
            if result.tensor.role == "state" and reads and other.tensor.axes != result.tensor.axes:
                raise Misfit(
                    f"`{other.tensor.name}` is computed from `{result.tensor.name}`, which is updated"
                )


def operand_of(tensor: Tensor, kept: Order, inner: Order, pieces: Order = ()) -> Operand:
    """The tensor as a kernel with these axes sees it. What numbers the pieces of rows any stride may step
    along, as along what numbers rows."""
    outer, contiguous = pieces + kept, inner[len(pieces) :]
    return Operand(
        tensor, tuple(a for a in outer if a in tensor.axes), tuple(a for a in contiguous if a in tensor.axes)
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


def as_stored(plan: KernelPlan) -> KernelPlan:
    """The plan with each result as it is rounded where something else is computed from that: what is stored
    is then that value, which need not be computed twice.
    """
    nodes = set(walk(*(r.expr for r in plan.results), *(c.value for c in plan.columns)))

    def stored(result: Result) -> Result:
        tensor = result.tensor
        to = f"like {tensor.like}" if tensor.like else tensor.dtype
        rounded = round_to(result.expr, to) if to else result.expr
        return replace(result, expr=rounded) if rounded in nodes else result

    return replace(plan, results=tuple(map(stored, plan.results)))
