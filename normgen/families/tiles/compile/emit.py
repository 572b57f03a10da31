"""Tiles plan -> CUDA text: `tiles/tiles.cu.jinja` walks the tile, `device/tiles/tiles.cuh` is its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normgen.diagnostics import Source
from normgen.families.tiles.compile.plan import Order, TileOperand, TilesPlan
from normgen.ir.expr import Extent, Scalar, walk
from normgen.kernel.access import Access
from normgen.kernel.body import Body
from normgen.kernel.plan import KernelPlan, Operand
from normgen.kernel.render import declare, environment
from normgen.kernel.text import KernelText, digits_of
from normgen.kernel.tidy import tidy
from normgen.package.kernels import TilesRecord
from normgen.package.operands import FormRecord, OperandRecord, Parameter, axis_name

Context = dict[str, Any]


def emit_tiles(
    plan: TilesPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> TilesRecord:
    """The record of a kernel with its text.

    `accumulated`: results that a call may add to what their memory holds. `formulas`: comment lines of the
    mathematics.
    """
    text = _Tiles(plan, source, accumulated, formulas)
    parameters = text.parameters()
    entry = f"{plan.name}_tiles"
    template = environment().get_template("tiles/tiles.cu.jinja")
    declared = [declare(text.text, p) for p in parameters]
    rendered = tidy(template.render(kernel=text.context(), entry=entry, parameters=declared))
    record = TilesRecord(
        name=plan.name,
        batch=plan.batch,
        rows=plan.rows,
        columns=plan.columns,
        reads=tuple(a.record() for a in text.reads),
        writes=tuple(a.record() for a in text.writes),
        forms=(FormRecord("tiles", entry, parameters, rendered),),
    )
    return text.text.names.settle(record)


@dataclass
class TileAccess:
    """An operand or result in the text. `offset` leads to its element at `row` and `column`; `room` is where
    its tile starts in shared memory.
    """

    operand: TileOperand
    base: Access
    offset: str
    room: str = ""
    accumulates: bool = False

    @property
    def value(self) -> str:
        return self.base.identifier

    @property
    def type(self) -> str:
        return self.base.type

    @property
    def flag(self) -> str:
        return self.base.flag

    @property
    def missing(self) -> str:
        return self.base.missing

    @property
    def address(self) -> str:
        """The pointer and one number, of `index_t`: the sum of pointers would take 64 bits at each step."""
        offset = self.offset.removeprefix(" + ")
        if not offset:
            return self.base.pointer
        return f"{self.base.pointer} + " + (f"({offset})" if " + " in offset else offset)

    @property
    def load(self) -> str:
        """The expression that reads a single element."""
        text = f"load_scalar({self.address})"
        return f"{self.flag} ? {text} : {self.missing}" if self.flag else text

    @property
    def knob(self) -> str:
        return self.base.identifier.upper()

    def record(self) -> OperandRecord:
        o = self.operand
        return OperandRecord(o.tensor.name, self.value, o.kept, o.inner, self.base.wanted_by)


class _Tiles:
    """The template's view of a kernel."""

    def __init__(
        self, plan: TilesPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]
    ) -> None:
        self.plan = plan
        self.text = KernelText(_as_rows(plan), source, accumulated, formulas)
        self.reads = [self._access(o, a) for o, a in zip(plan.operands, self.text.reads, strict=True)]
        self.writes = [self._access(o, a) for o, a in zip(plan.targets, self.text.writes, strict=True)]
        for access in self.writes:
            access.base.flag = self.text.wants[access.operand.tensor.name]
            access.accumulates = access.operand.tensor.name in accumulated
        room = ""
        for access in self._turned(self.reads) + self._turned(self.writes):
            access.room = room
            size = f"{access.value}_tile_t::BYTES"
            room += f" + ({access.flag} ? {size} : 0)" if access.flag else f" + {size}"

    # -------------------------------------------------------------------------------------------- operands

    def _access(self, operand: TileOperand, base: Access) -> TileAccess:
        plan = self.plan
        terms = [
            f" + {self._digit(a, operand)} * {base.identifier}_stride_{axis_name(a)}" for a in operand.kept
        ]
        run = {plan.rows: " + row", plan.columns: " + column"}.get(operand.inner, "")
        return TileAccess(operand, base, "".join(terms) + run)

    def _digit(self, axis: str, operand: TileOperand) -> str:
        """The index along an axis: one of several that a number was taken apart into, or that number."""
        if axis in self.plan.batch:
            return f"at_{axis_name(axis)}"
        if axis in self.plan.columns and not operand.inner:
            return self._gathered(axis)
        number, axes = ("row", self.plan.rows) if axis in self.plan.rows else ("column", self.plan.columns)
        return number if axes == (axis,) else f"at_{axis_name(axis)}"

    def _gathered(self, axis: str) -> str:
        """The index along an axis of the columns, of the i-th column of a run."""
        at = self.plan.columns.index(axis)
        below = "".join(f" / size_{axis_name(a)}" for a in reversed(self.plan.columns[at + 1 :]))
        return f"((column + i){below}{f' % size_{axis_name(axis)}' if at else ''})"

    def _turned(self, accesses: list[TileAccess]) -> list[TileAccess]:
        return [a for a in accesses if a.operand.inner == self.plan.rows]

    def _straight(self, accesses: list[TileAccess]) -> list[TileAccess]:
        return [a for a in accesses if a.operand.inner == self.plan.columns]

    def _varies(self, axes: Order | frozenset[str], over: Order) -> bool:
        return bool(set(axes) & set(over))

    # -------------------------------------------------------------------------------------------- context

    def context(self) -> Context:
        plan, text = self.plan, self.text
        single = [a for a in self.reads if not a.operand.inner]
        gathers = [a for a in single if self._varies(a.operand.kept, plan.columns)]
        scalars = [a for a in single if a not in gathers]
        straight = self._straight(self.reads)
        body, statements = self._body()
        row_values = [(s, self._varies(node.axes, plan.rows)) for node, s in body.before]
        return {
            "formulas": text.formulas,
            "flags": text.flags(text.reads),
            "width": " * ".join(f"index_t(size_{axis_name(a)})" for a in plan.columns),
            "batch_digits": digits_of(plan.batch, "batch", always=True),
            "row_digits": digits_of(plan.rows, "row"),
            "column_digits": digits_of(plan.columns, "column"),
            "turned_reads": self._turned(self.reads),
            "turned_writes": self._turned(self.writes),
            "straight_writes": self._straight(self.writes),
            "lines": [a for a in straight if self._varies(a.operand.kept, plan.rows)],
            "common": [a for a in straight if not self._varies(a.operand.kept, plan.rows)],
            "gathers": gathers,
            "row_scalars": [a for a in scalars if self._varies(a.operand.kept, plan.rows)],
            "block_scalars": [a for a in scalars if not self._varies(a.operand.kept, plan.rows)],
            "block_values": [s for s, by_row in row_values if not by_row],
            "row_values": [s for s, by_row in row_values if by_row],
            "statements": statements,
        }

    def _body(self) -> tuple[Body, list[str]]:
        """The values of a row, and the statements of an element."""
        text, straight = self.text, set(map(id, self._straight(self.reads)))
        values = {
            a.operand.tensor.name: f"{a.value}[i]" if id(a) in straight else a.value for a in self.reads
        }
        rows = text.plan
        names, printer = text.names.inner(), text.printer(values)
        body = Body(rows, (), names, printer, text.source, dict(text.result_names), False)
        final = body.phases[-1]
        results = body.element(final, [r.expr for r in self.plan.results])
        stores = []
        for access, result, value in zip(self.writes, self.plan.results, results, strict=True):
            stores.append(f"{access.value}_out[i] = {value};{body.comment(result.expr)}")
        return body, final.statements + stores

    # -------------------------------------------------------------------------------------------- parameters

    def parameters(self) -> tuple[Parameter, ...]:
        plan, tensors = self.plan, [*self.reads, *self.writes]
        exprs = [r.expr for r in plan.results]
        out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
        out += [Parameter("stride", a.operand.tensor.name, axis) for a in tensors for axis in a.operand.kept]
        lengths = {n.axis for n in walk(*exprs) if isinstance(n, Extent)} | set(plan.batch)
        lengths |= set(plan.rows) if len(plan.rows) > 1 else set()
        axes = dict.fromkeys((*plan.kept, *sorted(lengths - set(plan.columns))))
        out += [Parameter("size", axis=a) for a in axes if a in lengths]
        scalars = {n.name for n in walk(*exprs) if isinstance(n, Scalar)}
        out += [Parameter("scalar", a) for a in plan.scalars if a in scalars]
        return (*out, Parameter("rows"))


def _as_rows(plan: TilesPlan) -> KernelPlan:
    """The plan as one of rows over the columns: what names, flags and statements are made from."""
    return KernelPlan(
        name=plan.name,
        kept=plan.kept,
        inner=plan.columns,
        operands=tuple(Operand(o.tensor, (), ()) for o in plan.operands),
        final_operands=(),
        levels=(),
        results=plan.results,
        columns=(),
        finals=(),
        segment=(),
        moments=None,
        exponentials=None,
        bindings=plan.bindings,
        scalars=plan.scalars,
    )
