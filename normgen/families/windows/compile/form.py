"""What the texts of all forms of a windows kernel have in common: parameters, results, what a pass needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from normgen.families.windows.compile.plan import Order
from normgen.families.windows.compile.text import WindowsText, unnamed
from normgen.ir.expr import Expr, Extent, Load, Reduce, Scalar, children, walk
from normgen.kernel.access import Access
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.render import environment
from normgen.kernel.tidy import tidy
from normgen.package.operands import FormRecord, Parameter, axis_name

Context = dict[str, Any]
# What a form counts in, for the kernel's parameters.
_COUNTS = {
    "direct": ("elements",),
    "span": ("images", "lanes", "size"),
    "pixels": ("strips", "ranges", "length", "channels"),
    "march": ("images", "lanes", "strips", "ranges", "steps", "length", "size"),
}


class Form:
    """What the forms have in common."""

    name: str
    element = "[i]"  # of an array that a pass fills

    def __init__(self, text: WindowsText) -> None:
        self.text, self.plan = text, text.plan

    def context(self) -> Context:
        raise NotImplementedError

    @property
    def early(self) -> dict[Expr, str]:
        """Parts of the results that are computed before the last sums are there, by name."""
        return {}

    def form(self) -> FormRecord:
        entry = f"{self.plan.name}_{self.name}"
        parameters = self._parameters()
        template = environment().get_template(f"windows/{self.name}.cu.jinja")
        kernel = self.context() | {
            "formulas": self.text.formulas,
            "flags": self.text.flags,
            "constants": self.text.constant_lines(),
        }
        declared = [_declare(self.text, p) for p in parameters]
        source = tidy(template.render(kernel=kernel, entry=entry, parameters=declared))
        return FormRecord(self.name, entry, parameters, source)

    # -------------------------------------------------------------------------------------------- parameters

    def strides(self, operand: Operand) -> Order:
        """The axes along which an operand is addressed by a stride."""
        raise NotImplementedError

    def sizes(self) -> set[str]:
        """The axes whose lengths the text uses."""
        raise NotImplementedError

    def _parameters(self) -> tuple[Parameter, ...]:
        plan = self.plan
        used = set(walk(*(r.expr for r in plan.results), *(value for _, value in plan.constants)))
        tensors = [*plan.operands, *(self.text.result(r).operand for r in plan.results)]
        lengths = self.sizes() | {n.axis for n in used if isinstance(n, Extent)}
        scalars = {n.name for n in used if isinstance(n, Scalar)}
        return (
            *(Parameter("pointer", o.tensor.name) for o in tensors),
            *(Parameter("stride", o.tensor.name, axis) for o in tensors for axis in self.strides(o)),
            *(Parameter("size", axis=a) for a in plan.axes if a in lengths),
            *(Parameter("scalar", a) for a in plan.scalars if a in scalars),
            *(Parameter("count", name) for name in _COUNTS[self.name]),
        )

    # -------------------------------------------------------------------------------------------- results

    def final(self, printer: Printer) -> Context:
        """The statements that compute the results, and their stores."""
        roots = [r.expr for r in self.plan.results]
        raised, statements, values = self.text.passes(roots, printer, self.element)
        stores = []
        for result, value in zip(self.plan.results, values, strict=True):
            access = self.text.result(result)
            name = f"{access.identifier}_out"
            statements.append(f"{name}[i] = {value};{self.text.comment(result.expr)}")
            stores.append(
                {
                    "value": name,
                    "type": access.type,
                    "address": self.address(access),
                    "guard": f"if constexpr ({self.text.wants[result.tensor.name]})",
                    "accumulates": result.tensor.name in self.text.accumulated,
                }
            )
        return {"raised": raised, "statements": statements, "stores": stores}

    def address(self, access: Access) -> str:
        """Where the first of a thread's elements of an operand lies."""
        raise NotImplementedError


def ends_of(roots: list[Expr], known: Iterable[Expr] = ()) -> tuple[set[str], list[Reduce]]:
    """The tensors and the windowed sums that values need, not looking into the sums and what is known."""
    stop = Printer(dict.fromkeys([*known, *(n for n in walk(*roots) if isinstance(n, Reduce))], ""), {})
    above = list(unnamed(roots, stop))
    tensors = {n.tensor for n in above if isinstance(n, Load)}
    found = [c for n in above for c in children(n)]
    return tensors, list(dict.fromkeys(n for n in [*roots, *found] if isinstance(n, Reduce)))


def _declare(text: WindowsText, parameter: Parameter) -> str:
    name = parameter.name
    match parameter.kind:
        case "pointer":
            read = any(o.tensor.name == name for o in text.plan.operands)
            identifier = text.ids[name]
            return f"{'const ' if read else ''}{identifier}_t* __restrict__ {identifier}_ptr"
        case "stride":
            return f"index_t {text.stride(name, parameter.axis)}"
        case "size":
            return f"index_t size_{axis_name(parameter.axis)}"
        case "scalar":
            return f"float {text.scalars[name]}"
        case _:
            return f"index_t {name}"
