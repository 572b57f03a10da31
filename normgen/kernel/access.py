"""One operand, result or accumulator in kernel text: its identifiers and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from normgen.kernel.accumulators import Column
from normgen.kernel.phases import FUNCTOR, START, taken
from normgen.kernel.plan import Operand
from normgen.package.operands import AccumulatorRecord, OperandRecord


@dataclass
class Access:
    """One operand or result in the text: its identifiers, and how it is addressed.

    `value`: its name, and that of a vector, or of the one element, that a thread has of it. `has`: whether
    the call has it; `there`: whether some wanted result is computed from it too. `updated`: an
    operand that is a result too, a state with its old and its new value. `span`: of an operand with some axes
    of the row, the neighbours in a row that share an element; `one`: whether all elements of a vector do.
    `once`: each row has elements of its own.
    `repacked`: its vectors stay packed from one pass to the next.
    `shelved`: some of each thread's vectors lie in shared memory.
    `in_pieces`: its rows lie in several pieces. `single`: all vectors that a thread has of it are the same.
    `at`: where a pass keeps the vector that it is at.
    `reader`: which threads read it, where not all do. `part`: the element that a vector has, if it has one.
    `tags`: the cache is told to keep its lines.
    """

    operand: Operand
    value: str
    offset: str
    has: bool = True
    there: bool = True
    missing: str = "0.f"
    wanted_by: tuple[str, ...] = ()
    walks: bool = False
    once: bool = False
    pipeline_offset: str = ""
    staged_in: bool = False
    shelved: bool = False
    in_pieces: bool = False
    single: bool = False
    reader: str = ""
    late: bool = False
    at: str = "item"
    repacked: bool = False
    updated: bool = False
    span: str = ""
    one: bool = False
    part: str = ""
    tags: bool = False

    @property
    def tensor(self) -> str:
        """The tensor's name."""
        return self.operand.tensor.name

    @property
    def type(self) -> str:
        return f"{self.value}_t"

    @property
    def pointer(self) -> str:
        return f"{self.value}_ptr"

    @property
    def image(self) -> str:
        """Where the image of a thread begins."""
        return f"{self.value}_image"

    @property
    def load(self) -> str:
        """What a row has of it, or element `i` of the vector at `column`."""
        return self.loaded(f"{self.pointer}{self.offset}")

    @property
    def at_place(self) -> str:
        """Where a vector of a row in pieces is: one number beside the pointer, or each of them would be added
        to it in 64 bits.
        """
        offset = f"{self.offset} + place".removeprefix(" + ")
        return f"{self.pointer} + ({offset})"

    @property
    def held(self) -> str:
        """That of element `i` of a vector, where they are held."""
        return f"{self.value}_parts[{'item' if self.one else 'item * VEC + i'}]"

    @property
    def load_part(self) -> str:
        """The element of the vector at `column`."""
        return self.load.replace("(column + i)", "column")

    def loaded(self, address: str) -> str:
        """The value at an address, or what stands for it where the operand is absent."""
        if not self.there:
            return self.missing
        text = f"{'load_state' if self.updated else 'load_scalar'}({address})"
        return f"{self.reader} ? {text} : {self.missing}" if self.reader else text

    def record(self) -> OperandRecord:
        o = self.operand
        return OperandRecord(o.tensor.name, o.kept, o.inner, self.wanted_by)


def lay_out(vectors: Iterable[Access], items: str, spare: str = "") -> None:
    """Give each its place in shared memory behind the one before, for so many vectors of each thread."""
    offset = ""
    for v in vectors:
        v.pipeline_offset = offset
        size = f"{items} * VEC * THREADS * int(sizeof({v.type}))"
        if v.there:
            offset += f" + {size} + {spare}" if spare else f" + {size}"


