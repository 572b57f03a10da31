"""What a kernel's text calls things: identifiers, offsets, flags that say when an operand is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.codegen.body import COSTLY
from normgen.codegen.names import Names
from normgen.codegen.plan import Column, KernelPlan, Operand
from normgen.codegen.printer import Printer, literal
from normgen.diagnostics import Source
from normgen.ir.expr import Call, Expr, Load, scalar, walk
from normgen.ir.program import Result
from normgen.runtime.records import ColumnRecord, FormRecord, KernelRecord, OperandRecord, axis_name


@dataclass
class Access:
    """One operand or result in the text: its identifiers, how it is addressed, and when it is there."""

    operand: Operand
    identifier: str
    offset: str
    flag: str = ""
    missing: str = "0.f"
    wanted_by: tuple[str, ...] = ()
    walks: bool = False
    once: bool = False
    ring_offset: str = ""
    staged_in: bool = False
    late: bool = False

    @property
    def value(self) -> str:
        return self.identifier

    @property
    def type(self) -> str:
        return f"{self.identifier}_t"

    @property
    def pointer(self) -> str:
        return f"{self.identifier}_ptr"

    @property
    def words(self) -> str:
        return f"{self.identifier}_words"

    @property
    def ring(self) -> str:
        return f"{self.identifier}_ring"

    @property
    def load(self) -> str:
        """A scalar's expression, or the function that loads one vector."""
        if self.operand.inner:
            return "load_once" if self.once else "load_shared_by_rows"
        text = f"load_scalar({self.pointer}{self.offset})"
        return f"{self.flag} ? {text} : {self.missing}" if self.flag else text

    def record(self) -> OperandRecord:
        o = self.operand
        return OperandRecord(o.tensor.name, self.identifier, o.kept, o.inner, self.wanted_by)


@dataclass
class Flag:
    name: str
    value: str
    comment: str = ""


@dataclass
class ColumnText:
    """A column sum in the text."""

    column: Column
    name: str
    partial: str
    flag: str
    wanted_by: tuple[str, ...]

    @property
    def wide(self) -> bool:
        return self.column.wide


