"""The columns family, as the compiler sees it: threads own neighbouring columns and walk along them.

Without sums over columns a block owns one tile of columns; with them, persistent blocks walk the tiles, and
the second-stage kernel adds the partials of the sums, as for rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from normgen.families.columns.compile.plan import ColumnsPlan, plan_columns
from normgen.families.columns.compile.text import ColumnsBody, ColumnsText
from normgen.ir.expr import Load, walk
from normgen.ir.program import Result
from normgen.kernel.access import Access, ColumnText, lay_out
from normgen.kernel.family import CompileFamily
from normgen.kernel.finals import final_groups, second_stage_form
from normgen.kernel.forms import Context, form_record, store_of
from normgen.kernel.group import Group
from normgen.kernel.levels import Level
from normgen.kernel.phases import Phase
from normgen.kernel.plan import KernelPlan
from normgen.kernel.show import show_plan
from normgen.kernel.text import Wording, lengths_of
from normgen.package.kernels import ColumnsRecord
from normgen.package.operands import FormRecord, Parameter


class Columns(CompileFamily[ColumnsPlan, ColumnsRecord]):
    """Kernels of reductions over strided axes."""

    plans, rank = ColumnsPlan, 2
    plan = staticmethod(plan_columns)

    def is_eager(self, group: Group) -> bool:
        """Of what is small one launch, in place of a kernel and the one that adds up what its blocks found:
        where a group reads nothing that has all its axes but what other kernels have reduced already."""
        full = [t for t in group.program.operands if t.axes == group.space]
        used = {n.tensor for n in walk(*group.roots) if isinstance(n, Load)}
        return all(t.role == "temporary" for t in full if t.name in used)

    def emit(self, plan: ColumnsPlan, wording: Wording) -> ColumnsRecord:
        """The record of a kernel."""
        text, parts = ColumnsText(plan, wording), plan.parts
        views = [ColumnsView(text, form) for form in FORMS]
        forms = [v.record(text.parameters(bool(v.plane))) for v in views]
        return ColumnsRecord(
            name=plan.name,
            kept=plan.outer + plan.reduced,
            inner=plan.across,
            reduced=plan.reduced,
            reads=tuple(text.by_memory(a) for a in text.reads),
            writes=tuple(text.by_memory(a) for a in text.writes),
            final_reads=tuple(a.record() for a in text.final_reads),
            finals=tuple(text.result(r).record() for r in parts.finals),
            columns=tuple(c.record() for c in text.columns),
            segment=parts.segment,
            exchanges=len(parts.levels),
            exchanged=max(v.body.exchanged for v in views),
            moments=parts.moments is not None,
            arrays=next(v.arrays for v in views if v.form.holds),
            held=max(len(v.body.held) for v in views),
            groups=len(final_groups(parts)),
            forms=(*forms, *([second_stage_form(text)] if parts.finals else [])),
        )

    def show(self, plan: ColumnsPlan) -> str:
        head, _, *rest = show_plan(plan.parts).splitlines(keepends=True)
        walk = f"  threads own columns [{', '.join(plan.across)}] and walk along [{', '.join(plan.reduced)}]"
        outer = f"; [{', '.join(plan.outer)}] number the matrices" if plan.outer else ""
        return "".join([head, f"{walk}{outer}\n", *rest])


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family; its template has its name."""

    name: str
    holds: bool  # whether a thread has all its elements at once, and keeps some values from pass to pass
    levels: Callable[[KernelPlan], tuple[Level, ...]]  # the passes of reductions that it makes


FORMS = (
    # a thread holds its share of its columns in registers, packed, and reads it once
    Form("registers", True, lambda plan: plan.merged_levels),
    # any length of column; one pass along it per level of reductions, and one for the results
    Form("multipass", False, lambda plan: plan.paired_levels),
)