@dataclass
class ColumnText:
    """An accumulator over rows in the text.

    `label`: its name in the record. `by_place`: whether a thread has a
    value for each element of a vector, the same of all its vectors: it adds up pieces of rows. `result`: how
    that which it is in the end is stored, where the kernel of the rows may do so itself.
    """

    column: Column
    name: str
    partial: str
    wanted_by: tuple[str, ...]
    by_place: bool = False
    result: Mapping[str, object] | None = None
    label: str = ""

    @property
    def op(self) -> str:
        """sum, max, min or moments."""
        return self.column.op

    @property
    def wide(self) -> bool:
        """Whether it has one value for each element of the row."""
        return self.column.wide

    @property
    def part(self) -> tuple[str, ...]:
        """The outer axes of the row that it keeps, where it keeps some."""
        return self.column.part

    @property
    def start(self) -> str:
        """Its value where no row has been seen."""
        return START.get(self.op, "{}")

    @property
    def functor(self) -> str:
        """The device functions' name for its operation."""
        return FUNCTOR[self.op]

    def record(self) -> AccumulatorRecord:
        c = self.column
        return AccumulatorRecord(self.label, c.kept, c.wide, self.wanted_by, c.op, c.part, c.folded)

    def declared(self, stored: bool = False) -> list[str]:
        """Statements that declare it, before the first row. `stored`: what each element of a row has lies in
        memory."""
        stored = stored and self.wide
        if self.part:
            return [f"float {self.name}[{'VEC' if self.by_place else 'ITEMS'}] = {{}};"]
        match self.op:
            case "moments" if stored:
                at = f"{self.partial} + index_t(blockIdx.x / MEMBERS) * MomentsRow<LENGTH>::SIZE"
                return [f"StoredMoments<LENGTH> {self.name} = {{{{{at}}}}};"]
            case "moments":
                return [f"{'ColumnMoments<ITEMS * VEC>' if self.wide else 'ValueMoments'} {self.name};"]
            case _ if stored:
                at = f"{self.partial} + index_t(blockIdx.x / MEMBERS) * partial_pitch(LENGTH)"
                return [f"float* const {self.name}_row = {at};"]
            case "sum":
                return [f"float {self.name}[{'ITEMS * VEC' if self.wide else '1'}] = {{}};"]
            case _ if self.wide:
                return [f"float {self.name}[ITEMS * VEC];", f"set_all({self.name}, {self.start});"]
            case _:
                return [f"float {self.name}[1] = {{{self.start}}};"]

    def element(self, value: str, stored: bool = False, beyond: str = "") -> str:
        """The statement that takes in element `i` of a vector, or what a thread has found of a row. `beyond`:
        the condition that there is no such element, where vectors may have fewer."""
        guard = "if (live) "
        if self.part:
            return guard + taken(self.op, f"{self.name}[{'i' if self.by_place else 'item'}]", value)
        match self.op, self.wide, stored:
            case "moments", False, _:
                return f"{self.name}_vector[i] = {value};"
            case "moments", True, True:
                return f"{guard}{self.name}.add(column + i, {value});"
            case "moments", True, _:
                return f"{guard}{self.name}.add(item * VEC + i, {value});"
            case _, False, _:
                there = f"if (!{beyond}) " if beyond else ""
                return there + guard + taken(self.op, f"{self.name}[0]", value)
            case _, True, True:
                return guard + taken(self.op, f"{self.name}[i]", value)
            case _:
                return guard + taken(self.op, f"{self.name}[item * VEC + i]", value)

    def left(self, span: str, value: str) -> list[str]:
        """The statements that leave what the lanes of each run have. `span`: elements of a row for each of
        those that it keeps; `value`: of what is in place `i` of the runs, or empty where they are yet to be
        added up."""
        runs = f"put_runs<Layout, RUN, VEC, {span}, LENGTH, ITEMS>"
        own = f"{self.name}[i]"
        put = f"{runs}({self.partial}, rows, row, lane, live, [&](int i) {{ return {value or own}; }});"
        return [put] if value else [f"add_runs<RUN>({self.name});", put]

    def row(self, value: str) -> str:
        """The statement that takes in a value of the row."""
        guard = "if (live && lane == 0) "
        if self.op == "moments":
            return f"{guard}{self.name}.add({{{value}}});"
        return guard + taken(self.op, f"{self.name}[0]", value)

    def taken(self, into: str, value: str) -> str:
        """The statement that takes the value of another thread or thread group in."""
        return taken(self.op, into, value)
