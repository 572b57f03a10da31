"""The template's view of a form of a windows kernel: what all forms have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from normgen.families.windows.compile.text import WindowsText
from normgen.kernel.access import Access
from normgen.kernel.forms import Context, form_record, parameters_for, store_of
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.package.operands import FormRecord, Parameter, axis_name


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
        used = [*(r.expr for r in plan.results), *(value for _, value in plan.constants)]
        own = [Parameter("count", count) for count in counts]
        parameters = parameters_for(self.text, self.strides, used, self.sizes(), own)
        context = self.context() | {"constants": self.text.constant_lines()}
        return form_record(self.text, name, f"windows/{name}", context, parameters)

    def final(self, printer: Printer) -> Context:
        """The statements that compute the results, and their stores."""
        text, roots = self.text, [r.expr for r in self.plan.results]
        raised, statements, values = text.passes(roots, printer, self.element)
        stores = [store_of(text, a, address=self.address(a)) for a in self.writes]
        for store, root, value in zip(stores, roots, values, strict=True):
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
