"""Program -> kernel plans: which axes are rows, what is reduced when, what is summed over rows.

A kernel of the rows family gives each row to a team of threads. `inner` are the axes of a row, contiguous in
memory;
`kept` are the others, which number the rows. A reduction over exactly the inner axes is a *row sum*: row sums
of one dependency level share one exchange between the threads of the team. A sum over kept axes is a *column
sum*: it is added up over the rows of a block, leaves as one partial per block, and a second kernel adds the
partials.

    y = x * rsqrt(mean[D](x^2) + eps) * w      one level {sum[D](x^2)}, then y; no column sums
    dw = sum[...](dy * x * rstd)               a column sum, wide: one value for each element of the row
"""

from __future__ import annotations

from dataclasses import dataclass

from normgen.codegen.group import Group, Misfit
from normgen.codegen.levels import Exponentials, Level, Moments, exponentials_of, levels_of, moments_of
from normgen.diagnostics import Diagnostic, Source, SpecError
from normgen.ir.centre import centre
from normgen.ir.expr import Expr, Load, Reduce, children, walk
from normgen.ir.nodes import Axes
from normgen.ir.program import Binding, Program, Result, Tensor

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
class Column:
    """A sum over rows. `kept`: the kept axes it keeps; `wide`: one value for each element of the row, not one
    in all.
    """

    reduce: Reduce
    kept: Order
    wide: bool


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel of the rows family.

    `results` are written by the rows themselves; `finals` from column sums, by the finalising kernel.
    `segment` are the kept axes that some column sum keeps: a block works within one segment.
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

    @property
    def wanted(self) -> int:
        """How many results there are to want."""
        return len(self.results) + len(self.finals)

    def needing(self, sums: tuple[Reduce, ...]) -> tuple[str, ...]:
        """The results that are computed from any of these sums."""
        found = set(sums)
        return tuple(r.tensor.name for r in (*self.results, *self.finals) if found & set(walk(r.expr)))

    def passes(self, tensor: str) -> int:
        """How many passes over a streaming row read a tensor: one for each exchange that needs it, and the
        last."""
        row_sums = frozenset(reduce for level in self.levels for reduce in level.sums)
        roots = [[reduce.arg for reduce in level.sums] for level in self.streamed_levels]
        roots.append([r.expr for r in self.results] + [c.reduce.arg for c in self.columns])
        return sum(tensor in loads_below(each, row_sums) for each in roots)

    @property
    def merged_levels(self) -> tuple[Level, ...]:
        """The levels where the data is resident: moments take one exchange, not two."""
        if self.moments is None:
            return self.levels
        first, second, *rest = self.levels
        return (Level(first.sums + second.sums, self.moments), *rest)

    @property
    def streamed_levels(self) -> tuple[Level, ...]:
        """The levels where the data streams by: running statistics take one pass, not two."""
        if self.exponentials is None:
            return self.merged_levels
        first, second, *rest = self.levels
        return (Level(first.sums + second.sums, exponentials=self.exponentials), *rest)


def plan(program: Program, source: Source, name: str) -> tuple[KernelPlan, ...]:
    """The kernels of a program, in order; raises `SpecError` (code `unsupported`) where no family fits."""
    if program.updates:
        raise _unsupported(source, "states are updated")
    program = centre(program)
    groups: dict[Axes, list[Result]] = {}
    for result in program.results:
        space = result.tensor.axes.union(*(n.axes for n in walk(result.expr)))
        groups.setdefault(space, []).append(result)
    kernels = []
    for index, (space, results) in enumerate(groups.items()):
        label = name if len(groups) == 1 else f"{name}_{index + 1}"
        try:
            kernels.append(plan_rows(Group(label, program, space, tuple(results))))
        except Misfit as misfit:
            raise _unsupported(source, str(misfit)) from None
    return tuple(kernels)


def _unsupported(source: Source, what: str) -> SpecError:
    message = f"no kernel yet: {what}"
    hint = "its formulas, derivatives and reference work (`normgen explain --emit grad`)"
    return SpecError([Diagnostic("unsupported", message, (), (hint,))], source)