class ColumnsView:
    """The template's view of one form."""

    def __init__(self, text: ColumnsText, form: Form) -> None:
        self.text = text = text.of_form()
        self.plan, self.form = text.plan, form
        values = {a.tensor: text.value(a, form.holds) for a in text.reads}
        self.body = ColumnsBody(text, form.levels(self.plan), values, form.holds)
        self.kinds: dict[str, list[Access]] = {
            kind: [a for a in text.reads if text.kind(a.operand) == kind]
            for kind in ("vector", "column", "element", "scalar", "gather")
        }

    @property
    def arrays(self) -> int:
        """How many values of each column the last pass needs."""
        self.context()  # which makes the statements
        text = "\n".join(self.body.phases[-1].statements)
        names = [*self.body.arrays, *(f"{a.value}[i]" for a in self.kinds["column"])]
        return sum(re.search(rf"\b{re.escape(name)}", text) is not None for name in names)

    def record(self, parameters: tuple[Parameter, ...]) -> FormRecord:
        """The form with its text."""
        name, form = self.form.name, self.form
        return form_record(
            self.text, name, f"columns/{name}", lambda text: ColumnsView(text, form).context(), parameters
        )

    def context(self) -> Context:
        """What the template prints."""
        text, body = self.text, self.body
        results = text.results
        stored = [(r.expr, a) for r, a in results if a.operand.inner]
        stores = [store_of(text, access, address=text.address(access)) for _, access in stored]
        column_stores = [self._column_store(r, a) for r, a in results if not a.operand.inner]
        whole = [c for c in text.columns if not body.rates.per_row(c.column.reduce.arg)]
        body.finish(stored, whole, self._accumulate)
        column_sums = [(c.name, body.row_value(c.column.reduce.arg)) for c in text.columns if c not in whole]
        *levels, final = self._phases()
        vectors = self.kinds["vector"]
        lay_out(vectors, "ITEMS")
        return {
            "text": text,
            "plane": self.plane,
            "counted": self._counted,
            "exchanged": body.exchanged,
            "segment": self.plan.segment,
            "segment_digits": text.segment_digits,
            "grouped": bool(text.walked),
            "digits": text.group_digits,
            "pointers": [a for a in text.reads if a.offset],
            "targets": [a for _, a in results if a.offset],
            "vectors": vectors,
            "ahead": bool(self.form.holds and text.accumulators and vectors),
            "per_column": self.kinds["column"],
            "gathered": [a for a in self.kinds["gather"] if not a.operand.inner],
            "scalars": self.kinds["scalar"],
            "elements": self.kinds["element"] if self.form.holds else [],
            "prologue": self._by_rate([statement for _, statement in body.before]),
            "levels": levels,
            "final": final | {"stores": stores, "column_stores": column_stores},
            "persistent": bool(text.accumulators),
            "columns": text.columns,
            "column_sums": column_sums,
            "held": body.held,
        }

    @property
    def plane(self) -> str:
        """The length of what columns lie side by side in, if they may begin anywhere in a word of memory."""
        may = self.form.holds and not self.text.picks()
        return lengths_of(self.text.layout.across) if may else ""

    @property
    def _counted(self) -> str:
        """The condition that a thread has its `i`-th column."""
        return "if (!REALIGNED || i < span.count) " if self.plane else ""

    def _by_rate(self, statements: list[str]) -> Context:
        """Statements that all columns of a thread share, and those that each column has to itself."""
        arrays = {s: self.body.arrays.get(s.split(" = ")[0]) for s in statements}
        return {
            "shared": [s for s in statements if arrays[s] is None],
            "each": [s for s in statements if arrays[s] is not None],
            "arrays": [name for name in arrays.values() if name is not None],
        }

    def _column_store(self, result: Result, access: Access) -> Context:
        """What is stored for each column."""
        store = store_of(self.text, access, address=self.text.address(access))
        value = self.body.row_value(result.expr)
        array = self.body.arrays.get(value)
        # adding what the memory holds changes the values
        named = array is not None and not store["accumulates"]
        return store | ({"value": array, "from": ""} if named else {"from": value})

    def _accumulate(self, column: ColumnText, value: str) -> str:
        """A term of a sum over columns, for one element of one column."""
        if column.wide and not self.form.holds:
            return f"{column.name}_part += {value};"
        index = "[item]" if column.wide else ""
        return f"{self._counted}if (live) {column.name}{index} += {value};"

    def _phases(self) -> list[Context]:
        phases = [self._phase(k, p) for k, p in enumerate(self.body.phases)]
        seen: set[str] = set()
        for phase in phases:
            phase["first_use"] = {v.value: v.value not in seen for v in phase["vectors"]}
            seen.update(phase["first_use"])
        return phases

    def _phase(self, k: int, phase: Phase) -> Context:
        level = self.body.levels[k] if k < len(self.body.levels) else None
        used = {kind: [a for a in found if a.tensor in phase.loads] for kind, found in self.kinds.items()}
        gathers = [a for a in used["gather"] if a.operand.inner]
        gathered = [f"const float {a.value} = {self.text.loaded(a)};" for a in gathers]
        return vars(phase) | {
            "comments": self.body.heading(k),
            "vectors": used["vector"],
            "elements": [] if self.form.holds else used["element"],
            "statements": gathered + phase.statements,
            "sums": [(s.start, s.operation, self.body.arrays[s.name]) for s in phase.sums],
            "moments": self._moments(phase),
            "exponentials": self._exponentials(phase),
            "values": self._by_rate(phase.rows),
            "made": level is None or self.text.needs_sums(level),
        }

    def _moments(self, phase: Phase) -> Context | None:
        if phase.moments is None:
            return None
        found = cast("list[tuple[str, str]]", phase.moments["sums"])
        return {**phase.moments, "sums": [(self.body.arrays[name], part) for name, part in found]}

    def _exponentials(self, phase: Phase) -> Context | None:
        if phase.exponentials is None:
            return None
        value, top, total = (phase.exponentials[k] for k in ("value", "top", "total"))
        return {"value": value, "top": self.body.arrays[top], "total": self.body.arrays[total]}


FAMILY = Columns()
