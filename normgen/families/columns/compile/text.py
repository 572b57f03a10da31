"""What the text of a columns kernel calls things, and how it addresses them.

An operand is one of five kinds, by the axes that it has:

- vector: all of I and some of R: VEC adjacent values for each element of a thread's columns;
- column: all of I, none of R: one value for each column;
- element: some of R, none of I: one value for each element, the same for all of a thread's columns;
- scalar: none of either;
- gather: some axes of I but not all: picked value by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.ir.expr import Expr, Reduce, walk
from normgen.kernel.access import Access
from normgen.kernel.body import Body
from normgen.kernel.forms import parameters_for
from normgen.kernel.group import Order, without
from normgen.kernel.levels import Level
from normgen.kernel.plan import Operand
from normgen.kernel.text import KernelText, Wording, digit_of, digits_of
from normgen.package.constants import Constants
from normgen.package.operands import OperandRecord, Parameter, axis_name


class ColumnsBody(Body):
    """The statements of a columns kernel: what is computed once per column is an array over the thread's
    columns, except where it is the same for all of them."""

    def __init__(
        self, text: ColumnsText, levels: tuple[Level, ...], values: Mapping[str, str], hold: bool
    ) -> None:
        self._across = frozenset(text.layout.across)
        self.arrays: dict[str, str] = {}  # from an element, as expressions call it, to its array
        super().__init__(text, levels, values, hold)

    def called(self, node: Expr, name: str) -> str:
        if not node.axes & self._across and not any(isinstance(n, Reduce) for n in walk(node)):
            return name
        self.arrays[f"{name}[i]"] = name
        return f"{name}[i]"

    @property
    def known(self) -> dict[Expr, str]:
        return {node: name.removesuffix("[i]") for node, name in super().known.items()}


class ColumnsText(KernelText):
    """Identifiers, addresses and flags of one kernel, the same in both its forms."""

    def __init__(self, plan: ColumnsPlan, wording: Wording, given: Constants | None = None) -> None:
        self.layout = plan
        self.walked = without(plan.outer, plan.parts.segment)
        super().__init__(plan.parts, wording, given=given)

    def known(self, given: Constants) -> ColumnsText:
        return ColumnsText(self.layout, self.wording, given)

    # -------------------------------------------------------------------------------------------- operands

    def kind(self, operand: Operand) -> str:
        """What an operand is to a thread: see the head of this file."""
        mine = [a for a in self.layout.across if a in operand.kept]
        if mine and len(mine) < len(self.layout.across):
            return "gather"
        names = {(True, True): "vector", (True, False): "column", (False, True): "element"}
        return names.get((bool(mine), bool(operand.inner)), "scalar")

    def _offset(self, operand: Operand) -> str:
        """From the pointer to what the thread's first column has of the operand, at the first element."""
        outer = [a for a in operand.kept if a in self.layout.outer]
        whole = set(self.layout.across) <= set(operand.kept)
        steps = "".join(f" + {self._digit(a)} * {self._stride(operand, a)}" for a in outer)
        return steps + (" + column" if whole else "")

    def _digit(self, axis: str) -> str:
        return "group" if self.walked == (axis,) else f"at_{axis_name(axis)}"

    def start(self, access: Access) -> str:
        """Where an operand starts for a thread: the argument, or a pointer declared from it."""
        return f"{access.value}_column" if access.offset else access.pointer

    def address(self, access: Access) -> str:
        """Where an operand's value for `element` is; of a gathered operand, for column `i` too."""
        operand, layout = access.operand, self.layout
        numbers = [("element", layout.reduced, operand.inner)]
        if self.kind(operand) == "gather":
            numbers.append(("(column + i)", layout.across, operand.kept))
        terms = [
            f"{_index(number, axes, axis)} * {self._stride(operand, axis)}"
            for number, axes, own in numbers
            for axis in axes
            if axis in own
        ]
        return " + ".join([self.start(access), *terms])

    def loaded(self, access: Access) -> str:
        """The expression of one value, or what stands for it where the operand is absent."""
        return access.loaded(self.address(access))

    def changes(self, access: Access) -> bool:
        """Whether the operand differs from one tile of a persistent block to the next."""
        return any(a in self.walked or a in self.layout.across for a in access.operand.kept)

    def value(self, access: Access, held: bool) -> str:
        """What expressions call the operand's value. `held`: whether a thread has all elements at once."""
        index = {"vector": "[i]", "column": "[i]", "element": "[item]" if held else ""}
        index["gather"] = "" if access.operand.inner else "[i]"
        return access.value + index.get(self.kind(access.operand), "")

    @property
    def group_digits(self) -> list[str]:
        """Statements that take a group's number apart into the index along each axis that groups walk."""
        return digits_of(self.walked, "group")

    def picks(self) -> bool:
        """Whether some operand is picked value by value."""
        return any(self.kind(a.operand) == "gather" for a in (*self.reads, *self.writes))

    def parameters(self, across: bool) -> tuple[Parameter, ...]:
        """Those of the forms that walk the columns. `across`: with the lengths of the innermost axes."""
        inner = self.layout.across if across or self.picks() else ()
        lengths = {*self.plan.segment, *self.walked[1:], *inner}
        used = [*self.plan.roots, *(c.column.reduce.arg for c in self.columns)]
        kinds = {"chunks_per_group": self.walked, "chunks": True, "blocks": self.columns}
        own = [Parameter(kind) for kind, there in kinds.items() if there]
        return parameters_for(self, self._steps, used, lengths, own, fixed=self.plan.inner)

    def _steps(self, operand: Operand) -> Order:
        """The axes along which an operand is addressed by a stride."""
        whole = self.kind(operand) != "gather"
        return tuple(a for a in operand.kept + operand.inner if not (whole and a in self.layout.across))

    def by_memory(self, access: Access) -> OperandRecord:
        """Strided axes are `kept`, the contiguous ones `inner`, which is not how expressions divide them."""
        o, layout = access.operand, self.layout
        kept = tuple(a for a in o.kept if a in layout.outer) + o.inner
        inner = tuple(a for a in o.kept if a in layout.across)
        return replace(access.record(), kept=kept, inner=inner, passes=self.plan.passes(o.tensor.name))


def _index(number: str, axes: Order, axis: str) -> str:
    """The index along an axis of a number that runs over some."""
    return number if len(axes) == 1 else f"index_t({digit_of(number, axes, axis)})"
