"""The form that looks at every neighbour of every element: for operands of any axes, however they lie."""

from __future__ import annotations

from normgen.families.windows.compile.form import Context, Form, ends_of
from normgen.families.windows.compile.plan import Order
from normgen.ir.expr import Expr, Reduce
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import digits_of
from normgen.package.operands import axis_name


class Direct(Form):
    name = "direct"

    def strides(self, operand: Operand) -> Order:
        axes = tuple(a for a in self.plan.axes if a in operand.tensor.axes)
        return axes[:-1] if self._adjacent(operand) else axes

    def sizes(self) -> set[str]:
        return {*self.plan.axes[1:], *self.plan.windowed}

    def _adjacent(self, operand: Operand) -> bool:
        """Whether the elements of a thread lie next to each other."""
        return operand.tensor.order[-1:] == self.plan.axes[-1:]

    def address(self, access: Access) -> str:
        terms = [
            f" + at_{axis_name(a)} * {self.text.stride(access.operand.tensor.name, a)}"
            for a in self.strides(access.operand)
        ]
        last = f" + at_{axis_name(self.plan.axes[-1])}" if self._adjacent(access.operand) else ""
        return access.pointer + "".join(terms) + last

    def context(self) -> Context:
        inner = self.plan.axes[-1]
        values = {
            o.tensor.name: self.text.ids[o.tensor.name] + ("[i]" if inner in o.tensor.axes else "")
            for o in self.plan.operands
        }
        printer = self.text.printer(values, "[i]")
        roots = [r.expr for r in self.plan.results]
        return {
            "digits": digits_of(self.plan.axes, "element", always=True),
            "windows": [self._window(s, printer) for level in self.plan.levels for s in level],
            "final": self._part(roots, printer) | self.final(printer),
        }

    def _window(self, node: Reduce, printer: Printer) -> Context:
        raised, statements, (value,) = self.text.passes([node.arg], printer, self.element)
        own = {axis for axis, _, _ in node.window}
        windowed = self.plan.windowed
        return self._part([node.arg], printer) | {
            "comment": show(node, self.text.constants),
            "function": self._function(node),
            "parameters": [f"index_t from_{axis_name(a)}" for a in windowed],
            "fixed": [
                f"const index_t at_{axis_name(a)} = from_{axis_name(a)};" for a in windowed if a not in own
            ],
            "loops": [
                {"axis": axis_name(axis), "low": _signed(low), "high": _signed(high)}
                for axis, low, high in node.window
            ],
            "raised": raised,
            "statements": [*statements, f"sum[i] = __fadd_rn(sum[i], {value});"],
        }

    def _part(self, roots: list[Expr], printer: Printer) -> Context:
        """What a pass loads, and the windowed sums that it asks for."""
        direct = ends_of(roots)
        loads = [self._load(self.text.read(o, "")) for o in self.plan.operands if o.tensor.name in direct[0]]
        calls = [
            {
                "sum": self.text.sums[s],
                "function": self._function(s),
                "arguments": [f"at_{axis_name(a)}" for a in self.plan.windowed],
            }
            for s in direct[1]
        ]
        return {"loads": [line for pair in loads for line in pair], "calls": calls}

    def _function(self, node: Reduce) -> str:
        return f"add_up_{self.text.sums[node]}"

    def _load(self, access: Access) -> list[str]:
        operand, address = access.operand, self.address(access)
        inner = self.plan.axes[-1]
        present = access.flag or "true"
        if inner not in operand.tensor.axes:
            load = f"load_scalar({address})"
            load = f"{access.flag} ? {load} : {access.missing}" if access.flag else load
            return [f"const float {access.value} = {load};"]
        if self._adjacent(operand):
            call = f"fetch<{present}>({access.value}, {address}, {access.missing});"
        else:
            stride = self.text.stride(operand.tensor.name, inner)
            call = f"fetch_apart<{present}>({access.value}, {address}, {stride}, {access.missing});"
        return [f"float {access.value}[VEC];", call]


def _signed(offset: int) -> str:
    return f" + {offset}" if offset > 0 else f" - {-offset}" if offset < 0 else ""
