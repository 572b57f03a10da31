"""What the text of a columns kernel calls things, and how it addresses them.

An operand is one of five kinds, by the axes that it has:

- vector: all of I and some of R: VEC adjacent values for each element of a thread's columns;
- column: all of I, none of R: one value for each column;
- element: some of R, none of I: one value for each element, the same for all of a thread's columns;
- scalar: none of either;
- gather: some axes of I but not all: picked value by value.
"""

from __future__ import annotations

from dataclasses import replace

from normgen.diagnostics import Source
from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.ir.expr import Expr, Extent, Reduce, Scalar, walk
from normgen.kernel.access import Access
from normgen.kernel.body import Body
from normgen.kernel.finals import final_groups
from normgen.kernel.levels import Level
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import KernelText, digits_of
from normgen.package.kernels import ColumnsRecord
from normgen.package.operands import ColumnRecord, FormRecord, OperandRecord, Parameter, axis_name


class ColumnsBody(Body):
    """The statements of a columns kernel: what is computed once a column is an array over the thread's
    columns, except where it is the same for all of them."""

    def __init__(self, text: ColumnsText, levels: tuple[Level, ...], printer: Printer, hold: bool) -> None:
        self._across = frozenset(text.shape.across)
        self.arrays: dict[str, str] = {}  # from an element, as expressions call it, to its array
        names, claims = text.names.inner(), dict(text.result_names)
        super().__init__(text.plan, levels, names, printer, text.source, claims, hold)

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

    def __init__(
        self, plan: ColumnsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]
    ) -> None:
        self.shape = plan
        self.walked = tuple(a for a in plan.outer if a not in plan.parts.segment)
        super().__init__(plan.parts, source, accumulated, formulas)

    # -------------------------------------------------------------------------------------------- operands

    def kind(self, operand: Operand) -> str:
        """What an operand is to a thread: see the head of this file."""
        mine = [a for a in self.shape.across if a in operand.kept]
        if mine and len(mine) < len(self.shape.across):
            return "gather"
        names = {(True, True): "vector", (True, False): "column", (False, True): "element"}
        return names.get((bool(mine), bool(operand.inner)), "scalar")

    def _offset(self, operand: Operand) -> str:
        """From the pointer to what the thread's first column has of the operand, at the first element."""
        terms = [
            f" + {self._digit(a)} * {self._stride(operand, a)}" for a in operand.kept if a in self.shape.outer
        ]
        mine = [a for a in self.shape.across if a in operand.kept]
        if mine and len(mine) == len(self.shape.across):
            terms.append(" + column")
        return "".join(terms)

    def _digit(self, axis: str) -> str:
        return "group" if self.walked == (axis,) else f"at_{axis_name(axis)}"

    def start(self, access: Access) -> str:
        """Where an operand starts for a thread: the argument, or a pointer declared from it."""
        return f"{access.identifier}_column" if access.offset else access.pointer

    def address(self, access: Access) -> str:
        """Where an operand's value for `element` is; of a gathered operand, for column `i` too."""
        operand, reduced, across = access.operand, self.shape.reduced, self.shape.across
        terms = [self.start(access)]
        for k, axis in enumerate(reduced):
            if axis in operand.inner:
                digit = _digit_of("element", reduced, k)
                terms.append(f"{digit} * {self._stride(operand, axis)}")
        if self.kind(operand) == "gather":
            for k, axis in enumerate(across):
                if axis in operand.kept:
                    terms.append(f"{_digit_of('(column + i)', across, k)} * {self._stride(operand, axis)}")
        return " + ".join(terms)

    def loaded(self, access: Access) -> str:
        """The expression of one value, or what stands for it where the operand is absent."""
        text = f"load_scalar({self.address(access)})"
        return f"{access.flag} ? {text} : {access.missing}" if access.flag else text

    def changes(self, access: Access) -> bool:
        """Whether the operand differs from one tile of a persistent block to the next."""
        return any(a in self.walked or a in self.shape.across for a in access.operand.kept)

    def value(self, access: Access, form: str) -> str:
        """What expressions call the operand's value."""
        name = access.identifier
        match self.kind(access.operand):
            case "vector" | "column":
                return f"{name}[i]"
            case "gather":
                return name if access.operand.inner else f"{name}[i]"
            case "element":
                return f"{name}[item]" if form == "registers" else name
            case _:
                return name

    @property
    def group_digits(self) -> list[str]:
        """Statements that take a group's number apart into the index along each axis that groups walk."""
        return digits_of(self.walked, "group")

    # -------------------------------------------------------------------------------------------- parameters

    def parameters(self) -> tuple[Parameter, ...]:
        """Those of the forms that walk the columns."""
        plan, shape = self.plan, self.shape
        tensors = [*self.reads, *self.writes]
        out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
        out += [Parameter("partial", c.name) for c in self.columns]
        lengths = set(plan.segment) | set(self.walked[1:])
        for a in tensors:
            own = a.operand.kept + a.operand.inner
            gathers = self.kind(a.operand) == "gather"
            stepped = [x for x in own if x not in shape.across or gathers]
            out += [Parameter("stride", a.operand.tensor.name, axis) for axis in stepped]
            lengths |= set(shape.across) if gathers else set()
        used = [*(r.expr for r in plan.results), *(c.column.reduce.arg for c in self.columns)]
        nodes = list(walk(*used))
        lengths |= {n.axis for n in nodes if isinstance(n, Extent)}
        others = sorted(lengths - {*plan.kept, *plan.inner})
        out += [Parameter("size", axis=a) for a in (*plan.kept, *others) if a in lengths]
        scalars = {n.name for n in nodes if isinstance(n, Scalar)}
        out += [Parameter("scalar", a) for a in plan.scalars if a in scalars]
        out += [Parameter("chunks_per_group")] if self.walked else []
        out.append(Parameter("chunks"))
        return (*out, *([Parameter("blocks")] if self.columns else []))

    # -------------------------------------------------------------------------------------------- records

    def columns_record(
        self, forms: list[FormRecord], held: int, exchanged: int, arrays: int
    ) -> ColumnsRecord:
        """The record of the kernel. `held`: values an element that the registers form keeps between passes;
        `exchanged`: the most values of a column in one exchange; `arrays`: values of each column
        that the last pass needs."""
        plan, shape = self.plan, self.shape
        return ColumnsRecord(
            name=plan.name,
            kept=shape.outer + shape.reduced,
            inner=shape.across,
            reduced=shape.reduced,
            reads=tuple(self._by_memory(a) for a in self.reads),
            writes=tuple(self._by_memory(a) for a in self.writes),
            final_reads=tuple(a.record() for a in self.final_reads),
            finals=tuple(self.result(r).record() for r in plan.finals),
            columns=tuple(ColumnRecord(c.name, c.column.kept, c.wide, c.wanted_by) for c in self.columns),
            segment=plan.segment,
            exchanges=len(plan.levels),
            exchanged=exchanged,
            moments=plan.moments is not None,
            arrays=arrays,
            held=held,
            groups=len(final_groups(plan)),
            forms=tuple(forms),
        )

    def _by_memory(self, access: Access) -> OperandRecord:
        """Strided axes are `kept`, the contiguous ones `inner`, which is not how expressions divide them."""
        o, shape = access.operand, self.shape
        kept = tuple(a for a in o.kept if a in shape.outer) + o.inner
        inner = tuple(a for a in o.kept if a in shape.across)
        return replace(access.record(), kept=kept, inner=inner, passes=self.plan.passes(o.tensor.name))


def _digit_of(variable: str, axes: tuple[str, ...], k: int) -> str:
    """The index along the k-th axis of a number that runs over all of them, the last fastest."""
    if len(axes) == 1:
        return variable
    below = "".join(f" / size_{axis_name(a)}" for a in reversed(axes[k + 1 :]))
    over = f" % size_{axis_name(axes[k])}" if k else ""
    return f"index_t({variable}{below}{over})"
