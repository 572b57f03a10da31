"""Programs that one rank runs, where axes of a norm are spread over ranks.

What a spread axis is to the norm, its global length is to none of its ranks. So the lengths that a formula
means become numbers that a call is given, `size_D`, before anything is cut, and an `Extent` left in a local
program is the length that the arrays of a rank have. Ranks are an axis too, `Rank`: what all of them tell is
a tensor with that axis, and the number of elements of each is one, `count_D[Rank]`.

Where two axes are cut as one dimension, what a rank has of it is not the same number along one for every
element along the other: it is told for each, `count_G_C_over_C[Rank, G]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from normgen.ir.expr import extent, load, mul, scalar
from normgen.ir.kinds import CutAxes
from normgen.ir.nodes import Axes, Expr, Extent, Load, Reduce, Scalar, walk
from normgen.ir.program import Attr, Axis, Program, Result, Tensor, Update
from normgen.ir.reads import tensors_read
from normgen.ir.recover import transform
from normgen.package.operands import axis_name


@dataclass(frozen=True, slots=True)
class Names:
    """What local programs call the axis of ranks, and the numbers and tensors that tell of lengths; none of
    these names is taken in the spec."""

    cut: CutAxes
    rank: str
    prefixes: tuple[str, str, str]  # of global lengths, of lengths in a local program, of counts

    @property
    def axes(self) -> Axes:
        """The axes that are spread."""
        return self.cut.axes

    def size(self, axis: str) -> str:
        """The number that is the global length of a spread axis."""
        return f"{self.prefixes[0]}{axis_name(axis)}"

    def length(self, axis: str) -> str:
        """The number that is the length of an axis that no array of a local program has."""
        return f"{self.prefixes[1]}{axis_name(axis)}"

    def count(self, axis: str) -> str:
        """The tensor of how long the axis is on each rank."""
        return f"{self.prefixes[2]}{axis_name(axis)}"

    @property
    def numbers(self) -> tuple[Number, ...]:
        """What tells how many elements of a pair of axes ranks reduce: over both, or over one for each
        element along the other."""
        return tuple(
            Number(
                f"{self.count('_'.join(map(axis_name, pair)))}_over_{'_'.join(map(axis_name, over))}",
                pair,
                over,
            )
            for pair in self.cut.pairs
            for over in (pair, pair[:1], pair[1:])
        )

    @staticmethod
    def own_number(node: Reduce) -> Expr:
        """How many elements a rank reduces itself."""
        return mul(*map(extent, sorted(node.over)))

    def told_number(self, node: Reduce) -> Expr:
        """The same number of each rank, to whoever reads what they tell."""
        lengths: dict[Axes, Expr] = {frozenset({axis}): extent(axis) for axis in sorted(node.over)}
        for cut in self.cut.among(node.arg.axes):
            over = node.over & cut
            if len(cut) == 1 and over:
                (axis,) = over
                lengths[over] = load(self.count(axis), frozenset({self.rank}))
            elif over:
                (told,) = (n for n in self.numbers if cut == {*n.pair} and over == {*n.over})
                lengths = {axes: each for axes, each in lengths.items() if not axes <= over}
                lengths[over] = load(told.name, frozenset({self.rank, *told.kept}))
        return mul(*lengths.values())


@dataclass(frozen=True, slots=True)
class Number:
    """A tensor that tells how many elements ranks reduce `over` axes of a `pair`, for each element along the
    axis that is `kept`, if there is one."""

    name: str
    pair: tuple[str, str]
    over: tuple[str, ...]

    @property
    def kept(self) -> tuple[str, ...]:
        """The axes along which it varies."""
        return tuple(axis for axis in self.pair if axis not in self.over)


def names_for(program: Program, cut: CutAxes) -> Names:
    """Names that are free in a program."""
    taken = _taken(program)

    def free(prefix: str) -> str:
        tried = (f"{prefix}{k}_" if k > 1 else f"{prefix}_" for k in count(1))
        return next(p for p in tried if not any(name.startswith(p) for name in taken))

    theirs = {a.name for a in program.axes}
    rank = next(r for r in chain(("Rank",), (f"Rank{k}" for k in count(2))) if r not in theirs)
    return Names(cut, rank, (free("size"), free("length"), free("count")))


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
        numbers_ = (
            _float_tensor(n.name, ((rank,), *((axis,) for axis in n.kept))) for n in self.names.numbers
        )
        handed = (replace(t, role="input") for t in more)
        every = (*self.program.operands, *handed, *gathered, *counts, *numbers_)
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
