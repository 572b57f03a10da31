"""Rewrites of an element's expression that save operations: factors multiplied in, products shared."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

from normgen.ir.expr import Add, Expr, Mul, Reduce, add, children, load, mul, order, power, rebuild, walk
from normgen.ir.work import spend

Pair = tuple[Expr, Expr]


def evaluated(*roots: Expr) -> list[Expr]:
    """What a pass evaluates for the roots, operands before what uses them. Reductions have their values by
    then: what is below them is left out.
    """
    return list(walk(*roots, into=lambda node: () if isinstance(node, Reduce) else children(node)))


def distribute(factor: Expr, total: Expr) -> Expr:
    """The sum with every term multiplied by the factor."""
    assert isinstance(total, Add)
    return add(*(mul(c, factor, t) for t, c in total.terms))


class _Factors:
    """The factors of a product: those to the powers of 1 and 2, which it may share in pairs, and the rest."""

    def __init__(self, product: Mul) -> None:
        self.alike = {k: [b for b, e in product.factors if e == k] for k in (1, 2)}
        self.rest = [(b, e) for b, e in product.factors if e not in (1, 2)]
        self.changed = False

    def left(self) -> list[tuple[Expr, int | Fraction]]:
        """What the product is of now."""
        return [*((base, k) for k, bases in self.alike.items() for base in bases), *self.rest]

    def pairs(self) -> Iterator[Pair]:
        """The pairs of factors that are alike, unless both are numbers."""
        for bases in self.alike.values():
            for i, base in enumerate(bases):
                yield from _paired(base, bases[i + 1 :])

    def replace(self, left: Expr, right: Expr, leaf: Expr, counts: Counter[Pair]) -> None:
        """The leaf in place of a pair, where both are there alike. `counts`: the pairs of all products."""
        bases = next((found for found in self.alike.values() if left in found and right in found), None)
        if bases is None:
            return
        for gone in (left, right):
            at = bases.index(gone)
            del bases[at]
            counts.subtract(_paired(gone, bases, at))
        at = bisect(bases, order(leaf), key=order)
        counts.update(_paired(leaf, bases, at))
        bases.insert(at, leaf)
        self.changed = True


def _paired(base: Expr, others: list[Expr], at: int = 0) -> Iterator[Pair]:
    """Pairs with the others, in order; `at`: how many of them come first."""
    for i, other in enumerate(others):
        if base.axes or other.axes:
            yield (other, base) if i < at else (base, other)


def share_products(roots: list[Expr]) -> tuple[dict[Expr, Expr], list[Expr]]:
    """Products of two factors that several products contain: (leaf -> product), and the roots in their terms.

    `a * b * c` and `a * b * d` take three multiplications, not four, and so do `a * b * c` and `a^2 * b^2`.
    """
    nodes = evaluated(*roots)
    products = {n: _Factors(n) for n in nodes if isinstance(n, Mul)}
    parts = _share_pairs(products)
    done: dict[Expr, Expr] = {leaf: leaf for leaf in parts}
    for n in nodes:
        old = children(n)
        if isinstance(n, Mul):
            changed = products[n].changed or any(done[child] is not child for child in old)
            made = (power(done[base], e) for base, e in products[n].left())
            done[n] = mul(n.coefficient, *made) if changed else n
        elif isinstance(n, Reduce) or all(done[child] is child for child in old):
            done[n] = n
        else:
            done[n] = rebuild(n, tuple(done[child] for child in old))
    values = {leaf: mul(done[left], done[right]) for leaf, (left, right) in parts.items()}
    return _in_order(values), [done[root] for root in roots]


def _in_order(values: dict[Expr, Expr]) -> dict[Expr, Expr]:
    """The definitions of leaves, each after those of the leaves that it is made of."""
    found: dict[Expr, Expr] = {}
    for leaf in values:
        waiting = [leaf]
        while waiting:
            top = waiting[-1]
            missing = [n for n in walk(values[top]) if n in values and n not in found]
            waiting += missing
            if not missing:
                found[waiting.pop()] = values[top]
    return found


def _share_pairs(products: Mapping[Mul, _Factors]) -> dict[Expr, Pair]:
    """Puts leaves in place of the pairs of factors that several of the products contain, the most frequent
    first; what they stand for."""
    counts = Counter(pair for factors in products.values() for pair in factors.pairs())
    parts: dict[Expr, Pair] = {}
    while counts and (most := max(counts.values())) > 1:
        left, right = next(p for factors in products.values() for p in factors.pairs() if counts[p] == most)
        spend(len(counts) // 8)
        whole = mul(left, right)
        leaf = load(f"%{whole.key}", whole.axes)
        parts[leaf] = left, right
        for factors in products.values():
            factors.replace(left, right, leaf, counts)
        counts = +counts
    return parts
