"""A program whose axes are spread over ranks -> local programs, with exchanges between them.

Each *round* is a local program that leaves temporaries, which all ranks then have of all ranks. `merge`
makes what is whole of those: the same results on every rank, and the values that `apply` reads. `apply`
computes the shards, and the parts of sums over ranks.

    a root mean square, D spread
      round   t1[...] = sum[D](x^2)                                  of a rank's x
      merge   rstd[...] = rsqrt(sum[Rank](t1[Rank, ...]) / size_D + eps)
      apply   y[..., D] = x * rstd * w

All of these are programs like any other: families plan them, and they are compiled as norms are. What is to
be exchanged is read off the expressions (`ir.kinds`); how little that can be is algebra (`rounds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from normgen.codegen.strategies.local import Locals, Names, names_for, sized
from normgen.codegen.strategies.rounds import Round
from normgen.codegen.strategies.temporaries import Workspace, frontier, loads_of
from normgen.ir.centre import centre
from normgen.ir.expr import rebuild, rewrite
from normgen.ir.kinds import PARTS, CutAxes, Kind, Kinds, Unspreadable, kinds
from normgen.ir.nodes import Axes, Expr, Load, Reduce, children, is_condition, made_of, reductions, walk
from normgen.ir.program import Program, Result, Tensor, Update
from normgen.ir.ties import computed_ties


@dataclass(frozen=True, slots=True)
class Spread:
    """A program cut for ranks. `placements`: whether a rank has a "shard", the "whole" or a "part" of the sum
    of each result, and of each state's new value as `update:<state>`. `parts`: of each temporary, what kind
    of part of its value a rank tells. `own`: the temporaries that `apply` reads as this rank told them, by
    the names that it has for these. `uncut`: all results, made of what ranks have told."""

    names: Names
    rounds: tuple[Program, ...]
    merge: Program
    apply: Program
    placements: Mapping[str, str]
    parts: Mapping[str, Kind]
    own: Mapping[str, str]
    uncut: Program

    @property
    def told(self) -> list[list[Tensor]]:
        """The temporaries that are exchanged in each round."""
        return [
            [r.tensor for r in program.results if r.tensor.role == "temporary"] for program in self.rounds
        ]


def spread(
    program: Program, cut: CutAxes | Axes, cotangents: Collection[str] = (), whole: Collection[str] = ()
) -> Spread:
    """The local programs of a program whose axes are spread over the ranks of one group.

    `cotangents`: the operands in which the results are linear, where these are gradients. `whole`: the
    gradients that ranks add up, which are left as parts of a sum otherwise. Raises `Unspreadable`.
    """
    cut = cut if isinstance(cut, CutAxes) else CutAxes(cut)
    corrected = _spread(centre(program), cut, cotangents, whole)
    if cotangents and corrected.rounds:
        # A stored mean is corrected where that takes no exchange of its own.
        plain = _spread(program, cut, cotangents, whole)
        if len(plain.rounds) < len(corrected.rounds):
            return plain
    return corrected


def _spread(program: Program, cut: CutAxes, cotangents: Collection[str], whole: Collection[str]) -> Spread:
    names = names_for(program, cut)
    program = sized(program, names)
    workspace = Workspace(program)
    numbered = workspace.names(program)
    roots = {r.tensor.name: r.expr for r in program.results}
    roots |= {f"update:{u.state}": u.expr for u in program.updates}
    gradients_of_whole = (r.tensor for r in program.results if r.tensor.role == "gradient")
    may_stay = {t.name for t in gradients_of_whole if not cut.is_shard(t.axes)} - set(whole)
    _refuse_ties(roots.values(), cut.axes)
    rounds: list[tuple[Result, ...]] = []
    parts: dict[str, Kind] = {}
    while True:
        gradients = made_of(cotangents, *roots.values())
        found = kinds(roots.values(), cut, gradients)
        asked = (e for name, e in roots.items() if found.is_part(e) and not _stays(name, e, found, may_stay))
        needed = list(dict.fromkeys((*found.needed, *asked)))
        if not needed:
            return _Spreading(program, names, workspace, numbered, rounds, parts).finish(roots, found)
        made = Round(names, workspace, numbered, gradients)
        made.fill(needed, found, list(roots.values()))
        assert made.made and len(rounds) < 12, "each exchange makes some value whole"
        rounds.append(tuple(made.made.values()))
        parts |= made.parts
        rewritten = _Rewriting(made.table, found)
        roots = {
            name: rewritten.part(e) if _stays(name, e, found, may_stay) else rewrite(e, made.table)
            for name, e in roots.items()
        }


def _stays(name: str, value: Expr, found: Kinds, may_stay: Collection[str]) -> bool:
    """Whether a result is a part of a sum, and may be."""
    return name in may_stay and found.of[value] == "sum"


def _refuse_ties(roots: Collection[Expr], axes: Axes) -> None:
    for _, extreme in computed_ties(*roots):
        if over := sorted(extreme.over & axes):
            what = f"a maximum or minimum over {over[0]}"
            reason = f"compares {what} with values that ranks recompute and may round differently"
            raise Unspreadable(reason, over[0], extreme)


class _Rewriting:
    """Values with what an exchange has made whole, where parts of sums stay parts."""

    def __init__(self, table: Mapping[Expr, Expr], found: Kinds) -> None:
        self.table, self.found = table, found
        self.done: dict[Expr, Expr] = {}

    def part(self, node: Expr) -> Expr:
        """A part of a sum, made of what is whole now."""
        if node not in self.done:
            linear = self.found.linear.get(node, ())
            new = (self.part(c) if c in linear else rewrite(c, self.table) for c in children(node))
            self.done[node] = rebuild(node, tuple(new), real=True)
        return self.done[node]


@dataclass
class _Spreading:
    """What is left once nothing more is to be exchanged."""

    program: Program
    names: Names
    workspace: Workspace
    numbered: Iterator[str]
    rounds: list[tuple[Result, ...]]
    parts: dict[str, Kind]

    def finish(self, roots: Mapping[str, Expr], found: Kinds) -> Spread:
        """The local programs."""
        placements = self._placements(roots, found)
        results = {r.tensor.name: replace(r, expr=roots[r.tensor.name]) for r in self.program.results}
        moves = ((f"update:{u.state}", u) for u in self.program.updates)
        updates = {name: replace(u, expr=roots[name]) for name, u in moves}
        whole, local = _divided(results, placements)
        whole_updates, local_updates = _divided(updates, placements)
        early = self._early([r for r in local if placements[r.tensor.name] == "part"])
        local = [r for r in local if r not in early]
        handed = self._handed([*local, *local_updates], found, {u.state for u in whole_updates})
        table = loads_of(handed)
        local = [replace(r, expr=rewrite(r.expr, table)) for r in local]
        local_updates = [replace(u, expr=rewrite(u.expr, table)) for u in local_updates]
        own, kept = self._own([r.expr for r in local])
        local = [replace(r, expr=rewrite(r.expr, kept)) for r in local]
        locals_ = Locals(self.program, self.names, tuple(r.tensor for made in self.rounds for r in made))
        return Spread(
            self.names,
            self._round_programs(locals_, early),
            locals_.of("merge", [*handed, *whole], whole_updates),
            locals_.of("apply", local, local_updates, [*(r.tensor for r in handed), *own]),
            placements,
            self.parts,
            {tensor.name: name for tensor, name in own.items()},
            replace(self.program, results=tuple(results.values()), updates=tuple(updates.values())),
        )

    def _placements(self, roots: Mapping[str, Expr], found: Kinds) -> dict[str, str]:
        """A result with the axis is a shard, be its value the same all along it."""
        cut = self.names.cut
        shards = {r.tensor.name for r in self.program.results if cut.is_shard(r.tensor.axes)}
        shards |= {f"update:{t.name}" for t in self.program.operands if cut.is_shard(t.axes)}
        return {name: "shard" if name in shards else _placement(found.of[e]) for name, e in roots.items()}

    def _round_programs(self, locals_: Locals, early: list[Result]) -> tuple[Program, ...]:
        rounds = [
            locals_.of(f"round_{k}", (*made, *(early if k == 1 else ())))
            for k, made in enumerate(self.rounds, 1)
        ]
        for node in self._of_whole([r.expr for program in rounds for r in program.results]):
            axis = min(node.over & self.names.cut.paired)
            raise Unspreadable(f"sums over {axis} a value that every rank has whole", axis, node)
        return tuple(rounds)

    def _own(self, local: list[Expr]) -> tuple[dict[Tensor, str], dict[Expr, Expr]]:
        """The sums that a rank has told and that its own parts of results are made of too: it keeps them, in
        place of summing again. Of each temporary for that what it is called where all ranks tell it."""
        present = set(walk(*local))
        again = [r for made in self.rounds for r in made if r.expr in present]
        made = [self.workspace.temporary(next(self.numbered), r.expr) for r in again]
        names = {own.tensor: r.tensor.name for own, r in zip(made, again, strict=True)}
        return names, loads_of(made)

    def _early(self, parts: list[Result]) -> list[Result]:
        """The parts of sums that the first round makes anyway: writing them there spares a pass."""
        if not self.rounds:
            return []
        summed = set(reductions(*(r.expr for r in self.rounds[0])))
        return [r for r in parts if set(reductions(r.expr)) <= summed and not self._told_below(r.expr)]

    def _told_below(self, *roots: Expr) -> list[Expr]:
        return [n for n in walk(*roots) if isinstance(n, Load) and self.names.rank in n.axes]

    def _of_whole(self, roots: Collection[Expr]) -> list[Reduce]:
        """The reductions over axes of pairs of what ranks have whole: where shards are computed, they are
        given what they have shards of alone."""
        cut = self.names.cut
        return [n for n in reductions(*roots) if n.over & cut.paired and not cut.over_ranks(n)]

    def _handed(
        self, local: list[Result | Update], found: Kinds, moved: Collection[str]
    ) -> tuple[Result, ...]:
        """What `merge` leaves for `apply`: the largest whole values that are made of what ranks told, or of
        states that have `moved` on by then."""
        roots = [each.expr for each in local]
        merged: set[Expr] = set(self._told_below(*roots))
        merged |= {n for n in walk(*roots) if isinstance(n, Load) and n.tensor in moved}
        merged |= {n for n in self._of_whole(roots) if found.of[n] == "whole"}
        for node in walk(*roots):
            if merged.intersection(children(node)):
                merged.add(node)
        values = frozenset(
            n
            for n in merged
            if found.of[n] == "whole" and self.names.rank not in n.axes and not is_condition(n)
        )
        made = frontier(roots, values)
        return tuple(self.workspace.temporary(next(self.numbered), value) for value in made)


Made = TypeVar("Made", Result, Update)


def _divided(values: Mapping[str, Made], placements: Mapping[str, str]) -> tuple[list[Made], list[Made]]:
    """What every rank has whole, and what it does not."""
    whole = [each for name, each in values.items() if placements[name] == "whole"]
    return whole, [each for name, each in values.items() if placements[name] != "whole"]


def _placement(kind: Kind) -> str:
    return "part" if kind in PARTS else kind
