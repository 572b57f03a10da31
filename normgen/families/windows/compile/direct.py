"""The form that looks at every neighbour of every element: for operands of any axes, however they lie."""

from __future__ import annotations

from normgen.families.windows.compile.text import View, ends_of
from normgen.ir.expr import Expr, Reduce
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.forms import Context
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import digits_of
from normgen.package.operands import axis_name


class Direct(View):
    """A thread owns VEC adjacent elements; a sum is a function that loops over the neighbours of each."""

    def strides(self, operand: Operand) -> Order:
        axes = tuple(a for a in self.plan.axes if a in operand.tensor.axes)
        return axes[:-1] if self._adjacent(operand) else axes

    def sizes(self) -> set[str]:
        return {*self.plan.axes[1:], *self.plan.windowed}

    def _adjacent(self, operand: Operand) -> bool:
        """Whether the elements of a thread lie next to each other."""
        return operand.tensor.order[-1:] == self.plan.axes[-1:]

    def address(self, access: Access) -> str:
        last = f" + at_{axis_name(self.plan.axes[-1])}" if self._adjacent(access.operand) else ""
        return access.pointer + access.offset + last

    def context(self) -> Context:
        inner = self.plan.axes[-1]
        values = {
            a.tensor: f"{a.value}[i]" if inner in a.operand.tensor.axes else a.value for a in self.reads
        }
        printer = self.text.printer(values, "[i]")
        roots = self.plan.roots
        return {
            "digits": digits_of(self.plan.axes, "element", always=True),
            "windows": [self._window(s, printer) for level in self.plan.levels for s in level],
            "final": self._part(roots) | self.final(printer),
        }

    def _window(self, node: Reduce, printer: Printer) -> Context:
        raised, statements, (value,) = self.text.passes([node.arg], printer, self.element)
        own = {axis for axis, _, _ in node.window}
        walked = [axis_name(a) for a in self.plan.windowed]
        fixed = [axis_name(a) for a in self.plan.windowed if a not in own]
        return self._part([node.arg]) | {
            "comment": show(node, self.text.constants),
            "function": self._function(node),
            "parameters": [f"index_t from_{axis}" for axis in walked],
            "fixed": [f"const index_t at_{axis} = from_{axis};" for axis in fixed],
            "loops": [
                {"axis": axis_name(axis), "low": _signed(low), "high": _signed(high)}
                for axis, low, high in node.window
            ],
            "raised": raised,
            "statements": [*statements, f"sum[i] = __fadd_rn(sum[i], {value});"],
        }

    def _part(self, roots: list[Expr]) -> Context:
        """What a pass loads, and the windowed sums that it asks for."""
        tensors, sums = ends_of(roots)
        return {
            "loads": [line for a in self.reads if a.tensor in tensors for line in self._load(a)],
            "arguments": ", ".join(f"at_{axis_name(a)}" for a in self.plan.windowed),
            "calls": [{"sum": self.text.sums[s], "function": self._function(s)} for s in sums],
        }

    def _function(self, node: Reduce) -> str:
        return f"add_up_{self.text.sums[node]}"

    def _load(self, access: Access) -> list[str]:
        operand, address, inner = access.operand, self.address(access), self.plan.axes[-1]
        if inner not in operand.tensor.axes:
            return [f"const float {access.value} = {access.loaded(address)};"]
        how, step = "fetch", ""
        if not self._adjacent(operand):
            how, step = "fetch_apart", f" {access.value}_stride_{axis_name(inner)},"
        there = str(access.there).lower()
        call = f"{how}<{there}>({access.value}, {address},{step} {access.missing});"
        return [f"float {access.value}[VEC];", call]


def _signed(offset: int) -> str:
    return f" + {offset}" if offset > 0 else f" - {-offset}" if offset < 0 else ""
