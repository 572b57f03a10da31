"""What one pass over a row takes in: the sums of its level, and in the last of them what is found besides.

A gradient of what parts of rows share is made of sums over those parts (`parts`), and an accumulator of the
largest over rows of what each thread found in its own elements (`largest`): neither is exchanged in the row.
Where the vectors of an operand have one element each, that is a factor which a vector takes in once.

    sum_1 += square(xs) * square(xq[i])     vector_1 += square(xq[i]), and then sum_1 += square(xs) * vector_1
"""

from __future__ import annotations

from collections.abc import Callable

from normgen.codegen.accumulators import Column
from normgen.codegen.kept import leaf_of
from normgen.codegen.linear import common_of, split
from normgen.codegen.operations import FUNCTOR, START, taken
from normgen.codegen.phases import Phase, Sum
from normgen.codegen.plan import KernelPlan
from normgen.codegen.printer import Printer
from normgen.ir.expr import Expr, Load, Reduce, mul, walk

# Of no elements, where what is the largest is a magnitude: a factor that is 0 makes no NaN of it.
MAGNITUDE = {"sum": "0.f", "max": "0.f"}


class Sums:
    """Writes what the sums of a pass take in. `take`: a new name of a kind; `element`: the texts of values of
    an element, whose statements it adds to the phase.

    `parts`, `largest`: what the last pass of sums adds up of each part of a row, or finds the largest of, by
    what it is made of.
    """

    def __init__(
        self,
        plan: KernelPlan,
        printer: Printer,
        take: Callable[[str], str],
        element: Callable[[Phase, list[Expr]], list[str]],
    ) -> None:
        self._printer, self._take, self._element = printer, take, element
        self._row, self._inside = frozenset(plan.inner), frozenset(plan.inside)
        self._partial = frozenset(o.tensor.name for o in plan.operands if plan.is_partial(o))
        self.parts = self._named([c for c in plan.columns if c.part], "part")
        self.largest = self._named([c for c in plan.columns if not c.part], "largest")

    def _named(self, columns: list[Column], kind: str) -> dict[Expr, str]:
        return {v: self._take(kind) for v in dict.fromkeys(v for c in columns for _, v in c.terms)}

    def add(self, phase: Phase, nodes: tuple[Reduce, ...], last: bool, apart: bool) -> None:
        """The statements of a pass that finds these sums, the last one or not. `apart`: whether it does
        nothing else with its elements, so that factors of their vectors may be left to those.
        """
        names = self._printer.names
        parts, largest = (self.parts, self.largest) if last else ({}, {})
        made = {s: text for s in nodes if s.op == "sum" and (text := self._of_part(s, parts, phase))}
        found = [("max", name, v) for v, name in largest.items()]
        found += [(s.op, names[s], s.arg) for s in nodes if s not in made]
        roots = [*parts, *(v for _, _, v in found)]
        texts = dict(zip(roots, self._element(phase, roots), strict=True))
        phase.statements += [taken("sum", f"{name}[item]", texts[v]) for v, name in parts.items()]
        phase.sums = [Sum(names[s], START[s.op], FUNCTOR[s.op]) for s in nodes]
        phase.own = [Sum(name, MAGNITUDE[op], FUNCTOR[op]) for op, name, v in found if v in largest]
        phase.vector += [taken("sum", names[s], text) for s, text in made.items()]
        common = common_of([(op, v) for op, _, v in found], self._partial) if apart and not parts else {}
        phase.common = frozenset(n.tensor for n in walk(*common.values()) if isinstance(n, Load))
        for op, name, v in found:
            if v in common:
                self._by_vector(phase, op, name, texts[v], common[v])
            else:
                phase.statements.append(taken(op, name, texts[v]))

    def _by_vector(self, phase: Phase, op: str, name: str, text: str, factor: Expr) -> None:
        """What an element adds to its vector, and the vector, times its factor, to the accumulator."""
        own, names = self._take("vector"), self._printer.names
        phase.before.append(f"float {own} = {MAGNITUDE[op]};")
        phase.statements.append(taken(op, own, text))
        element: dict[Expr, str] = {n: names[n] for n in walk(factor) if isinstance(n, Load)}
        names.update({n: f"{called}_all" for n, called in element.items()})
        phase.vector.append(taken(op, name, f"with_factor({self._printer.text(factor)}, {own})"))
        names.update(element)

    def _of_part(self, node: Reduce, parts: dict[Expr, str], phase: Phase) -> str:
        """What a vector adds to a sum, made of what it adds to that of its part; empty where it is not."""
        same, value = split(node.arg, self._inside)
        if value not in parts:
            return ""
        loads = [n.tensor for n in walk(same) if isinstance(n, Load) and n.axes & self._row]
        phase.loads += [tensor for tensor in loads if tensor not in phase.loads]
        leaf = leaf_of(value)
        self._printer.names[leaf] = f"{parts[value]}[item]"
        text = self._printer.text(mul(same, leaf))
        del self._printer.names[leaf]
        return text

    def part_value(self, column: Column, row_value: Callable[[Expr], str]) -> str:
        """What a run leaves of a column that is made of sums over its part."""
        found = [(row_value(c), f"{self.parts[v]}[i]") for c, v in column.terms]
        return " + ".join(part if c == "1.f" else f"{c} * {part}" for c, part in found)

    def largest_value(self, column: Column, row_value: Callable[[Expr], str]) -> str:
        """What a thread has found of a row for a column of the largest."""
        ((c, v),) = column.terms
        return f"with_factor({row_value(c)}, {self.largest[v]})"