def plan_rows(group: Group) -> KernelPlan:
    """The kernel of a group whose reductions are over rows, or over all of them; raises `Misfit`."""
    program, space, results = group.program, group.space, group.results
    tensors = {t.name: t for t in program.operands}
    roots = [r.expr for r in results]
    used = [tensors[n.tensor] for n in walk(*roots) if isinstance(n, Load)]
    sums = [n for n in walk(*roots) if isinstance(n, Reduce)]
    if any(s.window for s in sums):
        raise Misfit(f"`{program.name}` sums over a window")
    order = _axis_order(space, [r.tensor for r in results] + used)
    candidates = [inner for inner in _inner_candidates(order) if _fits(inner, space, sums, results)]
    if not candidates:
        over = ", ".join(sorted({f"[{', '.join(sorted(s.over))}]" for s in sums}))
        raise Misfit(
            f"`{program.name}` reduces over {over}, "
            f"which are not the innermost contiguous axes of [{', '.join(order)}]"
        )
    inner = candidates[0]
    kept = tuple(a for a in order if a not in inner)
    columns = _columns(sums, kept, inner)
    column_nodes = {c.reduce for c in columns}
    finals = tuple(r for r in results if column_nodes & set(walk(r.expr)))
    direct = tuple(r for r in results if r not in finals)
    for tensor in [r.tensor for r in results] + used:
        _check_layout(tensor, inner)
    for result in direct:
        if set(result.tensor.axes) & set(inner) and not set(inner) <= result.tensor.axes:
            raise Misfit(f"`{result.tensor.name}` has part of the row")
    present = set(walk(*roots))  # a `let` that nothing uses may reduce over other axes
    row_roots = [r.expr for r in direct] + [c.reduce.arg for c in columns]
    segment = tuple(a for a in kept if any(a in c.kept for c in columns))
    in_rows = loads_below(row_roots, frozenset())
    in_finals = loads_below([r.expr for r in finals], frozenset(column_nodes))
    return KernelPlan(
        name=group.name,
        kept=kept,
        inner=inner,
        operands=tuple(operand_of(t, kept, inner) for t in program.operands if t.name in in_rows),
        final_operands=tuple(operand_of(t, kept, inner) for t in program.operands if t.name in in_finals),
        levels=(levels := levels_of(row_roots, frozenset(inner))),
        results=direct,
        columns=columns,
        finals=finals,
        segment=segment,
        moments=moments_of(levels, row_roots),
        exponentials=exponentials_of(levels),
        bindings=tuple(b for b in program.bindings if b.expr in present),
        scalars=tuple(a.name for a in program.attrs if a.kind == "float" and not a.folded),
    )


def _axis_order(space: Axes, tensors: list[Tensor]) -> Order:
    """The axes in the memory order of a tensor that has all of them; else in order of appearance."""
    full = next((t for t in tensors if t.axes == space), None)
    if full is not None:
        return full.order
    longest = sorted(tensors, key=lambda t: -len(t.axes))
    return tuple(dict.fromkeys(a for t in longest for a in t.order if a in space))


def _inner_candidates(order: Order) -> list[Order]:
    """Trailing axes, the shortest first. An elementwise value over a single axis has rows of one element."""
    return [order[i:] for i in range(len(order) - 1, -1, -1)] if len(order) != 1 else [order, ()]


def _fits(inner: Order, space: Axes, sums: list[Reduce], results: tuple[Result, ...]) -> bool:
    """Whether every reduction is a row sum or a column sum of rows over these axes."""
    row = frozenset(inner)
    if not sums and len(space) == 1:
        return (
            not inner
        )  # elementwise over one axis: one element a row, so that its length stays a runtime value
    for node in sums:
        touched = node.over & row
        if touched and touched != row:
            return False
        if node.over - row:
            # a column sum must see every row of the kernel exactly once
            if node.op != "sum" or node.arg.axes | row != space:
                return False
        elif not touched:
            return False
    columns = {n for n in sums if n.over - row}
    if any(columns & set(walk(n.arg)) for n in sums):
        return False
    # what is made of column sums has their shape: it is written where they are finalised
    return all(r.tensor.axes == n.axes for r in results for n in columns & set(walk(r.expr)))


def _columns(sums: list[Reduce], kept: Order, inner: Order) -> tuple[Column, ...]:
    return tuple(
        Column(n, tuple(a for a in kept if a not in n.over), bool(n.axes & set(inner)))
        for n in sums
        if n.over - set(inner)
    )


def loads_below(roots: list[Expr], stop: frozenset[Expr]) -> set[str]:
    """Tensors read by the roots, not looking below the nodes of `stop`."""
    found: set[str] = set()
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen or node in stop:
            continue
        seen.add(node)
        if isinstance(node, Load):
            found.add(node.tensor)
        stack.extend(children(node))
    return found


def operand_of(tensor: Tensor, kept: Order, inner: Order) -> Operand:
    """The tensor as a kernel with these axes sees it."""
    return Operand(
        tensor, tuple(a for a in kept if a in tensor.axes), tuple(a for a in inner if a in tensor.axes)
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
