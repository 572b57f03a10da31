"""What the text of a windows kernel calls things, the statements of one pass over its elements, and
what all forms have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

from normgen.families.windows.compile.plan import WindowsPlan, is_costly
from normgen.ir.expr import (
    ONE,
    ZERO,
    Call,
    Expr,
    Load,
    Reduce,
    Select,
    add,
    children,
    mul,
    reductions,
    walk,
)
from normgen.ir.nodes import is_condition
from normgen.kernel.access import Access
from normgen.kernel.forms import Context, form_record, parameters_for, store_of
from normgen.kernel.group import Order
from normgen.kernel.identifiers import Numbered, identifier
from normgen.kernel.naming import named_values
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import KernelText, Wording
from normgen.package.constants import Constants
from normgen.package.operands import FormRecord, Parameter, axis_name


class RaisedPass(NamedTuple):
    """A pass that fills an array, and the exponent that its elements are then raised to. `lower`: another
    array, of the same elements raised to an exponent that is less by one."""

    name: str
    statements: tuple[str, ...]
    exponent: str
    lower: str = ""
    lower_exponent: str = ""


class WindowsText(KernelText):
    """Names and statements of one kernel, the same in all its forms.

    `sums`: windowed sums by name; `terms`: the arrays of what each of them adds up. `constants`: values
    without axes. `early`: parts of the results that forms which walk along an image compute beside the terms
    of the last sums.
    """

    def __init__(self, plan: WindowsPlan, wording: Wording, given: Constants | None = None) -> None:
        super().__init__(plan.parts, wording, given=given)
        self.windows = plan
        self.reads = [replace(a, operand=o) for a, o in zip(self.reads, plan.operands, strict=True)]
        self.writes = [
            replace(a, operand=Operand(a.operand.tensor, plan.outer, plan.inner)) for a in self.writes
        ]
        self._scope = self.scope()
        self._numbered = Numbered()
        self._pool: dict[str, str] = {}
        sums = [s for level in plan.levels for s in level]
        self.sums: dict[Expr, str] = {s: self._value(s, s, "sum") for s in sums}
        self.terms = {s: self._scope.take(f"{name}_terms") for s, name in self.sums.items()}
        self.constants: dict[Expr, str] = {
            leaf: self._value(leaf, value, "factor") for leaf, value in plan.constants
        }
        known = {*self.sums, *self.constants}
        self._named = {n: self._value(n, n, "value") for n in self.bindings if n not in known}
        early = _early(plan) if plan.walks else []
        self.early = {node: self._scope.take(f"early_{k}") for k, node in enumerate(early, 1)}

    def known(self, given: Constants) -> WindowsText:
        return WindowsText(self.windows, self.wording, given)

    def _value(self, node: Expr, value: Expr, otherwise: str) -> str:
        """The user's name for a value, which the result of that name claims first, or another. `value`: what
        the node stands for."""
        if binding := self.bindings.get(node):
            return self._scope.claim(binding.name)
        return self._scope.take(self._numbered.of(identifier(value, self.name_of), otherwise))

    def _pooled(self, wanted: str) -> str:
        """The name of a value that has none of its own: the same in every pass."""
        if wanted not in self._pool:
            self._pool[wanted] = self._scope.take(wanted)
        return self._pool[wanted]

    def printer(self, values: Mapping[str, str], sum_index: str = "") -> Printer:
        """A printer that knows operands by `values`, and windowed sums with an index behind."""
        names = super().printer(dict(values)).names | self.constants
        names |= {node: name + sum_index for node, name in self.sums.items()}
        return Printer(names, self.types)

    def constant_lines(self) -> list[str]:
        """Statements that compute the values without axes."""
        printer = self.printer({})
        return [
            f"const float {self.constants[leaf]} = {printer.text(value)};{self.comment(leaf)}"
            for leaf, value in self.windows.constants
        ]

    def statements(self, roots: list[Expr], printer: Printer) -> tuple[list[str], list[str]]:
        """Statements that name what the roots share and what has a user's name, and the roots' texts."""
        numbered = Numbered()

        def name(node: Expr, uses: int) -> str:
            if uses < 2 and (node not in self._named or node in roots):
                return ""
            found = identifier(node, lambda part: self.name_of(part, printer.names))
            return self._named.get(node) or self._pooled(numbered.of(found, "value"))

        made = named_values(roots, printer, name, self.comment)
        texts = [printer.text(root) for root in roots]
        for node in made:
            del printer.names[node]
        return list(made.values()), texts

    def passes(
        self, roots: list[Expr], printer: Printer, index: str
    ) -> tuple[list[RaisedPass], list[str], list[str]]:
        """As `statements`, with the powers to exponents that all elements share in passes before: there one
        branch by the exponent does for all elements. `index` is that of an element."""
        raised: list[RaisedPass] = []
        powers = [n for n in walk(*roots, seen=set(printer.names)) if _is_shared_power(n)]
        names = {n: self._pooled(f"power_{k}") for k, n in enumerate(powers, 1)}
        lowers = self._lowers(powers)
        for node in powers:
            if node in lowers.values():
                continue
            base, exponent = children(node)
            lines, (text,) = self.statements([base], printer)
            filled = (*lines, f"{names[node]}{index} = {text};")
            found = RaisedPass(names[node], filled, printer.text(exponent))
            if lower := lowers.get(node):
                found = found._replace(lower=names[lower], lower_exponent=printer.text(children(lower)[1]))
            raised.append(found)
            printer.names |= {n: names[n] + index for n in (node, lower) if n}
        lines, texts = self.statements(roots, printer)
        for node in powers:
            del printer.names[node]
        return raised, lines, texts

    def _lowers(self, powers: list[Expr]) -> dict[Expr, Expr]:
        """Pairs of powers, the second of which is the lower of the first; each is in one pair at most."""
        found: dict[Expr, Expr] = {}
        for node in powers:
            for lower in powers:
                if not {node, lower} & {*found, *found.values()} and self._is_lower(node, lower):
                    found[node] = lower
        return found

    def _is_lower(self, node: Expr, other: Expr) -> bool:
        """Whether another power is one of the same number to an exponent that is less by one, if not 0."""
        (base, exponent), (same, lower) = children(node), children(other)
        meant = dict(self.windows.constants)
        exponent, lower = meant.get(exponent, exponent), meant.get(lower, lower)
        if isinstance(lower, Select) and lower.then is ZERO:
            lower = lower.otherwise
        apart = add(lower, ONE) is exponent or add(mul(-1, exponent), ONE) is mul(-1, lower)
        return base is same and apart


def ends_of(roots: list[Expr], known: Iterable[Expr] = ()) -> tuple[set[str], list[Reduce]]:
    """The tensors and the windowed sums that values need, not looking into the sums and what is known."""
    above = list(walk(*roots, seen={*known, *reductions(*roots)}))
    tensors = {n.tensor for n in above if isinstance(n, Load)}
    found = [c for n in above for c in children(n)]
    return tensors, list(dict.fromkeys(n for n in [*roots, *found] if isinstance(n, Reduce)))


def _is_shared_power(node: Expr) -> bool:
    return isinstance(node, Call) and node.op == "pow" and not node.args[1].axes


def _early(plan: WindowsPlan) -> list[Expr]:
    """The largest parts of the results that do not need the last sums, and take earlier ones or a function:
    they are computed beside the terms of the last sums, which may share what they need."""
    last = set(plan.levels[-1])
    found: list[Expr] = []
    stack = [r.expr for r in reversed(plan.parts.results)]
    while stack:
        node = stack.pop()
        below = list(walk(node))
        if isinstance(node, Reduce):
            continue
        if is_condition(node) or any(n in last for n in below):
            stack.extend(reversed(children(node)))
        elif any(isinstance(n, Reduce) or is_costly(n) for n in below) and node.axes:
            found.append(node)
    return list(dict.fromkeys(found))


class View:
    """What the forms have in common. `reads`, `writes`: operands and results as the form addresses them."""

    element: ClassVar[str] = "[i]"  # of an array that a pass fills

    def __init__(self, text: WindowsText) -> None:
        self.text, self.plan = text, text.windows
        self.reads, self.writes = self._placed(text.reads), self._placed(text.writes)

    def _placed(self, accesses: Iterable[Access]) -> list[Access]:
        return [replace(a, offset=self._offset(a.operand)) for a in accesses]

    def _offset(self, operand: Operand) -> str:
        own = self.text.ids[operand.tensor.name]
        axes = map(axis_name, self.strides(operand))
        return "".join(f" + at_{axis} * {own}_stride_{axis}" for axis in axes)

    def form(self, name: str, counts: Order) -> FormRecord:
        """The record of the form. `counts`: what its kernel counts in."""
        plan = self.plan
        used = [*plan.roots, *(value for _, value in plan.constants)]
        own = [Parameter("count", count) for count in counts]
        parameters = parameters_for(self.text, self.strides, used, self.sizes(), own)
        return form_record(self.text, name, f"windows/{name}", type(self).of, parameters)

    @classmethod
    def of(cls, text: WindowsText) -> Context:
        """What the template prints for a launch."""
        return cls(text).context() | {"constants": text.constant_lines()}

    def final(self, printer: Printer) -> Context:
        """The statements that compute the results, and their stores."""
        text, roots = self.text, self.plan.roots
        raised, statements, values = text.passes(roots, printer, self.element)
        found = [each for each in zip(self.writes, roots, values, strict=True) if text.wants[each[0].tensor]]
        stores = [store_of(text, access, address=self.address(access)) for access, _, _ in found]
        for store, (_, root, value) in zip(stores, found, strict=True):
            statements.append(f"{store['value']}[i] = {value};{text.comment(root)}")
        return {"raised": raised, "statements": statements, "stores": stores}

    def context(self) -> Context:
        """What the template prints."""
        raise NotImplementedError

    def strides(self, operand: Operand) -> Order:
        """The axes along which an operand is addressed by a stride."""
        raise NotImplementedError

    def sizes(self) -> set[str]:
        """The axes whose lengths the text uses."""
        raise NotImplementedError

    def address(self, access: Access) -> str:
        """Where the first of a thread's elements of an operand lies."""
        raise NotImplementedError
