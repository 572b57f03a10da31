"""What is known of a text before it is printed: which values are numbers, which products are parts of
others, and how often each value is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from normgen.ir.nodes import Add, Call, Expr, Load, Mul, Reduce, Round, children, walk
from normgen.ir.program import Program


@dataclass(frozen=True, slots=True)
class Form:
    """What a text depends on. `stored`: the results and the states that are computed, with the element types
    that they are stored in; `dtypes`: those of operands; `reuses`: whether values are written over that no
    longer count, which graphs of operators must not."""

    stored: tuple[tuple[str, str], ...]
    given: tuple[str, ...]  # operands, in order
    zeros: frozenset[str]  # operands that are not given and count as 0, not as their defaults
    dtypes: tuple[tuple[str, str], ...]
    reuses: bool

    @property
    def real(self) -> str:
        """The element type of values."""
        return "f64" if "f64" in dict(self.dtypes).values() else "f32"


def axes_of(program: Program) -> tuple[str, ...]:
    """The axes of a program in the order of dimensions."""
    named = [axis.name for axis in program.axes]
    tensors = [*program.operands, *(r.tensor for r in program.results)]
    return tuple(dict.fromkeys([*(a for t in tensors for a in t.order), *named]))


class Plan:
    """The values of a program that a call computes, in order."""

    def __init__(self, program: Program, form: Form) -> None:
        self.program, self.form = program, form
        self.axes = axes_of(program)
        self.dtypes = {t.name: t.dtype or "f32" for t in program.operands} | dict(form.dtypes)
        self.operands = {tensor.name: tensor for tensor in program.operands}
        stored = dict(form.stored)
        self.roots = [(r.expr, r.tensor) for r in program.results if r.tensor.name in stored]
        self.roots += [(u.expr, self.operands[u.state]) for u in program.updates if u.state in stored]
        self.nodes = list(dict.fromkeys(map(self.real, walk(*(expr for expr, _ in self.roots)))))
        self.numbers: set[Expr] = set()
        for node in self.nodes:
            if self._is_number(node):
                self.numbers.add(node)
        self.parts = self._parts()
        roots = [self.real(expr) for expr, _ in self.roots]
        self.nodes = list(walk(*roots, into=lambda node: tuple(self._children(node))))
        self.within = self._within()
        self.uses = Counter(self.real(expr) for expr, _ in self.roots)
        for node in self.nodes:
            if node not in self.within:
                self.uses.update(self._used(node))
        tensors = (*self.operands.values(), *(tensor for _, tensor in self.roots))
        self.wide = max((tensor.axes for tensor in tensors), key=len)

    def real(self, node: Expr) -> Expr:
        """The node that a node is, where it does nothing."""
        while (isinstance(node, Call) and node.op == "stop") or (
            isinstance(node, Round) and self._type(node) in (self.form.real, "f64")
        ):
            (node,) = children(node)
        return node

    def _type(self, node: Round) -> str:
        like = node.to.removeprefix("like ")
        return self.dtypes[like] if like != node.to else like

    def _is_number(self, node: Expr) -> bool:
        if isinstance(node, Load):
            return node.tensor not in self.form.given
        if isinstance(node, Reduce) and node.window:
            return False
        return all(self.real(child) in self.numbers for child in children(node))

    def _children(self, node: Expr) -> list[Expr]:
        """The operands of a node, as it is computed."""
        part = self.parts.get(node)
        if part is None:
            return [self.real(child) for child in children(node)]
        assert isinstance(node, Mul) and isinstance(part, Mul)
        return [part, *(self.real(factor) for factor, _ in rest_of(node, part))]

    def _parts(self) -> dict[Expr, Expr]:
        """Products that others are made of, which then need not be computed again."""
        products = [node for node in self.nodes if isinstance(node, Mul) and node not in self.numbers]
        found: dict[Expr, Expr] = {}
        for node in products:
            inner = [p for p in products if p is not node and p.coefficient == 1 and is_part(p, node)]
            inner = [p for p in inner if sum(f not in self.numbers for f, _ in p.factors) > 1]
            if inner:
                found[node] = max(inner, key=lambda p: (len(p.axes), len(p.factors)))
        return found

    def _within(self) -> set[Expr]:
        """Products that one sum alone has as a term, which multiplies while it adds."""
        users: dict[Expr, list[Expr]] = {self.real(expr): [expr, expr] for expr, _ in self.roots}
        for node in self.nodes:
            for child in self._children(node):
                users.setdefault(child, []).append(node)
        return {
            node
            for node, by in users.items()
            if isinstance(node, Mul) and node not in self.numbers and len(by) == 1 and isinstance(by[0], Add)
        }

    def _used(self, node: Expr) -> list[Expr]:
        """The tensors that are read where a node is computed."""
        if node in self.numbers:
            return []
        found = []
        for child in self._children(node):
            found += self._used(child) if child in self.within else [child]
        return [each for each in found if each not in self.numbers]


def is_part(part: Mul, whole: Mul) -> bool:
    return len(part.factors) < len(whole.factors) and set(part.factors) <= set(whole.factors)


def rest_of(whole: Mul, part: Mul) -> tuple[tuple[Expr, Fraction], ...]:
    """The factors of a product without those of a part of it."""
    return tuple(factor for factor in whole.factors if factor not in part.factors)
