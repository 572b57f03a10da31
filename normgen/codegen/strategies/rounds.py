"""One exchange between ranks: what each tells of its shards, and what stands for the old values from then on.

A reduction over a spread axis is one over a rank's own part and a small one over ranks. That is the cut that
`stages` makes along an axis in memory, so the algebra is the same (`nesting`).

    sum[D](x^2)                 t1 = sum[D](x^2) of a rank;  then sum[Rank](t1)
    mean[D](x), with squares    t1 = a rank's mean, t2 and t3 = sums of x - t1 and its square;  Chan's rule
    max[D](x), with exp         t1 = a rank's maximum, t2 = its sum of exponentials about t1
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from normgen.codegen.strategies.local import Names
from normgen.codegen.strategies.nesting import chan_share, is_partner, opened, partnered
from normgen.codegen.strategies.temporaries import Workspace
from normgen.ir.expr import add, call, compare, const, div, load, mul, neg, reduce, rewrite, select, sub
from normgen.ir.kinds import Kind, Kinds
from normgen.ir.nodes import Expr, Reduce, reductions, walk
from normgen.ir.program import Result
from normgen.kernel.levels import Exponentials, about_maximum

LARGEST = const(Fraction("3.4028234e38"))  # of float32, to which it rounds


@dataclass
class Round:
    """What ranks tell in one exchange."""

    names: Names
    workspace: Workspace
    numbered: Iterator[str]  # names of temporaries
    gradients: Collection[Expr]
    made: dict[Expr, Result] = field(default_factory=dict)
    parts: dict[str, Kind] = field(default_factory=dict)  # of a temporary: what a rank without elements tells
    table: dict[Expr, Expr] = field(default_factory=dict)  # of an old value: what stands for it

    def fill(self, needed: Sequence[Expr], found: Kinds, roots: Sequence[Expr]) -> None:
        """Have ranks tell what makes as much as possible of the `needed` parts whole."""
        first = self._first(needed)
        later = self._later(set(first), roots)
        apart = len(self.names.cut.pairs) > 1  # what is told is made of elements along one pair
        if not (later or apart) and len(needed) < len(first) and self._suffice(needed, first, found):
            # fewer values than reductions that they are made of
            for node in needed:
                self.table[node] = self._summed(node)
            return
        means = {reduce("sum", n.over, partnered(n)) for n in later if is_partner(n, set(first))}
        for node in first:
            self.table[node] = self._mean(node) if node in means else self._plain(node)
        for node in later:
            self.table[node] = self._with_others(node, set(first))

    def _first(self, needed: Sequence[Expr]) -> list[Reduce]:
        """The reductions that needed values are made of, and that are made of no other."""
        below = set(needed)
        return [n for n in self._over_ranks(*needed) if not below.intersection(walk(n.arg))]

    def _later(self, first: set[Reduce], roots: Sequence[Expr]) -> list[Reduce]:
        """The reductions of values that are made of the first, which the same exchange serves."""
        later: list[Reduce] = []
        for node in self._over_ranks(*roots):
            inside = self._over_ranks(node.arg)
            if node in first or not inside or not first.union(later).issuperset(inside):
                continue
            if is_partner(node, first) or about_maximum(node, first) or self._opened(node):
                later.append(node)
        return later

    def _over_ranks(self, *roots: Expr) -> list[Reduce]:
        return [n for n in reductions(*roots) if self.names.cut.over_ranks(n) and not n.window]

    def _suffice(self, needed: Sequence[Expr], first: Sequence[Reduce], found: Kinds) -> bool:
        """Whether the needed values are sums that are linear in the first reductions: none of them is made of
        another one, which has to be whole before."""
        return all(
            found.of[node] == "sum"
            and set(self._over_ranks(node)) <= set(first)
            and not {n for n in walk(node) if n is not node}.intersection(needed)
            for node in needed
        )

    # ------------------------------------------------------------------------------- what ranks tell

    def _told(self, value: Expr, part: Kind = "sum") -> Expr:
        """A value of each rank, as all then have it."""
        if value not in self.made:
            self.made[value] = self.workspace.temporary(next(self.numbered), value)
            self.parts[self.made[value].tensor.name] = part
        return load(self.made[value].tensor.name, value.axes | {self.names.rank})

    def _summed(self, value: Expr) -> Expr:
        return self._over("sum", self._told(value))

    def _over(self, op: str, value: Expr) -> Expr:
        return reduce(op, {self.names.rank}, value)

    def _there(self, node: Reduce, value: Expr) -> Expr:
        """A value of each rank; 0 of one that has no elements, whose mean is no number."""
        return select(compare("==", self.names.told_number(node), 0), 0, value)

    def _plain(self, node: Reduce) -> Expr:
        part: Kind = "max" if node.op == "max" else "min" if node.op == "min" else "sum"
        return self._over(node.op, self._told(node, part))

    def _mean(self, node: Reduce) -> Expr:
        """A sum whose values are told with their squares, and so by their mean."""
        own = div(node, self.names.own_number(node))
        return self._over("sum", self._there(node, mul(self.names.told_number(node), self._told(own))))

    def _with_others(self, node: Reduce, first: set[Reduce]) -> Expr:
        if is_partner(node, first):
            numbers = (self.names.own_number(node), self.names.told_number(node))
            share = chan_share(node, node.over, numbers, self._told, self.table)
            return self._over("sum", self._there(node, share))
        if found := about_maximum(node, first):
            return self._exponentials(found)
        terms = [
            mul(rewrite(outside, self.table), self._summed(reduce("sum", node.over, inside)))
            for outside, inside in self._opened(node) or ()
        ]
        return add(*terms)

    def _exponentials(self, found: Exponentials) -> Expr:
        """A sum of exponentials about the largest value, told about the largest of each rank."""
        top, node = found.top, found.total

        # (finite, lest -inf less -inf spoil the sum of a rank whose values are all -inf)
        def bounded(value: Expr) -> Expr:
            least = call("max", value, neg(LARGEST))
            return least if found.shift is top else call("min", least, LARGEST)

        total = self._told(reduce("sum", node.over, call("exp", sub(found.value, bounded(top)))))
        told = bounded(self._told(top, "max"))
        whole = rewrite(found.shift, {top: self.table[top]})
        return self._over("sum", mul(total, call("exp", sub(told, whole))))

    def _opened(self, node: Reduce) -> tuple[tuple[Expr, Expr], ...] | None:
        """A sum as values times sums of what is made of no other reduction."""
        if node.op != "sum":
            return None
        parts = opened(node, node.over, self.gradients)
        if parts is None or any(self.names.cut.is_shard(outside.axes) for outside, _ in parts):
            return None
        return parts
