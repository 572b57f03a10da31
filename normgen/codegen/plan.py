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

from normgen.diagnostics import Diagnostic, Source, SpecError
from normgen.ir.centre import centre
from normgen.ir.expr import Add, Call, Expr, Load, Mul, Reduce, children, walk
from normgen.ir.program import Binding, Program, Result, Tensor

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel touches. `kept` and `inner`: which of the kernel's axes index it, in the
    kernel's order.
    """

    tensor: Tensor
    kept: Axes
    inner: Axes


@dataclass(frozen=True, slots=True)
class Moments:
    """The row sums of two levels that one exchange serves: v, its mean, and sums of c = v - mean and c^2."""

    value: Expr
    mean: Expr
    centred: Reduce | None
    squares: Reduce | None


@dataclass(frozen=True, slots=True)
class Exponentials:
    """The row sums of two levels that one pass serves: the maximum of v, and the sum of exp(v - maximum)."""

    value: Expr
    top: Reduce
    total: Reduce


@dataclass(frozen=True, slots=True)
class Level:
    """Row sums that depend on no other sum of this level: one exchange.

    With `moments` or `exponentials`, those of two levels.
    """

    sums: tuple[Reduce, ...]
    moments: Moments | None = None
    exponentials: Exponentials | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A sum over rows. `kept`: the kept axes it keeps; `wide`: one value for each element of the row, not one
    in all.
    """

    reduce: Reduce
    kept: Axes
    wide: bool


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel of the rows family.

    `results` are written by the rows themselves; `finals` from column sums, by the finalising kernel.
    `segment` are the kept axes that some column sum keeps: a block works within one segment.
    """

    name: str
    kept: Axes
    inner: Axes
    operands: tuple[Operand, ...]
    final_operands: tuple[Operand, ...]
    levels: tuple[Level, ...]
    results: tuple[Result, ...]
    columns: tuple[Column, ...]
    finals: tuple[Result, ...]
    segment: Axes
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
        raise _unsupported(source, "states are updated", "running statistics")
    program = centre(program)
    groups: dict[frozenset[str], list[Result]] = {}
    for result in program.results:
        space = result.tensor.axes.union(*(n.axes for n in walk(result.expr)))
        groups.setdefault(space, []).append(result)
    kernels = []
    for index, (space, results) in enumerate(groups.items()):
        label = name if len(groups) == 1 else f"{name}_{index + 1}"
        kernels.append(_plan_kernel(program, source, label, space, tuple(results)))
    return tuple(kernels)


def _unsupported(source: Source, what: str, family: str) -> SpecError:
    message = f"no kernel yet: {what}"
    hint = (
        f"this needs {family}; its formulas, derivatives and reference work (`normgen explain --emit grad`)"
    )
    return SpecError([Diagnostic("unsupported", message, (), (hint,))], source)


def _plan_kernel(
    program: Program, source: Source, name: str, space: frozenset[str], results: tuple[Result, ...]
) -> KernelPlan:
    tensors = {t.name: t for t in program.operands}
    roots = [r.expr for r in results]
    used = [tensors[n.tensor] for n in walk(*roots) if isinstance(n, Load)]
    sums = [n for n in walk(*roots) if isinstance(n, Reduce)]
    if any(s.window for s in sums):
        raise _unsupported(source, f"`{program.name}` sums over a window", "kernels of the windows family")
    order = _axis_order(space, [r.tensor for r in results] + used)
    candidates = [inner for inner in _inner_candidates(order) if _fits(inner, space, sums, results)]
    if not candidates:
        over = ", ".join(sorted({f"[{', '.join(sorted(s.over))}]" for s in sums}))
        raise _unsupported(
            source,
            f"`{program.name}` reduces over {over}, "
            f"which are not the innermost contiguous axes of [{', '.join(order)}]",
            "kernels of the columns or slabs families",
        )
    inner = candidates[0]
    kept = tuple(a for a in order if a not in inner)
    columns = _columns(sums, kept, inner)
    column_nodes = {c.reduce for c in columns}
    finals = tuple(r for r in results if column_nodes & set(walk(r.expr)))
    direct = tuple(r for r in results if r not in finals)
    for tensor in [r.tensor for r in results] + used:
        _check_layout(tensor, kept, inner, program, source)
    for result in direct:
        if set(result.tensor.axes) & set(inner) and not set(inner) <= result.tensor.axes:
            raise _unsupported(
                source, f"`{result.tensor.name}` has part of the row", "kernels of the slabs family"
            )
    present = set(walk(*roots))  # a `let` that nothing uses may reduce over other axes
    row_roots = [r.expr for r in direct] + [c.reduce.arg for c in columns]
    segment = tuple(a for a in kept if any(a in c.kept for c in columns))
    in_rows = _loads_below(row_roots, frozenset())
    in_finals = _loads_below([r.expr for r in finals], frozenset(column_nodes))
    return KernelPlan(
        name=name,
        kept=kept,
        inner=inner,
        operands=tuple(_operand(t, kept, inner) for t in program.operands if t.name in in_rows),
        final_operands=tuple(_operand(t, kept, inner) for t in program.operands if t.name in in_finals),
        levels=(levels := _levels(row_roots, frozenset(inner))),
        results=direct,
        columns=columns,
        finals=finals,
        segment=segment,
        moments=_moments(levels, row_roots),
        exponentials=_exponentials(levels),
        bindings=tuple(b for b in program.bindings if b.expr in present),
        scalars=tuple(a.name for a in program.attrs if a.kind == "float" and not a.folded),
    )


def _axis_order(space: frozenset[str], tensors: list[Tensor]) -> Axes:
    """The axes in the memory order of a tensor that has all of them; else in order of appearance."""
    full = next((t for t in tensors if t.axes == space), None)
    if full is not None:
        return full.order
    longest = sorted(tensors, key=lambda t: -len(t.axes))
    return tuple(dict.fromkeys(a for t in longest for a in t.order if a in space))


def _inner_candidates(order: Axes) -> list[Axes]:
    """Trailing axes, the shortest first. An elementwise value over a single axis has rows of one element."""
    return [order[i:] for i in range(len(order) - 1, -1, -1)] if len(order) != 1 else [order, ()]


def _fits(inner: Axes, space: frozenset[str], sums: list[Reduce], results: tuple[Result, ...]) -> bool:
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


def _columns(sums: list[Reduce], kept: Axes, inner: Axes) -> tuple[Column, ...]:
    return tuple(
        Column(n, tuple(a for a in kept if a not in n.over), bool(n.axes & set(inner)))
        for n in sums
        if n.over - set(inner)
    )


def _loads_below(roots: list[Expr], stop: frozenset[Expr]) -> set[str]:
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


def _operand(tensor: Tensor, kept: Axes, inner: Axes) -> Operand:
    return Operand(
        tensor, tuple(a for a in kept if a in tensor.axes), tuple(a for a in inner if a in tensor.axes)
    )


def _check_layout(tensor: Tensor, kept: Axes, inner: Axes, program: Program, source: Source) -> None:
    mine = tuple(a for a in tensor.order if a in inner)
    if mine != tuple(a for a in inner if a in mine) or (
        mine == inner and inner and tensor.order[-len(inner) :] != inner
    ):
        raise _unsupported(
            source,
            f"`{tensor.name}[{', '.join(tensor.order)}]` does not have {', '.join(inner)} "
            "as its innermost axes",
            "kernels of the columns family",
        )


def _levels(roots: list[Expr], inner: frozenset[str]) -> tuple[Level, ...]:
    depth: dict[Expr, int] = {}
    by_depth: dict[int, list[Reduce]] = {}
    for node in walk(*roots):
        below = max((depth[c] for c in children(node)), default=0)
        if isinstance(node, Reduce) and node.over == inner:
            by_depth.setdefault(below + 1, []).append(node)
            below += 1
        depth[node] = below
    return tuple(Level(tuple(by_depth[d])) for d in sorted(by_depth))


def _exponentials(levels: tuple[Level, ...]) -> Exponentials | None:
    """A maximum, then the sum of the exponentials of the distances from it, and nothing else."""
    if len(levels) < 2 or [len(level.sums) for level in levels[:2]] != [1, 1]:
        return None
    (top,), (total,) = levels[0].sums, levels[1].sums
    match total:
        case Reduce(op="sum", arg=Call(op="exp", args=(Add(terms=((a, c), (b, d))),))) if top.op == "max":
            value, shift = (b, a) if d == 1 else (a, b)
            plain = shift.args[0] if isinstance(shift, Call) and shift.op == "stop" else shift
            if {c, d} == {1, -1} and value is top.arg and plain is top:
                return Exponentials(value, top, total)
    return None


def _moments(levels: tuple[Level, ...], roots: list[Expr]) -> Moments | None:
    """One exchange does for sum(v) and the sums of c = v - mean and c^2, where nothing else is summed."""
    if len(levels) < 2 or len(levels[0].sums) != 1 or levels[0].sums[0].op != "sum":
        return None
    total, second = levels[0].sums[0], levels[1]
    centred = squares = None
    differences = [
        n for n in walk(*roots) if isinstance(n, Call) and n.op == "minus" and n.args[0] is total.arg
    ]
    if len(differences) != 1:
        return None
    (difference,) = differences
    mean = difference.args[1]
    if total not in children(mean) and mean is not total:
        return None
    users = [n for n in walk(*roots) if total in children(n)]
    if users != [mean]:
        return None
    for node in second.sums:
        match node.arg:
            case _ if node.op != "sum":
                return None
            case Call() if node.arg is difference:
                centred = node
            case Mul(coefficient=c, factors=((base, e),)) if base is difference and c == 1 and e == 2:
                squares = node
            case _:
                return None
    return Moments(total.arg, mean, centred, squares)
