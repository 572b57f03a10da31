"""The tiles family, as the compiler sees it: matrices in tiles, some of them turned in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.families.tiles.compile.plan import TilesPlan, plan_tiles
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.body import Body
from normgen.kernel.family import CompileFamily
from normgen.kernel.forms import Context, form_record, parameters_for
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.show import operand_lines
from normgen.kernel.text import KernelText, Wording, digit_of, digits_of
from normgen.package.constants import Constants
from normgen.package.kernels import TilesRecord
from normgen.package.operands import Parameter, axis_name


class Tiles(CompileFamily[TilesPlan, TilesRecord]):
    """Elementwise kernels of tensors in two memory orders."""

    plans, rank = TilesPlan, 3
    plan = staticmethod(plan_tiles)

    def emit(self, plan: TilesPlan, wording: Wording) -> TilesRecord:
        """The record of a kernel with its text."""
        text = TilesText(plan, wording)
        used = plan.roots
        lengths = plan.batch + (plan.rows if len(plan.rows) > 1 else ())
        own = [Parameter("rows")]
        parameters = parameters_for(text, lambda o: o.kept, used, lengths, own, fixed=plan.columns)
        return TilesRecord(
            name=plan.name,
            kept=(*plan.batch, *plan.rows),
            inner=plan.columns,
            rows=plan.rows,
            reads=tuple(a.record() for a in text.reads),
            writes=tuple(a.record() for a in text.writes),
            forms=(form_record(text, "tiles", "tiles/tiles", TilesText.context, parameters),),
        )

    def show(self, plan: TilesPlan) -> str:
        lines = [
            f"kernel {plan.name}",
            f"  matrices of [{', '.join(plan.rows)}] by [{', '.join(plan.columns)}], in tiles",
        ]
        if plan.batch:
            lines.append(f"  [{', '.join(plan.batch)}] number the matrices")
        lines += operand_lines("reads", (Operand(o.tensor, o.kept, o.inner) for o in plan.operands))
        lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
        turned = [o.tensor.name for o in (*plan.operands, *plan.targets) if o.inner == plan.rows]
        lines.append(f"  through shared memory {', '.join(turned)}")
        return "\n".join(lines) + "\n"


@dataclass
class TileAccess(Access):
    """An operand or result in the text. `offset` leads to its element at `row` and `column`."""

    room: str = ""  # where its tile starts in shared memory
    accumulates: bool = False

    @property
    def address(self) -> str:
        """The pointer and one number, of `index_t`: the sum of pointers would take 64 bits at each step."""
        offset = self.offset.removeprefix(" + ")
        if not offset:
            return self.pointer
        return f"{self.pointer} + " + (f"({offset})" if " + " in offset else offset)

    @property
    def load(self) -> str:
        """The expression that reads a single element."""
        return self.loaded(self.address)

    @property
    def knob(self) -> str:
        """How constants of a call name it."""
        return self.value.upper()


class TilesText(KernelText):
    """Identifiers, addresses and flags of one kernel, and the template's view of it."""

    def __init__(self, plan: TilesPlan, wording: Wording, given: Constants | None = None) -> None:
        super().__init__(plan.parts, wording, given=given)
        self.tiles = plan
        self.inputs = [self._placed(a, o) for a, o in zip(self.reads, plan.operands, strict=True)]
        self.outputs = [self._placed(a, o) for a, o in zip(self.writes, plan.targets, strict=True)]
        self.reads, self.writes = [*self.inputs], [*self.outputs]
        for access in self.outputs:
            access.there = self.wants[access.tensor]
            access.accumulates = access.tensor in wording.accumulated
        room = ""
        for access in self._turned(self.inputs) + self._turned(self.outputs):
            access.room = room
            room += f" + {access.value}_tile_t::BYTES" if access.there else ""

    def known(self, given: Constants) -> TilesText:
        return TilesText(self.tiles, self.wording, given)

    # -------------------------------------------------------------------------------------------- operands

    def _placed(self, access: Access, operand: Operand) -> TileAccess:
        plan, own = self.tiles, access.value
        terms = [f" + {self._index(a, operand)} * {own}_stride_{axis_name(a)}" for a in operand.kept]
        run = {plan.rows: " + row", plan.columns: " + column"}.get(operand.inner, "")
        offset = "".join(terms) + run
        there = access.has, access.there
        return TileAccess(operand, own, offset, *there, access.missing, access.wanted_by)

    def _index(self, axis: str, operand: Operand) -> str:
        """The index along an axis: one of several that a number was taken apart into, or that number."""
        if axis in self.tiles.batch:
            return f"at_{axis_name(axis)}"
        if axis in self.tiles.columns and not operand.inner:
            return f"({digit_of('(column + i)', self.tiles.columns, axis)})"
        number, axes = ("row", self.tiles.rows) if axis in self.tiles.rows else ("column", self.tiles.columns)
        return number if axes == (axis,) else f"at_{axis_name(axis)}"

    def _turned(self, accesses: list[TileAccess]) -> list[TileAccess]:
        return [a for a in accesses if a.operand.inner == self.tiles.rows]

    def _straight(self, accesses: list[TileAccess]) -> list[TileAccess]:
        return [a for a in accesses if a.operand.inner == self.tiles.columns]

    @staticmethod
    def _divided(accesses: list[TileAccess], over: Order) -> tuple[list[TileAccess], list[TileAccess]]:
        """Those that vary over these axes, and the others."""
        varying = [a for a in accesses if not set(over).isdisjoint(a.operand.kept)]
        return varying, [a for a in accesses if a not in varying]

    # -------------------------------------------------------------------------------------------- context

    def context(self) -> Context:
        plan = self.tiles
        gathers, scalars = self._divided([a for a in self.inputs if not a.operand.inner], plan.columns)
        row_scalars, block_scalars = self._divided(scalars, plan.rows)
        lines, common = self._divided(self._straight(self.inputs), plan.rows)
        body, statements = self._body()
        wanted = [access for access in self.outputs if access.there]
        row_values = [(s, not node.axes.isdisjoint(plan.rows)) for node, s in body.before]
        return {
            "width": " * ".join(f"index_t(size_{axis_name(a)})" for a in plan.columns),
            "batch_digits": digits_of(plan.batch, "batch", always=True),
            "row_digits": digits_of(plan.rows, "row"),
            "column_digits": digits_of(plan.columns, "column"),
            "turned_reads": self._turned(self.inputs),
            "turned_writes": self._turned(wanted),
            "straight_writes": self._straight(wanted),
            "lines": lines,
            "common": common,
            "gathers": gathers,
            "row_scalars": row_scalars,
            "block_scalars": block_scalars,
            "block_values": [s for s, by_row in row_values if not by_row],
            "row_values": [s for s, by_row in row_values if by_row],
            "statements": statements,
        }

    def _body(self) -> tuple[Body, list[str]]:
        """The values of a row, and the statements of an element."""
        values = {a.tensor: a.value for a in self.inputs}
        values |= {a.tensor: f"{a.value}[i]" for a in self._straight(self.inputs)}
        body = Body(self, (), values)
        stored = zip(self.plan.roots, self.outputs, strict=True)
        body.finish((root, access) for root, access in stored if access.there)
        return body, body.phases[-1].statements


FAMILY = Tiles()
