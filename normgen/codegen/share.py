"""Rewrites of an element's expression that save operations: factors multiplied in, products shared."""

from __future__ import annotations

from collections import Counter

from normgen.ir.expr import Add, Expr, Mul, Reduce, add, children, load, mul, power, rewrite, walk


def evaluated(*roots: Expr) -> list[Expr]:
    """What a pass evaluates for the roots, operands before what uses them. Reductions have their values by
    then: what is below them is left out.
    """
    reached: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack.extend(() if isinstance(node, Reduce) else children(node))
    return [node for node in walk(*roots) if node in reached]


def distribute(factor: Expr, total: Expr) -> Expr:
    """The sum with every term multiplied by the factor."""
    assert isinstance(total, Add)
    return add(*(mul(c, factor, t) for t, c in total.terms))


def share_products(roots: list[Expr]) -> tuple[dict[Expr, Expr], list[Expr]]:
    """Products of two factors that several products contain: (leaf -> product), and the roots in their terms.

    `a * b * c` and `a * b * d` take three multiplications, not four, and so do `a * b * c` and `a^2 * b^2`.
    """
    definitions: dict[Expr, Expr] = {}
    while True:
        nodes = evaluated(*roots)
        products = [n for n in nodes if isinstance(n, Mul)]
        pairs: Counter[tuple[Expr, Expr]] = Counter()
        for n in products:
            for exponent in (1, 2):
                alike = [b for b, e in n.factors if e == exponent]
                pairs.update((a, b) for i, a in enumerate(alike) for b in alike[i + 1 :] if a.axes | b.axes)
        best = next(((pair, count) for pair, count in pairs.most_common(1)), None)
        if best is None or best[1] < 2:
            return definitions, roots
        left, right = best[0]
        whole = mul(left, right)
        leaf = load(f"%{whole.key}", whole.axes)
        definitions[leaf] = whole
        table: dict[Expr, Expr] = {n: n for n in nodes if isinstance(n, Reduce)}
        for n in products:
            factors = dict(n.factors)
            if factors.get(left) == factors.get(right) in (1, 2):
                rest = [power(b, e) for b, e in n.factors if b not in (left, right)]
                table[n] = mul(n.coefficient, power(leaf, factors[left]), *rest)
        roots = [rewrite(r, table) for r in roots]