class KernelText:
    """Identifiers, offsets and flags of one kernel, the same in all its forms.

    `accumulated`: the results that a call may ask to be added to what their memory holds.
    """

    def __init__(
        self, plan: KernelPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]
    ) -> None:
        self.plan = plan
        self.source = source
        self.names = Names()
        self.accumulated = accumulated
        self.formulas = formulas
        self.walk = tuple(a for a in plan.kept if a not in plan.segment)
        everything = {o.tensor.name: o for o in (*plan.operands, *plan.final_operands)}
        targets = [r.tensor for r in (*plan.results, *plan.finals)]
        self.ids = {n: self.names.take(n) for n in [*everything, *(t.name for t in targets)]}
        self.scalars = {a: self.names.take(a) for a in plan.scalars}
        self.wants = {t.name: f"WANT_{self.ids[t.name].upper()}" for t in targets}
        self._needs = _needs(plan)
        self.reads = [self._access(o) for o in plan.operands]
        self.final_reads = [self._access(o) for o in plan.final_operands]
        self.writes = [self.result(r) for r in plan.results]
        self.columns = [self._column(k, c) for k, c in enumerate(plan.columns)]

    # -------------------------------------------------------------------------------------------- operands

    def _offset(self, operand: Operand) -> str:
        terms = [f" + {self._digit(a)} * {self._stride(operand, a)}" for a in operand.kept]
        if operand.inner and operand.inner != self.plan.inner:
            for k, axis in enumerate(self.plan.inner):
                if axis in operand.inner:
                    below = "".join(f" / size_{axis_name(a)}" for a in reversed(self.plan.inner[k + 1 :]))
                    over = f" % size_{axis_name(axis)}" if k else ""
                    terms.append(f" + index_t((column + i){below}{over}) * {self._stride(operand, axis)}")
        return "".join(terms)

    def _digit(self, axis: str) -> str:
        return "row" if self.walk == (axis,) else f"at_{axis_name(axis)}"

    def _stride(self, operand: Operand, axis: str) -> str:
        return f"{self.ids[operand.tensor.name]}_stride_{axis_name(axis)}"

    def _access(self, operand: Operand) -> Access:
        name = operand.tensor.name
        access = Access(operand, self.ids[name], self._offset(operand))
        access.walks = any(a in self.walk for a in operand.kept)
        access.once = all(a in operand.kept for a in self.walk)
        access.wanted_by = self._needs[name]
        if operand.tensor.default is not None:
            access.missing = literal(operand.tensor.default)
        every = len(access.wanted_by) == len(self.wants)
        if self._optional(operand) and every:
            access.flag = f"HAS_{self.ids[name].upper()}"
        elif not every:
            access.flag = f"READ_{self.ids[name].upper()}"
        return access

    @staticmethod
    def _optional(operand: Operand) -> bool:
        return operand.tensor.role == "cotangent" or operand.tensor.default is not None

    def result(self, result: Result) -> Access:
        t = result.tensor
        operand = Operand(
            t,
            tuple(a for a in self.plan.kept if a in t.axes),
            tuple(a for a in self.plan.inner if a in t.axes),
        )
        return Access(operand, self.ids[t.name], self._offset(operand))

    def _column(self, index: int, column: Column) -> ColumnText:
        wanted = tuple(f.tensor.name for f in self.plan.finals if column.reduce in set(walk(f.expr)))
        stem = wanted[0] if len(self.plan.columns) == len(self.plan.finals) else f"column_{index + 1}"
        name = f"{self.ids[stem]}_sum" if stem in self.ids else self.names.take(f"{stem}_sum")
        flag = " || ".join(self.wants[w] for w in wanted)
        flag = f"({flag})" if len(wanted) > 1 else flag
        return ColumnText(column, name, f"{name}_partial", flag, wanted)

    def flags(self, reads: list[Access]) -> list[Flag]:
        out = []
        for access in reads:
            if not access.flag.startswith("READ_"):
                continue
            wants = " || ".join(self.wants[w] for w in access.wanted_by)
            if self._optional(access.operand):
                wants = f"({wants})" if len(access.wanted_by) > 1 else wants
                wants = f"HAS_{access.identifier.upper()} && {wants}"
            out.append(Flag(access.flag, wants))
        return out

    # -------------------------------------------------------------------------------------------- shared
    # pieces

    def digits(self, variable: str) -> list[str]:
        """Statements that take a row number apart into the index along each axis that the rows walk."""
        return digits_of(self.walk, variable)

    @property
    def segment_digits(self) -> list[str]:
        return digits_of(self.plan.segment, "segment", always=True)

    def printer(self, values: dict[str, str]) -> Printer:
        """A printer that knows the scalars and, by `values`, what the element or row value of each operand is
        called.
        """
        loads = {n.tensor: n for n in walk(*self._roots()) if isinstance(n, Load)}
        names: dict[Expr, str] = {loads[t]: text for t, text in values.items() if t in loads}
        names |= {scalar(a): identifier for a, identifier in self.scalars.items()}
        types = {t: f"{i}_t" for t, i in self.ids.items()}
        return Printer(names, types)

    def _roots(self) -> list[Expr]:
        return [r.expr for r in (*self.plan.results, *self.plan.finals)]

    @property
    def result_names(self) -> dict[str, str]:
        """Identifiers of results that no operand shares: free for the value that is stored there."""
        reads = {a.operand.tensor.name for a in (*self.reads, *self.final_reads)}
        return {name: self.ids[name] for name in self.wants if name not in reads}

    # -------------------------------------------------------------------------------------------- records

    def record(self, forms: list[FormRecord], held: int) -> KernelRecord:
        plan = self.plan
        finals = [self.result(r).record() for r in plan.finals]
        return KernelRecord(
            name=plan.name,
            kept=plan.kept,
            inner=plan.inner,
            reads=tuple(replace(a.record(), passes=plan.passes(a.operand.tensor.name)) for a in self.reads),
            writes=tuple(a.record() for a in self.writes),
            final_reads=tuple(a.record() for a in self.final_reads),
            finals=tuple(finals),
            columns=tuple(ColumnRecord(c.name, c.column.kept, c.wide, c.wanted_by) for c in self.columns),
            segment=plan.segment,
            exchanges=len(plan.levels),
            moments=plan.moments is not None,
            functions=any(isinstance(n, Call) and n.op in COSTLY for n in walk(*self._roots())),
            held=held,
            forms=tuple(forms),
        )


def digits_of(axes: tuple[str, ...], variable: str, always: bool = False) -> list[str]:
    if not axes or (len(axes) == 1 and not always):
        return []
    out, rest = [], variable
    for axis in reversed(axes[1:]):
        name = axis_name(axis)
        out.append(f"const index_t at_{name} = {rest} % size_{name};")
        rest = f"{rest} / size_{name}"
    out.append(f"const index_t at_{axis_name(axes[0])} = {rest};")
    return out


def _needs(plan: KernelPlan) -> dict[str, tuple[str, ...]]:
    """For each operand, the results that are computed from it."""
    needs: dict[str, list[str]] = {}
    for result in (*plan.results, *plan.finals):
        for node in walk(result.expr):
            if isinstance(node, Load):
                needs.setdefault(node.tensor, []).append(result.tensor.name)
    return {t: tuple(names) for t, names in needs.items()}
