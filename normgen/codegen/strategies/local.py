"""Programs that one rank runs, where axes of a norm are spread over ranks.

What a spread axis is to the norm, its global length is to none of its ranks. So the lengths that a formula
means become numbers that a call is given, `size_D`, before anything is cut, and an `Extent` left in a local
program is the length that the arrays of a rank have. Ranks are an axis too, `Rank`: what all of them tell is
a tensor with that axis, and the number of elements of each is one, `count_D[Rank]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from normgen.ir.expr import extent, load, mul, scalar
from normgen.ir.nodes import Axes, Expr, Extent, Load, Scalar, walk
from normgen.ir.program import Attr, Axis, Program, Result, Tensor, Update
from normgen.ir.reads import tensors_read
from normgen.ir.recover import transform
from normgen.package.operands import axis_name


@dataclass(frozen=True, slots=True)
class Names:
    """What local programs call the axis of ranks, and the numbers and tensors that tell of lengths; none of
    these names is taken in the spec."""

    axes: Axes
    rank: str
    prefixes: tuple[str, str, str]  # of global lengths, of lengths in a local program, of counts

    def size(self, axis: str) -> str:
        """The number that is the global length of a spread axis."""
        return f"{self.prefixes[0]}{axis_name(axis)}"

    def length(self, axis: str) -> str:
        """The number that is the length of an axis that no array of a local program has."""
        return f"{self.prefixes[1]}{axis_name(axis)}"

    def count(self, axis: str) -> str:
        """The tensor of how long the axis is on each rank."""
        return f"{self.prefixes[2]}{axis_name(axis)}"

    def own_number(self, over: Axes) -> Expr:
        """How many elements along these axes a rank reduces itself."""
        return mul(*map(extent, sorted(over)))

    def told_number(self, over: Axes) -> Expr:
        """The same number of each rank, to whoever reads what they tell."""
        return mul(*map(self._told_length, sorted(over)))

    def _told_length(self, axis: str) -> Expr:
        return load(self.count(axis), frozenset({self.rank})) if axis in self.axes else extent(axis)


def names_for(program: Program, axes: Axes) -> Names:
    """Names that are free in a program."""
    taken = _taken(program)

    def free(prefix: str) -> str:
        tried = (f"{prefix}{k}_" if k > 1 else f"{prefix}_" for k in count(1))
        return next(p for p in tried if not any(name.startswith(p) for name in taken))

    theirs = {a.name for a in program.axes}
    rank = next(r for r in chain(("Rank",), (f"Rank{k}" for k in count(2))) if r not in theirs)
    return Names(axes, rank, (free("size"), free("length"), free("count")))


def free_name(program: Program, wanted: str) -> str:
    """A name like this that nothing in a program has."""
    tried = (f"{wanted}{k}" if k > 1 else wanted for k in count(1))
    taken = _taken(program)
    return next(name for name in tried if name not in taken)


def _taken(program: Program) -> set[str]:
    tensors = (*program.operands, *(r.tensor for r in program.results))
    names = {t.name for t in tensors} | {b.name for b in program.bindings}
    return names | {a.name for a in program.attrs}


def sized(program: Program, names: Names) -> Program:
    """The program with the lengths of spread axes as numbers."""
    table: dict[Expr, Expr] = {extent(axis): scalar(names.size(axis)) for axis in names.axes}
    return _replaced(program, table)


@dataclass(frozen=True, slots=True)
class Locals:
    """Makes local programs of a sized one. `told`: what ranks have told, each tensor as one rank's."""

    program: Program
    names: Names
    told: tuple[Tensor, ...] = ()

    def of(
        self,
        stage: str,
        results: Sequence[Result],
        updates: Sequence[Update] = (),
        more: Iterable[Tensor] = (),
    ) -> Program:
        """The program of these results and updates. `more`: tensors that it may read besides."""
        plain = replace(
            self.program,
            name=f"{self.program.name}_{stage}",
            results=tuple(results),
            updates=tuple(updates),
            bindings=(),
            notes=(),
            saved_means=(),
        )
        return self._complete(_replaced(plain, self._unseen(plain)), more)

    def _unseen(self, plain: Program) -> dict[Expr, Expr]:
        """Lengths of axes that nothing which is read has."""
        nodes = list(walk(*_roots(plain)))
        seen = {axis for node in nodes if isinstance(node, Load) for axis in node.axes}
        lengths = (node for node in nodes if isinstance(node, Extent) and node.axis not in seen)
        return {node: scalar(self.names.length(node.axis)) for node in lengths}

    def _complete(self, plain: Program, more: Iterable[Tensor]) -> Program:
        """The program with its operands, axes and numbers."""
        roots, rank = _roots(plain), self.names.rank
        read = tensors_read(roots) | {u.state for u in plain.updates}
        gathered = (replace(t, role="input", dims=((rank,), *t.dims)) for t in self.told)
        counts = (_float_tensor(self.names.count(axis), ((rank,),)) for axis in sorted(self.names.axes))
        handed = (replace(t, role="input") for t in more)
        every = (*self.program.operands, *handed, *gathered, *counts)
        operands = tuple(t for t in every if t.name in read)
        scalars = {node.name for node in walk(*roots) if isinstance(node, Scalar)}
        declared = {a.name for a in self.program.attrs}
        used = {axis for t in (*operands, *(r.tensor for r in plain.results)) for axis in t.order}
        numbers = (Attr(n, "float", None, None, False, False, "", None) for n in sorted(scalars - declared))
        return replace(
            plain,
            operands=operands,
            attrs=(*(a for a in self.program.attrs if a.name in scalars), *numbers),
            axes=tuple(a for a in (*self.program.axes, Axis(rank, None)) if a.name in used),
        )


def _float_tensor(name: str, dims: tuple[tuple[str, ...], ...]) -> Tensor:
    return Tensor(name, "input", dims, "f32", None, None, "", None)


def _roots(program: Program) -> list[Expr]:
    return [*(r.expr for r in program.results), *(u.expr for u in program.updates)]


def _replaced(program: Program, table: dict[Expr, Expr]) -> Program:
    done = transform(_roots(program), lambda node, _: table.get(node), real=False)
    return replace(
        program,
        results=tuple(replace(r, expr=done[r.expr]) for r in program.results),
        updates=tuple(replace(u, expr=done[u.expr]) for u in program.updates),
    )
