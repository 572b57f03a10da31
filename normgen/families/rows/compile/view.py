"""What a template of the rows family is given of one form of a kernel: names, statements and flags, decided
here; the template owns the loops."""

from __future__ import annotations

import re
from dataclasses import replace

from normgen.families.rows.compile.forms import (
    BATCH,
    PIPELINE,
    REGISTERS,
    ROW_TILE,
    Form,
    finishes,
    left,
    refills,
    tags,
)
from normgen.families.rows.compile.parts import PartsText
from normgen.ir.expr import Expr
from normgen.kernel.access import Access, ColumnText, lay_out
from normgen.kernel.body import Body
from normgen.kernel.forms import Context, form_record, row_parameters, store_of
from normgen.kernel.phases import Phase
from normgen.kernel.text import KernelText, factor, lengths_of
from normgen.package.operands import FormRecord, Parameter


class RowsView:
    """The template's view of one form."""

    def __init__(self, text: KernelText, form: Form) -> None:
        self.text = text = text.of_form()
        self.form, self.plan = form, text.plan
        inner = self.plan.piece
        wide = [a for a in text.reads if inner and a.operand.inner == inner]
        values = {a.tensor: f"{a.value}[i]" if a in wide else a.value for a in text.reads}
        hold = form.holds and not self.plan.columns
        self.body = Body(text, self.plan.paired_levels, values, hold, packs=hold)
        self.partial = PartsText(text.plan, text.columns, self.body.sums.parts, late=form.slices)
        self.vectors = {a.tensor: a for a in wide}
        self.scalars = [a for a in text.reads if not a.operand.inner and a.tensor != self.plan.channel]
        self.gathers = {a.tensor: a for a in text.reads if a.operand.inner and a not in wide}
        self.parts = [a for a in self.gathers.values() if a.span]
        self._address()
        # of operands that rows share every element is loaded before the first row
        self.holds_parts = form.holds_parts(self.plan)
        self.finishes = form.finishes and finishes(self.plan)
        self.finals = [text.result(r) for r in self.plan.finals] if self.finishes else []

    def _address(self) -> None:
        """Where the elements of operands are, and which threads write states."""
        for access in self.vectors.values():
            access.at = "item"
        for access in self.parts:
            access.one = self.text.shares_vectors(access.span)
            # (a slice is loaded once, and lies in one part of its row as a rule: each pass loads one element)
            access.at = "0" if self.form.slices else "item"
            access.part = f"{access.value}_part" if self.form.stored else f"{access.value}_parts[{access.at}]"
        for state in (a for a in self.scalars if a.updated):
            # (of rows in pieces nothing else is made of it)
            state.reader = "live && lane == 0" if self.plan.pieces else "live"

    def record(self) -> FormRecord:
        """The form with its text."""
        used = [*self.plan.roots, *(c.column.value for c in self.text.columns)]
        # (what one of the blocks that share a row stores, no other may read; finals come after all rows)
        stored = {r.tensor.name for r in self.plan.results}
        assert not (self.form.launches and any(a.tensor in stored for a in self.text.reads))
        published = ("published",) if self.form.launches and self.body.levels else ()
        own = map(Parameter, ("rows", *self.form.own, *published))
        name, form = self.form.name, self.form
        tensors = (*self.text.reads, *self.text.writes, *self.finals)
        parameters = row_parameters(self.text, used, own, tensors)
        return form_record(
            self.text, name, f"rows/{name}", lambda text: RowsView(text, form).context(), parameters
        )

    def context(self) -> Context:
        body, text = self.body, self.text
        results = text.results
        stored = [(r.expr, a) for r, a in results if a.operand.inner]
        stores = [store_of(text, access) for _, access in stored]
        row_stores = [store_of(text, a, body.row_value(r.expr)) for r, a in results if not a.operand.inner]
        taken = self._taken(stored)
        phases = self._phases()
        phases[-1] |= {"stores": stores, "row_stores": row_stores}
        streamed = self._streamed(phases)
        self._settle_vectors(streamed)
        lay_out(streamed, "SLOTS", "SPARE" if self.form.spare else "")
        fixed = [s for node, s in body.before if not self._walks(node)]
        moving = [s for node, s in body.before if self._walks(node)]
        narrow = [c for c in text.columns if not c.wide and c.op != "moments"]
        return {
            "exchanged": max(body.exchanged, int(bool(narrow) and self.form.combines)),
            "channel": self._channel(),
            "narrow": narrow,
            "digits": text.digits,
            "pieces": text.piece_digits,
            "segment": self.plan.segment,
            "refills": self.form is PIPELINE and refills(self.plan),
            "segments": factor(lengths_of(self.plan.segment)),
            "folded": lengths_of(self.plan.folded),
            "holds_parts": self.holds_parts,
            "segment_digits": text.segment_digits,
            "streamed": streamed,
            "slice_bytes": [f"int(sizeof({v.type}))" for v in streamed if v.there],
            **self._operands(),
            "prologue": fixed + (moving if self.form.one_shot else []),
            "row_prologue": moving,
            "levels": phases[:-1],
            "left": sum(left(self.plan)),
            "final": phases[-1],
            "finishes": self.finishes,
            **taken,
            **self._accumulators(),
            "held": body.held,
            "rounded": list(body.rounded.values()),
        }

    def _operands(self) -> Context:
        """The operands, by whether each row has its own."""
        vectors = list(self.vectors.values())
        found: Context = {"vectors": vectors, "shared": [v for v in vectors if not v.walks]}
        for kind, accesses in (("scalars", self.scalars), ("parts", self.parts)):
            found[f"row_{kind}"] = accesses
            found[f"shared_{kind}"] = [a for a in accesses if not a.walks]
            found[f"walked_{kind}"] = [a for a in accesses if a.walks]
        tagged = [v for v in vectors if v.tags]
        return found | {"tagged": tagged, "earlier": {v.value: _of_row("earlier", v.offset) for v in tagged}}

    def _settle_vectors(self, streamed: list[Access]) -> None:
        """How each operand of whole rows is loaded and kept."""
        plan, form = self.plan, self.form
        tagging = form.tags(plan) and tags(plan)
        for v in self.vectors.values():
            v.shelved = v in streamed and form.slices
            v.staged_in = v in streamed and form not in (BATCH, ROW_TILE) and not v.shelved
            v.repacked = v.walks or form.one_shot
            v.in_pieces = bool(plan.pieces)
            v.tags = tagging and v.walks
            if plan.adds_pieces and not set(plan.pieces) & set(v.operand.kept):
                v.single, v.at = True, "0"
            # (where a vector of a row in pieces is, is only known when rows are loaded)
            v.late = form.late and not v.in_pieces
            # (in-place results may lie over what has elements of each row, or of the only one)
            v.reader = "live" if form is REGISTERS and (v.walks or v.once) else ""

    def _divided(self) -> tuple[list[ColumnText], ...]:
        """Accumulators of rows; of parts of rows, and of rows, whose sums are there already; of elements."""
        columns = self.text.columns
        per_row = [c for c in columns if self.body.rates.per_row(c.column.value)]
        of_sums = [c for c in columns if c.column.terms]
        parts, rows = [c for c in of_sums if c.part], [c for c in of_sums if not c.part]
        return per_row, parts, rows, [c for c in columns if c not in per_row + of_sums]

    def _taken(self, stored: list[tuple[Expr, Access]]) -> Context:
        """How accumulators take in elements, rows, and parts of them, with the last pass over elements."""
        body, in_memory = self.body, self.form.stored
        per_row, parts, rows, of_elements = self._divided()
        apart = {c.name: body.sums.part_value(c.column, body.row_value) for c in parts}
        ends = self.form is PIPELINE or in_memory
        beyond = "Layout::beyond(item, column + i)" if ends and self.text.realigned else ""
        body.finish(stored, of_elements, lambda column, value: column.element(value, in_memory, beyond))
        row_columns = [c.row(body.row_value(c.column.value)) for c in per_row]
        row_columns += [c.element(body.sums.largest_value(c.column, body.row_value), in_memory) for c in rows]
        declared = [s for c in self.text.columns if c not in parts for s in c.declared(in_memory)]
        moments = [c for c in of_elements if c.op == "moments"]
        row_columns += [f"if (live) {c.name}.end_row();" for c in moments if c.wide]
        return {
            "row_columns": row_columns + self.partial.left(apart),
            "declarations": declared + self.partial.declared,
            "vector_columns": [c for c in moments if not c.wide],
            "of_vector": ", Layout::elements_of(item, column)" if beyond else "",
        }

    def _accumulators(self) -> Context:
        """What accumulators are, and what the text calls them."""
        columns = [replace(c, result=self._result(c)) for c in self.text.columns]
        moments = [c for c in columns if c.op == "moments"]
        others = [c for c in columns if c.op != "moments"]
        sums = all(c.op == "sum" for c in columns)
        return {
            "columns": columns,
            "stored": [c for c in others if self.form.stored and c.wide],
            "called": "column sum" if sums else "accumulator",
            "combined": "added" if sums else "combined",
            "gathered": bool(others),
            "parts": any(c.wide for c in moments),
            "merged": any(not c.wide for c in moments),
        }

    def _phases(self) -> list[Context]:
        """The passes, each with what others before and after it load."""
        phases = [self._phase(k, p) for k, p in enumerate(self.body.phases)]
        for k, phase in enumerate(phases):
            users = [[v.value for v in (*p["vectors"], *p["after_vectors"])] for p in phases]
            phase["first_use"] = {v: not any(v in u for u in users[:k]) for v in users[k]}
            phase["reused"] = {v: any(v in u for u in users[k + 1 :]) for v in users[k]}
            phase["staged"] = self._staged(phases[:k], users[k])
        return phases

    def _result(self, column: ColumnText) -> Context | None:
        """How the result that an accumulator is is stored, where this form may do that."""
        found = (a for a in self.finals if a.tensor in column.wanted_by)
        return next((store_of(self.text, a) for a in found), None)

    def _channel(self) -> Context | None:
        """How a row is told to other ranks, where it is: how many there are, and values of it."""
        told = self.plan.told
        if not told:
            return None
        pointer = next(a.pointer for a in self.text.reads if a.tensor == self.plan.channel)
        return {
            "pointer": pointer,
            "sizes": f"{max(n.rank for n in told) + 1}, {len(told[0].values)}",
        }

    def _streamed(self, phases: list[Context]) -> list[Access]:
        """The operands that pass through shared memory."""
        passes = {id(v): sum(v in p["vectors"] for p in phases) for v in self.vectors.values() if v.walks}
        return [v for v in self.vectors.values() if v.walks and self.form.staged(self.plan, v, passes[id(v)])]

    def _walks(self, node: Expr) -> bool:
        return bool(node.axes & set(self.text.walk))

    def _phase(self, k: int, phase: Phase) -> Context:
        gathers = [self.gathers[t] for t in phase.loads if t in self.gathers]
        parts = [a for a in gathers if a.span]
        parted = bool(self.body.sums.parts) and k + 1 == len(self.body.levels)
        return vars(phase) | {
            "comments": self.body.heading(k),
            "unpacked": [self.body.rounded[t] for t in phase.loads if t in self.body.rounded],
            "vectors": [self.vectors[t] for t in phase.loads if t in self.vectors],
            "parts": parts,
            "late_parts": [a for a in parts if self.form.slices or (a.walks and self.form is PIPELINE)],
            "cooperative": self.form.slices,
            "left": sum(left(self.plan)[:k]),
            "before": [self._gather(a) for a in gathers if self._is_whole(a)],
            "statements": [*(self._gather(a) for a in gathers if not self._is_whole(a)), *phase.statements],
            "after_vectors": [self.vectors[t] for t in phase.after_loads],
            "made": self._is_made(k, phase),
            # (what it adds up of parts of rows is wanted without its sums too)
            "parted": parted,
            "runs": self.partial.runs if parted else [],
        }

    def _is_made(self, k: int, phase: Phase) -> bool:
        """Whether a pass is made. (What is kept for later passes is computed in any case.)"""
        last = k == len(self.body.levels)
        return last or bool(phase.packed) or self.text.needs_sums(self.body.levels[k])

    def _is_whole(self, access: Access) -> bool:
        """Whether every vector lies in one element's share of the row, as where parts of it are summed."""
        return bool(self.body.sums.parts) and set(access.operand.inner) <= set(self.plan.part)

    def _gather(self, access: Access) -> str:
        """The statement that gives an element of the row its value of an operand with some of the axes."""
        if self._is_whole(access):
            return f"const float {access.value} = {access.part};"
        text = access.load
        if access.span and self.holds_parts and not access.walks:
            text = access.held
        elif access.span:
            text = f"({text})" if access.reader else text
            text = access.part if access.one else text
        return f"const float {access.value} = {text};"

    @staticmethod
    def _staged(earlier: list[Context], values: list[str]) -> set[str]:
        """The operands that an earlier pass has put into shared memory."""
        made = {v.value for phase in earlier if phase["made"] for v in phase["vectors"]}
        return made & {*values}


def _of_row(number: str, offset: str) -> str:
    """The offset of a row with another number."""
    return re.sub(r"\brow\b", number, offset)
