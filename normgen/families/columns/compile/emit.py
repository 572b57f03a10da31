"""Plan of a columns kernel -> CUDA text, one for each form of the schedule.

- registers: a thread holds its share of its columns in registers, packed, and reads it once.
- stream: any length of column; one pass along it per level of reductions, and one for the results.
- finalise: adds the partials of the sums over columns, as for rows.

Without sums over columns a block owns one tile of columns; with them, persistent blocks walk the tiles.
"""

from __future__ import annotations

import re
from typing import cast

from normgen.diagnostics import Source
from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.families.columns.compile.text import ColumnsBody, ColumnsText
from normgen.ir.program import Result
from normgen.kernel.access import Access, ColumnText, lay_out
from normgen.kernel.finals import finalise_form
from normgen.kernel.phases import Phase
from normgen.kernel.render import Context, declare, environment
from normgen.kernel.tidy import tidy
from normgen.package.kernels import ColumnsRecord
from normgen.package.operands import FormRecord, Parameter


def emit_columns(
    plan: ColumnsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> ColumnsRecord:
    """The record of a kernel with the text of its forms. Arguments as those of `emit`."""
    text = ColumnsText(plan, source, accumulated, formulas)
    registers, stream = _Columns(text, "registers"), _Columns(text, "stream")
    forms = [registers.form(), stream.form()]
    forms += [finalise_form(text)] if plan.parts.finals else []
    exchanged = max(registers.exchanged, stream.exchanged)
    record = text.columns_record(forms, len(registers.body.held), exchanged, registers.arrays)
    return text.names.settle(record)


class _Columns:
    """The template's view of one form."""

    def __init__(self, text: ColumnsText, form: str) -> None:
        self.text, self.plan, self.name = text, text.plan, form
        values = {a.operand.tensor.name: text.value(a, form) for a in text.reads}
        levels = self.plan.paired_levels if form == "stream" else self.plan.merged_levels
        self.body = ColumnsBody(text, levels, text.printer(values), form == "registers")
        self.kinds: dict[str, list[Access]] = {}
        for access in text.reads:
            self.kinds.setdefault(text.kind(access.operand), []).append(access)
        self.exchanged = max((self._width(p) for p in self.body.phases), default=0)

    @staticmethod
    def _width(phase: Phase) -> int:
        return 3 if phase.moments else 2 if phase.exponentials else len(phase.sums)

    @property
    def arrays(self) -> int:
        """How many values of each column the last pass needs. Known when the form's text is."""
        text = "\n".join(self.body.phases[-1].statements)
        per_column = [f"{a.value}[i]" for a in self.kinds.get("column", [])]
        return sum(
            re.search(rf"\b{re.escape(name)}", text) is not None for name in [*self.body.arrays, *per_column]
        )

    def form(self) -> FormRecord:
        """The text of the form."""
        parameters, entry = self.text.parameters(), f"{self.plan.name}_{self.name}"
        template = environment().get_template(f"columns/{self.name}.cu.jinja")
        declared = [_declare(self.text, p) for p in parameters]
        source = template.render(kernel=self._context(), entry=entry, parameters=declared)
        return FormRecord(self.name, entry, parameters, tidy(source))

    def _context(self) -> Context:
        text, body, final = self.text, self.body, self.body.phases[-1]
        stores, column_stores = self._stores()
        whole = [c for c in text.columns if not body.rates.per_row(c.column.reduce.arg)]
        roots = [s["root"] for s in stores] + [c.column.reduce.arg for c in whole]
        values = body.element(final, roots)
        for store, value in zip(stores, values, strict=False):
            final.statements.append(f"{store['value']}[i] = {value};{body.comment(store['root'])}")
        for column, value in zip(whole, values[len(stores) :], strict=True):
            final.statements.append(self._accumulate(column, value))
        per_column = [c for c in text.columns if c not in whole]
        column_sums = [(c.flag, c.name, body.row_value(c.column.reduce.arg)) for c in per_column]
        phases = [self._phase(k, p) for k, p in enumerate(body.phases)]
        for k, phase in enumerate(phases):
            users = [[v.value for v in p["vectors"]] for p in phases]
            phase["first_use"] = {v: not any(v in u for u in users[:k]) for v in users[k]}
        vectors = self.kinds.get("vector", [])
        lay_out(vectors, "ITEMS")
        elements = self.kinds.get("element", [])
        gathered = [a for a in self.kinds.get("gather", []) if not a.operand.inner]
        return {
            "formulas": text.formulas,
            "flags": text.flags(text.reads),
            "text": text,
            "exchanged": self.exchanged,
            "segment": self.plan.segment,
            "segment_digits": text.segment_digits,
            "grouped": bool(text.walked),
            "digits": text.group_digits,
            "pointers": [a for a in text.reads if a.offset],
            "targets": [a for a in text.writes if a.offset],
            "vectors": vectors,
            "ahead": bool(self.name == "registers" and text.columns and vectors),
            "per_column": self.kinds.get("column", []),
            "gathered": gathered,
            "scalars": self.kinds.get("scalar", []),
            "elements": elements if self.name == "registers" else [],
            "prologue": self._by_rate([statement for _, statement in body.before]),
            "levels": phases[:-1],
            "final": phases[-1] | {"stores": stores, "column_stores": column_stores},
            "columns": text.columns,
            "column_sums": column_sums,
            "held": body.held,
        }

    def _by_rate(self, statements: list[str]) -> Context:
        """Statements that all columns of a thread share, and those that each column has to itself."""
        arrays = {s: self.body.arrays.get(s.split(" = ")[0]) for s in statements}
        return {
            "shared": [s for s in statements if arrays[s] is None],
            "each": [s for s in statements if arrays[s] is not None],
            "arrays": [name for name in arrays.values() if name is not None],
        }

    # -------------------------------------------------------------------------------------------- results

    def _stores(self) -> tuple[list[Context], list[Context]]:
        """What is stored for each element, and for each column."""
        stores, column_stores = [], []
        for result, access in zip(self.plan.results, self.text.writes, strict=True):
            store = self._store(result, access)
            if access.operand.inner:
                stores.append(store | {"root": result.expr})
                continue
            value = self.body.row_value(result.expr)
            array = self.body.arrays.get(value)
            # adding what the memory holds changes the values
            named = array is not None and not store["accumulates"]
            column_stores.append(store | ({"value": array, "from": ""} if named else {"from": value}))
        return stores, column_stores

    def _store(self, result: Result, access: Access) -> Context:
        return {
            "want": self.text.wants[result.tensor.name],
            "value": f"{access.identifier}_out",
            "type": access.type,
            "address": self.text.address(access),
            "accumulates": result.tensor.name in self.text.accumulated,
        }

    def _accumulate(self, column: ColumnText, value: str) -> str:
        """A term of a sum over columns, for one element of one column."""
        if not column.wide:
            return f"if ({column.flag} && live) {column.name} += {value};"
        if self.name == "stream":
            return f"if ({column.flag}) {column.name}_part += {value};"
        return f"if ({column.flag} && live) {column.name}[item] += {value};"

    # -------------------------------------------------------------------------------------------- phases

    def _phase(self, k: int, phase: Phase) -> Context:
        level = self.body.levels[k] if k < len(self.body.levels) else None
        used = [a for a in self.text.reads if a.operand.tensor.name in phase.loads]
        kinds = {kind: [a for a in used if a in found] for kind, found in self.kinds.items()}
        elements = [] if self.name == "registers" else kinds.get("element", [])
        gathers = [a for a in kinds.get("gather", []) if a.operand.inner]
        return {
            "comments": self.body.heading(k),
            "vectors": kinds.get("vector", []),
            "elements": elements,
            "statements": [f"const float {a.value} = {self.text.loaded(a)};" for a in gathers]
            + phase.statements,
            "sums": [(s.start, s.operation, self.body.arrays[s.name]) for s in phase.sums],
            "moments": self._moments(phase),
            "exponentials": self._exponentials(phase),
            "values": self._by_rate(phase.rows),
            "guard": "" if level is None else self.text.guard(level),
        }

    def _moments(self, phase: Phase) -> Context | None:
        if phase.moments is None:
            return None
        found = cast("list[tuple[str, str]]", phase.moments["sums"])
        sums = [(self.body.arrays[name], part) for name, part in found]
        return {**phase.moments, "sums": sums}

    def _exponentials(self, phase: Phase) -> Context | None:
        if phase.exponentials is None:
            return None
        value, top, total = (phase.exponentials[k] for k in ("value", "top", "total"))
        return {"value": value, "top": self.body.arrays[top], "total": self.body.arrays[total]}


def _declare(text: ColumnsText, parameter: Parameter) -> str:
    match parameter.kind:
        case "chunks" | "chunks_per_group":
            return f"index_t {parameter.kind}"
    return declare(text, parameter)
