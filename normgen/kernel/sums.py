"""What one pass over a row takes in: the sums of its level, and in the last of them what is found besides.

A gradient of what parts of rows share is made of sums over those parts (`parts`), of what pieces share of
sums over these; and an accumulator of the
largest over rows of what each thread found in its own elements (`largest`): neither is exchanged in the row.
"""

from __future__ import annotations

from collections.abc import Callable

from normgen.ir.expr import Expr, Load, Reduce, mul, walk
from normgen.kernel.accumulators import Column
from normgen.kernel.kept import leaf_of
from normgen.kernel.linear import split
from normgen.kernel.phases import FUNCTOR, START, Phase, Sum, taken
from normgen.kernel.plan import KernelPlan
from normgen.kernel.printer import Printer

NOTHING = "0.f"  # the largest magnitude of no elements: a factor that is 0 makes no NaN of it


class Sums:
    """Writes what the sums of a pass take in. `take`: a new name for a value of a kind; `element`: the texts
    of values of an element, whose statements it adds to the phase.

    `parts`, `largest`: what the last pass of sums adds up of each part of a row, or finds the largest of, by
    what it is made of.
    """

    def __init__(
        self,
        plan: KernelPlan,
        printer: Printer,
        take: Callable[[Expr, str], str],
        element: Callable[[Phase, list[Expr]], list[str]],
    ) -> None:
        self._printer, self._take, self._element = printer, take, element
        self._row, self._inside = frozenset(plan.inner), frozenset(plan.inside)
        self._by_place = plan.adds_pieces
        self._at = "i" if plan.adds_pieces else "item"
        self.parts = self._named([c for c in plan.columns if c.part], "part")
        self.largest = self._named([c for c in plan.columns if not c.part], "largest")

    def _named(self, columns: list[Column], kind: str) -> dict[Expr, str]:
        return {v: self._take(v, kind) for v in dict.fromkeys(v for c in columns for _, v in c.terms)}

    def add(self, phase: Phase, nodes: tuple[Reduce, ...], last: bool) -> None:
        """The statements of a pass that finds these sums, the last one or not."""
        names = self._printer.names
        parts, largest = (self.parts, self.largest) if last else ({}, {})
        made = {s: text for s in nodes if s.op == "sum" and (text := self._of_part(s, parts, phase))}
        found = [("max", name, v) for v, name in largest.items()]
        found += [(s.op, names[s], s.arg) for s in nodes if s not in made]
        roots = [*parts, *(v for _, _, v in found)]
        texts = dict(zip(roots, self._element(phase, roots), strict=True))
        phase.statements += [taken("sum", f"{name}[{self._at}]", texts[v]) for v, name in parts.items()]
        phase.sums = [Sum(names[s], START[s.op], FUNCTOR[s.op]) for s in nodes]
        phase.own = [Sum(name, NOTHING, FUNCTOR["max"]) for name in largest.values()]
        follows = phase.after if self._by_place else phase.vector
        follows += [taken("sum", names[s], text) for s, text in made.items()]
        phase.statements += [taken(op, name, texts[v]) for op, name, v in found]

    def _of_part(self, node: Reduce, parts: dict[Expr, str], phase: Phase) -> str:
        """What a vector adds to a sum, made of what it adds to that of its part, or what a thread does, of
        what it adds to that of each place of a piece; empty where it is not."""
        same, value = split(node.arg, self._inside)
        if value not in parts:
            return ""
        loads = [n.tensor for n in walk(same) if isinstance(n, Load) and n.axes & self._row]
        known = phase.after_loads if self._by_place else phase.loads
        known += [tensor for tensor in loads if tensor not in known]
        leaf = leaf_of(value)
        self._printer.names[leaf] = f"{parts[value]}[{self._at}]"
        text = self._printer.text(mul(same, leaf))
        del self._printer.names[leaf]
        return text

    def part_value(self, column: Column, row_value: Callable[[Expr], str]) -> str:
        """What a run, or a block, leaves of a column that is made of sums over its part."""
        left = "Places::total({}_places, place)" if self._by_place else "{}[i]"
        found = [(row_value(c), left.format(self.parts[v])) for c, v in column.terms]
        return " + ".join(part if c == "1.f" else f"{c} * {part}" for c, part in found)

    def largest_value(self, column: Column, row_value: Callable[[Expr], str]) -> str:
        """What a thread has found of a row for a column of the largest."""
        ((c, v),) = column.terms
        return f"with_factor({row_value(c)}, {self.largest[v]})"
