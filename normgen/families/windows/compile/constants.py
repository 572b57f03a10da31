"""What has no axes is computed once a thread: each such value becomes a scalar of its own, but for operands.

In a product or a sum of mixed rates the part without axes is gathered into one value first.

    k + 0.2 * alpha * sum[C: -2..2](x^2)     becomes     k + (0.2 * alpha) * sum[C: -2..2](x^2)
"""

from __future__ import annotations

from fractions import Fraction

from normgen.ir.expr import add, mul, power, rebuild, scalar
from normgen.ir.nodes import Add, Const, Expr, Extent, Load, Mul, Scalar, children, is_condition, walk


class Constants:
    """Rewrites expressions; `values` are what the new scalars stand for, in the order of their making."""

    def __init__(self) -> None:
        self.values: dict[Expr, Expr] = {}
        self._done: dict[Expr, Expr] = {}

    def rewrite(self, node: Expr) -> Expr:
        """The expression with its values without axes as scalars."""
        if node not in self._done:
            self._done[node] = self._rewrite(node)
        return self._done[node]

    def _rewrite(self, node: Expr) -> Expr:
        if _is_fixed(node):
            return self._leaf(node)
        match node:
            case Mul(coefficient=c, factors=pairs):
                fixed = mul(c, *(power(b, e) for b, e in pairs if _is_fixed(b)))
                rest = (power(self.rewrite(b), e) for b, e in pairs if not _is_fixed(b))
                return mul(self._leaf(fixed), *rest)
            case Add(terms=pairs):
                fixed = add(*(mul(c, t) for t, c in pairs if _is_fixed(t)))
                rest = (self._term(t, c) for t, c in pairs if not _is_fixed(t))
                return add(self._leaf(fixed), *rest)
            case _:
                return rebuild(node, tuple(map(self.rewrite, children(node))))

    def _term(self, term: Expr, coefficient: Fraction) -> Expr:
        """A term of a sum; its coefficient joins what is gathered, if anything is."""
        if isinstance(term, Mul) and any(_is_fixed(b) for b, _ in term.factors):
            return self.rewrite(mul(coefficient, term))
        return mul(coefficient, self.rewrite(term))

    def _leaf(self, node: Expr) -> Expr:
        if isinstance(node, Const | Scalar | Extent) or is_condition(node):
            return node
        leaf = scalar(f"%{node.key}")
        self.values[leaf] = node
        return leaf


def _is_fixed(node: Expr) -> bool:
    """Whether a value is the same everywhere, and made of nothing that is read."""
    return not node.axes and not any(isinstance(n, Load) for n in walk(node))
