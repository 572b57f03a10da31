"""Formulas of sizes that only a call knows: sums of products of axes and of whole quotients of such sums.

They are kept in one normal form, so that equal formulas mostly are equal objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from normgen.locks import cached_property


@dataclass(frozen=True)
class Axis:
    """The length of an axis."""

    name: str


@dataclass(frozen=True)
class Quotient:
    """`value` // `divisor`, where `value` is not negative."""

    value: Formula
    divisor: int


Atom = Axis | Quotient
Product = tuple[Atom, ...]  # sorted: axes first


def _order(atom: Atom) -> tuple[bool, str]:
    return isinstance(atom, Quotient), repr(atom)


@dataclass(frozen=True)
class Formula:
    """A sum of terms: a product of atoms with its factor, which is not 0."""

    terms: tuple[tuple[Product, int], ...]

    @staticmethod
    def of(value: int) -> Formula:
        """A number."""
        return Formula((((), value),) if value else ())

    @staticmethod
    def axis(name: str) -> Formula:
        """The length of an axis."""
        return Formula((((Axis(name),), 1),))

    @property
    def number(self) -> int | None:
        """Its value where that is known."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes that it depends on."""
        found = chain.from_iterable(product for product, _ in self.terms)
        return frozenset(
            name for atom in found for name in ((atom.name,) if isinstance(atom, Axis) else atom.value.axes)
        )

    def __add__(self, other: Formula) -> Formula:
        return _collected(chain(self.terms, other.terms))

    def __neg__(self) -> Formula:
        return Formula(tuple((product, -factor) for product, factor in self.terms))

    def __sub__(self, other: Formula) -> Formula:
        return self + -other

    def __mul__(self, other: Formula) -> Formula:
        return _collected(
            (tuple(sorted((*p, *q), key=_order)), a * b) for p, a in self.terms for q, b in other.terms
        )

    def exactly_over(self, other: Formula) -> Formula | None:
        """The quotient by a formula of one term, where it goes into each of these."""
        if len(other.terms) != 1:
            return None
        ((product, factor),) = other.terms
        found: list[tuple[Product, int]] = []
        for mine, times in self.terms:
            left = list(mine)
            for atom in product:
                if atom not in left:
                    return None
                left.remove(atom)
            if times % factor:
                return None
            found.append((tuple(left), times // factor))
        return Formula(tuple(found))

    def over(self, divisor: int) -> Formula:
        """The quotient by a positive number, rounded down, of what is not negative."""
        whole = self.exactly_over(Formula.of(divisor))
        if whole is not None:
            return whole
        # what the divisor goes into stands for itself
        out = [(product, factor) for product, factor in self.terms if factor % divisor == 0 and product]
        rest = Formula(tuple(term for term in self.terms if term not in out))
        if out and rest.rising:
            return Formula(tuple(out)).over(divisor) + rest.over(divisor)
        if self.number is not None:
            return Formula.of(self.number // divisor)
        return Formula((((Quotient(self, divisor),), 1),))

    @property
    def rising(self) -> bool:
        """Whether it is never negative, and never less where axes are longer, as its signs show."""
        return all(factor > 0 for _, factor in self.terms) and all(
            atom.value.grows for product, _ in self.terms for atom in product if isinstance(atom, Quotient)
        )

    @property
    def grows(self) -> bool:
        """Whether it is never less where axes are longer, as its signs show."""
        return Formula(tuple(term for term in self.terms if term[0])).rising

    def value(self, sizes: Mapping[str, int]) -> int:
        """Its value for these lengths."""
        total = 0
        for product, factor in self.terms:
            for atom in product:
                factor *= (
                    sizes[atom.name] if isinstance(atom, Axis) else atom.value.value(sizes) // atom.divisor
                )
            total += factor
        return total

    def text(self, name: Callable[[str], str] = str, divide: str = "//") -> str:
        """As C or Python writes it. `name`: how axes are called there; `divide`: their whole division."""
        # what is added comes first, then what is taken away; numbers last
        in_order = sorted(self.terms, key=lambda term: (term[1] < 0, not term[0]))
        parts = [_term(product, factor, name, divide) for product, factor in in_order]
        return " ".join(parts).removeprefix("+ ") or "0"


def _collected(terms: Iterator[tuple[Product, int]] | chain[tuple[Product, int]]) -> Formula:
    found: dict[Product, int] = {}
    for product, factor in terms:
        found[product] = found.get(product, 0) + factor
    kept = [(product, factor) for product, factor in found.items() if factor]
    return Formula(tuple(sorted(kept, key=lambda term: [*map(_order, term[0])])))


def _term(product: Product, factor: int, name: Callable[[str], str], divide: str) -> str:
    shown = [
        name(atom.name)
        if isinstance(atom, Axis)
        else f"(({atom.value.text(name, divide)}) {divide} {atom.divisor})"
        if len(product) > 1 or factor != 1
        else f"({atom.value.text(name, divide)}) {divide} {atom.divisor}"
        for atom in product
    ]
    if abs(factor) != 1 or not product:
        shown.append(str(abs(factor)))
    return f"{'-' if factor < 0 else '+'} {' * '.join(shown)}"


def compiled(text: str, constants: Sequence[Any] = ()) -> Callable[[Mapping[str, int]], Any]:
    """A function of the lengths of axes. `text`: an expression of these, as `length` writes them, and of
    constants: `k[0]`, `k[1]`."""
    known = {"__builtins__": {}, "k": constants}
    found: Callable[[Mapping[str, int]], Any] = eval(f"lambda n: {text}", known)
    return found


def length(axis: str) -> str:
    """How such a text writes the length of an axis."""
    return f"n[{axis!r}]"
