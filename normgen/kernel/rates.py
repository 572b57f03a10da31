"""Values of two rates in one expression: what is the same for a whole row, and what each element has.

In the expression of an element every part that belongs to the row is gathered into one leaf, which is
computed once, so that an element costs few operations.

    (x - mu[B]) * rstd[B] * w[D] * m[B]      (x - mu) * w * leaf, where leaf = rstd * m
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from normgen.ir.expr import add, children, mul, power, rebuild, reductions, scalar, terms, walk
from normgen.ir.nodes import Add, Axes, Const, Expr, Extent, Load, Mul, Reduce, Scalar, is_condition
from normgen.kernel.powers import HIGH, repeated
from normgen.kernel.regroup import may_regroup
from normgen.kernel.share import distribute


class Rates:
    """`inner`: the axes of a row. `names`: the values that have one. `uses`: of each value, how many others
    are made of it. `gradients`: the values whose sums may be regrouped. `leaves`: what each leaf stands for.
    """

    def __init__(
        self, inner: Axes, names: Mapping[Expr, str], uses: Counter[Expr], gradients: Collection[Expr]
    ) -> None:
        self._inner, self._names, self._uses, self._gradients = inner, names, uses, gradients
        self._leaf_of: dict[Expr, Expr] = {}
        self.leaves: dict[Expr, Expr] = {}

    def per_row(self, node: Expr) -> bool:
        """Whether the value is the same for all elements of a row."""
        return not node.axes & self._inner

    def atomic(self, node: Expr) -> bool:
        """Whether the value is there without computing anything."""
        return node in self._names or isinstance(node, Const | Extent)

    def hoist(self, node: Expr) -> Expr:
        """The element's expression with every part that belongs to the row replaced by one leaf."""
        return self.hoist_all([node])[0]

    def hoist_all(self, nodes: Sequence[Expr]) -> list[Expr]:
        """`hoist` of each; what they share is hoisted once."""
        done: dict[Expr, Expr] = {}
        for node in walk(*nodes, into=self._parts):  # operands first: however deep, nothing recurs
            self._hoist(node, done)
        return [done[node] for node in nodes]

    def _parts(self, node: Expr) -> tuple[Expr, ...]:
        """What a value is made of for each element."""
        if self.per_row(node) or self.atomic(node):
            return ()
        return tuple(child for child in children(node) if not self.per_row(child))

    def _hoist(self, node: Expr, done: dict[Expr, Expr]) -> Expr:
        """`done`: what is hoisted already, since a value may stand in many places."""
        if (found := done.get(node)) is None:
            found = done[node] = self._hoisted(node, done)
        return found

    def _hoisted(self, node: Expr, done: dict[Expr, Expr]) -> Expr:
        if self.per_row(node):
            return self._leaf(node)
        if self.atomic(node) or isinstance(node, Load):
            return node
        match node:
            case Mul():
                return self._hoisted_product(node, done)
            case Add():
                return self._hoisted_sum(node, done)
            case Reduce():
                raise AssertionError("a reduction over part of the row")
            case _:
                return rebuild(node, tuple(self._hoist(c, done) for c in children(node)))

    def _hoisted_product(self, node: Mul, done: dict[Expr, Expr]) -> Expr:
        c = node.coefficient
        row = [(b, e) for b, e in node.factors if self.per_row(b)]
        other = [(b, e) for b, e in node.factors if not self.per_row(b)]
        if _is_lonely(row, other):
            roots = (power(self._leaf(b), times) for b, times in (repeated(b, e) for b, e in row))
            return mul(c, *roots, *(power(self.hoist(b), e) for b, e in other))
        powers = [power(b, e) for b, e in row]
        sums = [b for b, e in other if e == 1 and self._takes_row_factor(b)][:1] if powers else []
        rest = [power(self._hoist(b, done), e) for b, e in other if b not in sums]
        if sums:
            return mul(self._hoist(distribute(mul(c, *powers), sums[0]), done), *rest)
        return mul(self._leaf(mul(c, *powers)) if powers else c, *rest)

    def _hoisted_sum(self, node: Add, done: dict[Expr, Expr]) -> Expr:
        alone = [mul(c, t) for t, c in node.terms if self.per_row(t)]
        rest = []
        for term, c in node.terms:
            if self.per_row(term):
                continue
            found = mul(c, self._hoist(term, done))
            # (a factor of the row that went into a sum may have left more of the row beside it)
            spread = isinstance(term, Mul) and isinstance(found, Add)
            for part, k in terms(found) if spread else ((found, Fraction(1)),):
                if part in self.leaves:
                    alone.append(mul(k, self.leaves[part]))
                else:
                    rest.append(mul(k, part))
        return add(*([self._leaf(add(*alone))] if alone else []), *rest)

    def _takes_row_factor(self, node: Expr) -> bool:
        """Whether a factor of the row is better multiplied into the terms of a sum: those that have a part of
        the row then cost nothing. A sum with an operand as it was loaded stays: its difference may be exact.
        """
        if not isinstance(node, Add) or self._uses[node] > 1 or self.per_row(node):
            return False
        if not may_regroup(node, self._gradients):
            return False
        scaled = [t for t, _ in node.terms if self.per_row(t) or self._has_row_factor(t)]
        return bool(scaled) and not any(isinstance(t, Load) for t, _ in node.terms)

    def _has_row_factor(self, node: Expr) -> bool:
        return isinstance(node, Mul) and any(self.per_row(b) for b, _ in node.factors)

    def _leaf(self, node: Expr) -> Expr:
        """What stands for a value of the row in an element's expression: the same whenever it is asked."""
        if node not in self._leaf_of:
            self._leaf_of[node] = self._new_leaf(node)
        return self._leaf_of[node]

    def _new_leaf(self, node: Expr) -> Expr:
        # A product or sum would dissolve in the one around it, even where it has a name.
        composite = isinstance(node, Mul | Add)
        simple = self.atomic(node) or isinstance(node, Scalar | Load | Reduce) or is_condition(node)
        if simple and not composite:
            return node
        match node:
            case Mul(coefficient=c, factors=((base, e),)) if c == -1 and e == 1:
                return mul(-1, self._leaf(base))
        leaf = scalar(f"%{node.key}")
        self.leaves[leaf] = node
        return leaf


def _is_lonely(row: list[tuple[Expr, Fraction]], rest: list[tuple[Expr, Fraction]]) -> bool:
    """Whether what belongs to the row has a high power, and only what belongs to the element balances that: a
    value of its own would leave range where the product does not."""
    if any(e > 0 and reductions(b) for b, e in row):
        return False
    high = any(repeated(b, e)[1] >= (2 if reductions(b) else HIGH) for b, e in row)  # of squares, perhaps
    balanced = any(e == 1 and not isinstance(b, Extent) for b, e in row)  # a sum that was stored, perhaps
    return high and (not balanced or any(repeated(b, e)[1] >= HIGH for b, e in rest))
