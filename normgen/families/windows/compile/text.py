"""What the text of a windows kernel calls things, and the statements of one pass over its elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from normgen.diagnostics import Source
from normgen.families.windows.compile.plan import Order, WindowsPlan
from normgen.ir.expr import (
    ONE,
    Call,
    Const,
    Expr,
    Extent,
    Load,
    add,
    children,
    mul,
    scalar,
    walk,
)
from normgen.ir.nodes import is_condition
from normgen.ir.program import Result, Tensor
from normgen.kernel.access import Access, Flag
from normgen.kernel.names import Names
from normgen.kernel.phases import file_name
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer, literal
from normgen.package.operands import axis_name


class RaisedPass(NamedTuple):
    """A pass that fills an array, and the exponent that its elements are then raised to. `lower`: another
    array, of the same elements raised to an exponent that is less by one."""

    name: str
    statements: tuple[str, ...]
    exponent: str
    lower: str = ""
    lower_exponent: str = ""


class WindowsText:
    """Identifiers and flags of one kernel, the same in all its forms.

    `accumulated`: results that a call may ask to be added to what their memory holds.
    """

    def __init__(
        self, plan: WindowsPlan, source: Source, accumulated: frozenset[str], formulas: Order
    ) -> None:
        self.plan, self.source = plan, source
        self.accumulated, self.formulas = accumulated, formulas
        self.names = Names()
        targets = [r.tensor for r in plan.results]
        self.ids = {
            name: self.names.take(name)
            for name in dict.fromkeys([*(o.tensor.name for o in plan.operands), *(t.name for t in targets)])
        }
        self.scalars = {a: self.names.take(a) for a in plan.scalars}
        self.wants = {t.name: f"WANT_{self.ids[t.name].upper()}" for t in targets}
        reads = {o.tensor.name for o in plan.operands}
        self._claims = {name: self.ids[name] for name in self.wants if name not in reads}
        self._bindings = {b.expr: b for b in plan.bindings}
        sums = [s for level in plan.levels for s in level]
        self.sums: dict[Expr, str] = {s: self._value(s, f"sum_{k}") for k, s in enumerate(sums, 1)}
        self.terms = {s: self.names.take(f"{name}_terms") for s, name in self.sums.items()}
        self.constants: dict[Expr, str] = {
            leaf: self._value(leaf, f"factor_{k}") for k, (leaf, _) in enumerate(plan.constants, 1)
        }
        known = {*self.sums, *self.constants}
        self._named = {n: self._value(n, "") for n in self._bindings if n not in known}
        self._numbered: list[str] = []
        self._powers: list[str] = []

    def _value(self, node: Expr, otherwise: str) -> str:
        """The user's name for a value, or another; the result of that name claims it first."""
        binding = self._bindings.get(node)
        wanted = binding.name if binding else otherwise
        return self._claims.pop(wanted, None) or self.names.take(wanted)

    # -------------------------------------------------------------------------------------------- operands

    def read(self, operand: Operand, offset: str) -> Access:
        """An operand as a form addresses it."""
        tensor = operand.tensor
        access = Access(operand, self.ids[tensor.name], offset)
        access.wanted_by = self.plan.needed_by(tensor.name)
        if tensor.default is not None:
            access.missing = literal(tensor.default)
        every = len(access.wanted_by) == len(self.wants)
        if not every:
            access.flag = f"READ_{access.identifier.upper()}"
        elif _optional(tensor):
            access.flag = f"HAS_{access.identifier.upper()}"
        return access

    def result(self, result: Result) -> Access:
        """A result; it has all axes."""
        plan = self.plan
        return Access(Operand(result.tensor, plan.outer, plan.inner), self.ids[result.tensor.name], "")

    @property
    def flags(self) -> list[Flag]:
        """When operands are read that not every result needs."""
        out = []
        for operand in self.plan.operands:
            access = self.read(operand, "")
            if access.flag.startswith("READ_"):
                wants = " || ".join(self.wants[w] for w in access.wanted_by)
                if _optional(operand.tensor):
                    wants = f"({wants})" if len(access.wanted_by) > 1 else wants
                    wants = f"HAS_{access.identifier.upper()} && {wants}"
                out.append(Flag(access.flag, wants))
        return out

    def stride(self, tensor: str, axis: str) -> str:
        """The parameter that holds a stride."""
        return f"{self.ids[tensor]}_stride_{axis_name(axis)}"

    # -------------------------------------------------------------------------------------------- values

    def printer(self, values: Mapping[str, str], sum_index: str) -> Printer:
        """A printer that knows the scalars, operands by `values`, and windowed sums with an index behind."""
        loads = {n.tensor: n for n in walk(*(r.expr for r in self.plan.results)) if isinstance(n, Load)}
        names: dict[Expr, str] = {loads[t]: text for t, text in values.items() if t in loads}
        names |= {scalar(a): identifier for a, identifier in self.scalars.items()}
        names |= self.constants
        names |= {node: name + sum_index for node, name in self.sums.items()}
        return Printer(names, {t: f"{i}_t" for t, i in self.ids.items()})

    def constant_lines(self) -> list[str]:
        """Statements that compute the values without axes."""
        printer = self.printer({}, "")
        return [
            f"const float {self.constants[leaf]} = {printer.text(value)};{self.comment(leaf)}"
            for leaf, value in self.plan.constants
        ]

    def comment(self, node: Expr) -> str:
        """Where the spec gives the value a name, as the end of a statement."""
        binding = self._bindings.get(node)
        if binding is None or binding.span is None:
            return ""
        line = self.source.text.count("\n", 0, binding.span.start) + 1
        return f"  // {file_name(self.source)}:{line}"

    def statements(self, roots: list[Expr], printer: Printer) -> tuple[list[str], list[str]]:
        """Statements that name what the roots share and what has a user's name, and the roots' texts."""
        found = list(unnamed(roots, printer))
        uses = Counter(child for node in found for child in set(children(node)))
        uses.update(roots)
        lines: list[str] = []
        temporary: list[Expr] = []
        for node in found:
            if isinstance(node, Const | Extent) or is_condition(node):
                continue
            if uses[node] > 1 or (node in self._named and node not in roots):
                name = self._named.get(node) or self._number(len(temporary))
                lines.append(f"const float {name} = {printer.text(node)};{self.comment(node)}")
                printer.names[node] = name
                temporary.append(node)
        texts = [printer.text(root) for root in roots]
        for node in temporary:
            del printer.names[node]
        return lines, texts

    def passes(
        self, roots: list[Expr], printer: Printer, index: str
    ) -> tuple[list[RaisedPass], list[str], list[str]]:
        """As `statements`, with the powers to exponents that all elements share in passes before: there one
        branch by the exponent does for all elements. `index` is that of an element."""
        raised: list[RaisedPass] = []
        powers = [n for n in unnamed(roots, printer) if _is_shared_power(n)]
        while len(self._powers) < len(powers):
            self._powers.append(self.names.take(f"power_{len(self._powers) + 1}"))
        names = dict(zip(powers, self._powers, strict=False))
        lowers = {n: lower for n in powers for lower in powers if self._is_lower(n, lower)}
        for node in powers:
            if node in lowers.values():
                continue
            base, exponent = children(node)
            lines, (text,) = self.statements([base], printer)
            filled = RaisedPass(
                names[node], (*lines, f"{names[node]}{index} = {text};"), printer.text(exponent)
            )
            if lower := lowers.get(node):
                filled = filled._replace(lower=names[lower], lower_exponent=printer.text(children(lower)[1]))
            raised.append(filled)
            printer.names |= {n: names[n] + index for n in (node, lower) if n}
        lines, texts = self.statements(roots, printer)
        for node in powers:
            del printer.names[node]
        return raised, lines, texts

    def _is_lower(self, node: Expr, other: Expr) -> bool:
        """Whether another power is one of the same number to an exponent that is less by one."""
        (base, exponent), (same, lower) = children(node), children(other)
        meant = dict(self.plan.constants)
        exponent, lower = meant.get(exponent, exponent), meant.get(lower, lower)
        apart = add(lower, ONE) is exponent or add(mul(-1, exponent), ONE) is mul(-1, lower)
        return base is same and apart

    def _number(self, count: int) -> str:
        """A name for a value that has none: the same in every pass."""
        while len(self._numbered) <= count:
            self._numbered.append(self.names.take(f"value_{len(self._numbered) + 1}"))
        return self._numbered[count]


def _optional(tensor: Tensor) -> bool:
    return tensor.role == "cotangent" or tensor.default is not None


def unnamed(roots: list[Expr], printer: Printer) -> Iterator[Expr]:
    """Every node below the roots once, operands first, not looking below those that have a name."""
    seen: set[Expr] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen and node not in printer.names:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children(node)))


def _is_shared_power(node: Expr) -> bool:
    return isinstance(node, Call) and node.op == "pow" and not node.args[1].axes
