"""Which calls a formula is for: conditions that planning asked for, as bounds on products of axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

from normgen.launching.formula import Axis, Formula, compiled, length
from normgen.locks import cached_property

MOST = 2**62  # of any product of axes
MOST_OTHERS = 8  # conditions that are no bounds, of calls that are worth a case of their own


@dataclass(frozen=True)
class Limit:
    """Bounds of a product of axes, both of which it may reach."""

    axes: tuple[str, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Limits:
    """What all of these say: bounds, and formulas that are at least 0."""

    bounds: tuple[Limit, ...]
    others: tuple[Formula, ...]

    @cached_property
    def hold(self) -> Callable[[Mapping[str, int]], bool]:
        """Whether they do for given lengths."""
        return compiled(" and ".join(self.texts(length)) or "True")

    def texts(self, name: Callable[[str], str], divide: str = "//") -> Iterator[str]:
        """What lengths are to fulfil, as C or Python writes it. `name`: how lengths are called there."""
        for bound in self.bounds:
            product = " * ".join(map(name, bound.axes))
            if bound.low > 1:
                yield f"{product} >= {bound.low}"
            if bound.high < MOST:
                yield f"{product} <= {bound.high}"
        for other in self.others:
            yield f"{other.text(name, divide)} >= 0"

    @property
    def pinned(self) -> frozenset[str]:
        """Axes of which hardly more than a single length is within them."""
        single = (bound.axes for bound in self.bounds if bound.low == bound.high)
        tangled = (each.axes for each in self.others) if len(self.others) > MOST_OTHERS else ()
        return frozenset(chain.from_iterable((*single, *tangled)))

    def beyond(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Lengths near these, just out of each of the bounds."""
        for bound in self.bounds:
            *outer, last = bound.axes
            others, ones = prod(sizes[axis] for axis in outer), dict.fromkeys(outer, 1)
            if bound.high < MOST:
                yield {**sizes, last: bound.high // others + 1}
                yield {**sizes, **ones, last: bound.high + 1}
            if bound.low > others:
                yield {**sizes, last: (bound.low - 1) // others}
            if bound.low > 1:
                yield {**sizes, **ones, last: bound.low - 1}


def limits_of(conditions: Iterable[Formula]) -> Limits:
    """The bounds of formulas that are all at least 0."""
    found: dict[tuple[str, ...], Limit] = {}
    others: list[Formula] = []
    for condition in conditions:
        bound = _bound(condition)
        if bound is None:
            others.append(condition)
            continue
        known = found.get(bound.axes, bound)
        found[bound.axes] = Limit(bound.axes, max(known.low, bound.low), min(known.high, bound.high))
    bounds = sorted(found.values(), key=lambda bound: (len(bound.axes), bound.axes))
    return Limits(tuple(each for each in bounds if each.low > 1 or each.high < MOST), tuple(others))


def joined(one: Limits, other: Limits) -> Limits | None:
    """What either says, where that can be said in one: two ranges of one product that meet."""
    if one.others or other.others or len(one.bounds) != 1 or len(other.bounds) != 1:
        return None
    first, second = sorted((one.bounds[0], other.bounds[0]), key=lambda bound: bound.low)
    if first.axes != second.axes or first.high + 1 < second.low:
        return None
    return Limits((Limit(first.axes, first.low, max(first.high, second.high)),), ())


def _bound(condition: Formula) -> Limit | None:
    """What a formula says that depends on one product of axes, and only grows or only shrinks with it."""
    products = set(_products(condition))
    axes = products.pop() if len(products) == 1 else None
    if axes is None:
        return None
    if condition.grows:
        return Limit(axes, _first(condition, axes), MOST)
    if (-condition).grows:
        return Limit(axes, 1, _first(-condition - Formula.of(1), axes) - 1)
    return None


def _products(formula: Formula) -> Iterator[tuple[str, ...] | None]:
    """The products of axes in it; None for what is none."""
    for product, _ in formula.terms:
        names = tuple(atom.name for atom in product if isinstance(atom, Axis))
        if len(names) == len(product):
            if names:
                yield names if len(set(names)) == len(names) else None
        elif len(product) == 1 and not isinstance(product[0], Axis):
            yield from _products(product[0].value)
        else:
            yield None


def _first(condition: Formula, axes: tuple[str, ...]) -> int:
    """The least product of axes for which a formula that grows is at least 0."""

    def holds(product: int) -> bool:
        return condition.value({**dict.fromkeys(axes, 1), axes[0]: product}) >= 0

    low, high = 1, 1
    while high < MOST and not holds(high):
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
