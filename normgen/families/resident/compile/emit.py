"""Plan of a resident kernel -> CUDA text, by a template for each kind of statistics.

`resident.cu.jinja` and `resident_sums.cu.jinja` walk a block's slice by the same macros, and what a
pass does of an element is printed as for kernels of rows. They differ in what follows. What blocks make of
all that they left lies in a table in shared memory. Of moments one thread makes it as a second-stage kernel
would, and results read it as operands, whose pointers and strides are variables of the kernel. Of sums
results read factors instead, which are computed from it once for all rows of a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from normgen.families.resident.compile.plan import ResidentPlan
from normgen.ir.expr import Expr, Load, Reduce, load, walk
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.finals import final_groups, finals_view, second_stage_form
from normgen.kernel.forms import Context, clear_form, form_record, row_parameters, store_of
from normgen.kernel.identifiers import Numbered, identifier
from normgen.kernel.naming import named_values
from normgen.kernel.one_pass import one_pass
from normgen.kernel.phases import is_function
from normgen.kernel.plan import KernelPlan
from normgen.kernel.text import KernelText, Wording, digits_of, factor, lengths_of
from normgen.package.kernels import ResidentRecord
from normgen.package.operands import OperandRecord, Parameter, axis_name

_OF_MOMENTS = 4  # values that moments are: pivot, residual, squares and count


def emit_resident(plan: ResidentPlan, wording: Wording) -> ResidentRecord:
    """The record of a kernel with its text, that of the one which clears the words by which blocks meet, and
    that of the one which adds up what blocks leave of sums over segments."""
    text, whole = KernelText(plan.whole, wording, plan.needs), plan.whole
    emitter = _Emitter(plan, text)
    kind = "resident" if plan.moments else "resident_sums"

    def view(text: KernelText) -> Context:
        found = _Emitter(plan, text)
        return found.moments() if plan.moments else found.sums()

    own = form_record(text, kind, f"resident/{kind}", view, emitter.parameters(), entry=plan.name)
    finals = (second_stage_form(text),) if emitter.columns else ()
    return ResidentRecord(
        name=plan.name,
        kept=whole.kept,
        inner=whole.inner,
        segment=whole.segment,
        folded=plan.folded,
        moments=plan.moments,
        functions=any(map(is_function, walk(*whole.roots))),
        held=tuple(o.tensor.name for o in plan.kept),
        sums=len(plan.sums),
        left=_OF_MOMENTS if plan.moments else len(plan.left),
        made=len(plan.made),
        factors=len(plan.factors),
        beside=emitter.beside,
        reads=tuple(map(emitter.operand, emitter.reads)),
        writes=tuple(a.record() for a in text.writes),
        final_reads=tuple(a.record() for a in text.final_reads if emitter.columns),
        finals=tuple(text.result(r).record() for r in whole.finals if r not in plan.made),
        columns=tuple(c.record() for c in emitter.columns),
        groups=len(final_groups(whole)) if emitter.columns else 0,
        forms=(own, clear_form(text), *finals),
    )


class _Emitter:
    """The template's view of a kernel."""

    def __init__(self, plan: ResidentPlan, text: KernelText) -> None:
        self.plan, self.whole = plan, plan.whole
        self.text = text
        # accumulators of which blocks leave partials
        self.columns = [] if plan.moments else text.columns
        made = {r.tensor.name for r in plan.made}
        # what results read of the table in shared memory, and what the kernel reads of its arguments
        self.table = [a for a in text.reads if a.tensor in made]
        self.reads = [a for a in text.reads if a not in self.table]
        self.ends = [text.result(r) for r in plan.ends]
        if plan.moments:
            self._read_finals()
        self.direct = {r.tensor.name for r in self.whole.results}
        for access in text.reads:
            self._settle(access)
            access.one = bool(access.span) and text.shares_vectors(access.span)
        self.factors = {name: text.names.take(name.removeprefix("%")) for name, _ in plan.factors}

    def _read_finals(self) -> None:
        """What is made of moments reads operands too. What the first block of a segment writes the others do
        not read."""
        seen = {a.tensor: a for a in self.reads}
        self.reads += [a for a in self.text.final_reads if a.tensor not in seen]
        self.text.final_reads = [seen.get(a.tensor, a) for a in self.text.final_reads]
        for access in self.text.final_reads:
            access.reader = "home == 0" if access.updated else ""

    def _settle(self, access: Access) -> None:
        """What every result of the rows is computed from is read wherever it is there: a call that has this
        kernel wants all of them, and nothing else is done for the statistics alone."""
        if access in self.table:
            access.there = True
        elif self.direct <= set(access.wanted_by):
            access.there = access.has

    # -------------------------------------------------------------------------------------------- records

    @property
    def beside(self) -> int:
        """How many values of each element of a row a thread has beside what it holds, in the pass that has
        most of them: its own, and of operands that rows share."""
        if self.plan.moments:
            return 1 + len(self.plan.made)
        passes = ((self.plan.sums, self._summed), (self.plan.factors, self.whole.roots))
        shared = [a for a in self.text.reads if a.operand.inner and not a.walks]
        return max(len(own) + sum(a in shared for a in self._read(used)) for own, used in passes)

    def operand(self, access: Access) -> OperandRecord:
        """With the results of the kernel that it is read for: by way of the table too."""
        through = {a.tensor: a.wanted_by for a in self.table}
        wanted = [n for name in access.wanted_by for n in through.get(name, (name,))]
        return replace(access.record(), wanted_by=tuple(dict.fromkeys(wanted)))

    def parameters(self) -> tuple[Parameter, ...]:
        plan, tensors = self.plan, [*self.reads, *self.text.writes, *self.ends]
        used = [*self._summed, *self.whole.roots, *plan.left, *plan.shares, *(e for _, e in plan.factors)]
        used += [r.expr for r in (*plan.made, *plan.ends)]
        own = map(Parameter, ("rows", "words", "published"))
        return row_parameters(self.text, used, own, tensors, self.columns)

    # ----------------------------------------------------------------------------------- what both are told

    @property
    def _summed(self) -> list[Expr]:
        """What the statistics are of."""
        return [c.value for c in self.plan.statistics.columns]

    @property
    def _fold(self) -> str:
        """How many neighbours have one value of what blocks leave."""
        return factor(lengths_of(self.plan.folded)) or "1"

    def _context(self, columns: list[ColumnText]) -> Context:
        """What both templates are told. `columns`: the accumulators of a slice."""
        text, whole, first = self.text, self.whole, self.plan.statistics
        statistics = replace(
            whole, results=(), columns=first.columns, finals=first.finals, bindings=first.bindings
        )
        # (what results are made of besides factors has no name in the spec)
        bindings = whole.bindings if self.plan.moments else ()
        apply = replace(whole, columns=(), finals=(), bindings=bindings)
        shared = [a for a in self._read([*self._summed, *self.whole.roots]) if not a.walks]
        parts = [a for a in shared if a.operand.inner != whole.inner and a.span]
        beside = whole.inner[: len(whole.inner) - len(self.plan.folded)]
        # those of what has a value for each element of a row begin at a block's band
        pointers = [a.pointer for a in (*self.reads, *text.writes, *self.ends) if a.operand.inner]
        return {
            "formulas": text.wording.formulas,
            "pieces": [],
            "digits": text.digits,
            "segment_digits": text.segment_digits,
            "bands": list(dict.fromkeys(pointers)) if self.plan.banded else [],
            "group_digits": digits_of(beside, "column", always=True),
            "fold": self._fold,
            "folded": bool(self.plan.folded),
            "held": [a for a in text.reads if a.walks],
            "statistics": self._pass(statistics, columns),
            "apply": self._pass(apply, []),
            "vectors": [a for a in shared if a.operand.inner == whole.inner and a not in self.table],
            "parts": parts,
            "scalars": [a for a in shared if not a.operand.inner],
        }

    def _pass(self, plan: KernelPlan, columns: list[ColumnText]) -> Context:
        """What is done for each row, in one of the two passes."""
        values = [*plan.roots, *(c.value for c in plan.columns)]
        text = self.text.viewed(plan, self._read(values))
        text.columns, text.writes = columns, text.writes if plan.results else []
        return one_pass(text, {name: f"{of}[item * VEC + i]" for name, of in self.factors.items()})

    def _read(self, values: Iterable[Expr]) -> list[Access]:
        """The operands that some values are computed from."""
        read = {n.tensor for n in walk(*values) if isinstance(n, Load)}
        return [a for a in self.text.reads if a.tensor in read]

    # -------------------------------------------------------------------------------------------- moments

    def moments(self) -> Context:
        """The template's view where statistics are the moments of one operand."""
        text, whole = self.text, self.whole
        kernel = self._context(text.columns)
        view = text.viewed(replace(whole, bindings=self.plan.statistics.bindings), text.reads)
        handed_on = {a.tensor: text.any_wanted(a.wanted_by) for a in self.table}
        wanted = tuple(r for r in whole.finals if (text.wants | handed_on)[r.tensor.name])
        finals = finals_view(view, wanted)
        made = {r.tensor.name for r in self.plan.made}
        leaves = [r.tensor.name not in made for r in wanted]  # by one block of each segment
        return kernel | {
            "column": text.columns[0],
            "group_digits": kernel["group_digits"] if self.plan.folded else [],
            "temporaries": [self._temporary(k, a) for k, a in enumerate(self.table)],
            "found": [a for a in self.table if a.operand.inner == whole.inner],
            "statements": finals["statements"],
            "stores": [s | {"leaves": own} for s, own in zip(finals["stores"], leaves, strict=True)],
        }

    def _temporary(self, number: int, access: Access) -> Context:
        """Where a value lies that statistics hand on: in a table of this block, without a segment."""
        operand, strides = access.operand, [(axis, "0") for axis in access.operand.kept]
        if operand.inner != self.whole.inner:
            for k, axis in enumerate(operand.inner):
                strides.append((axis, lengths_of(operand.inner[k + 1 :]) or "1"))
        declared = [f"{access.value}_stride_{axis_name(axis)} = {step}" for axis, step in strides]
        return {"access": access, "number": number, "strides": ", ".join(declared)}

    # ----------------------------------------------------------------------------------------------- sums

    def sums(self) -> Context:
        """The template's view where statistics are sums."""
        text, plan = self.text, self.plan
        numbered = Numbered()
        sums = [self._sum(k, leaf, numbered) for k, leaf in enumerate(plan.sums)]
        # (what results of the rows are made of is wanted: a call that has this kernel wants all of them)
        wanted = [s for s in sums if text.any_wanted(self.direct & {*s.wanted_by} or s.wanted_by)]
        group = f"column / {self._fold}" if plan.folded else "column"
        made_loads = [load(r.tensor.name, r.tensor.axes) for r in plan.made]
        of_slice = {leaf: _at("columns", k, "LENGTH") for k, leaf in enumerate(plan.sums)}
        of_all = {each: _at("totals", k, "GROUPS") for k, each in enumerate(plan.left)}
        table = {each: _at("table", k, "GROUPS", group) for k, each in enumerate(made_loads)}
        folds = self._values([n.arg for n in plan.left if isinstance(n, Reduce)], of_slice)
        made = self._values([r.expr for r in (*plan.made, *plan.ends)], of_all)
        late = self._values([*plan.shares, *(value for _, value in plan.factors)], of_slice | table)
        made_texts, late_texts = iter(made["texts"]), iter(late["texts"])
        return self._context(wanted) | {
            "column_digits": digits_of(self.whole.inner, "column", always=True),
            "sums": sums,
            "wanted": wanted,
            "left": len(plan.left),
            "folds": folds,
            "statements": made["statements"],
            "made": [{"name": r.tensor.name, "value": next(made_texts)} for r in plan.made],
            # (which the first block of a band stores)
            "ends": self._ends(made_texts),
            "late": late["statements"],
            "columns": [{"text": c, "value": next(late_texts)} for c in text.accumulators],
            "accumulated": text.columns,
            "factors": [{"name": name, "value": next(late_texts)} for name in self.factors.values()],
        }

    def _ends(self, values: Iterable[str]) -> list[Context]:
        """How results that are made of all sums are stored."""
        found = zip(self.ends, values, strict=True)
        return [store_of(self.text, a, v, self._address(a)) for a, v in found if self.text.wants[a.tensor]]

    def _sum(self, k: int, leaf: Expr, numbered: Numbered) -> ColumnText:
        """The accumulator that a leaf stands for."""
        assert isinstance(leaf, Load)
        column = self.plan.statistics.columns[k]
        found = identifier(column.reduce, self.text.name_of)
        name = self.text.names.take(numbered.of(found, "sum"))
        return ColumnText(column, name, "", self.plan.needs[leaf.tensor])

    def _values(self, values: Iterable[Expr], known: dict[Expr, str]) -> Context:
        """Statements and texts of values of one column, or of one group, of which one thread computes each.
        `known`: what is there of it."""
        roots, text = list(values), self.text
        loads: dict[Expr, str] = {
            load(a.tensor, a.operand.tensor.axes): f"({a.loaded(self._address(a))})" for a in text.reads
        }
        printer, own, numbered = text.printer({}), text.names.inner(), Numbered()
        printer.names |= known | loads
        printer.first = frozenset(known)

        def name(node: Expr, uses: int) -> str:
            if uses < 2:
                return ""
            found = identifier(node, lambda part: text.name_of(part, printer.names))
            return own.take(numbered.of(found, "value"))

        statements = list(named_values(roots, printer, name, again=loads).values())
        return {"statements": statements, "texts": [printer.text(r) for r in roots]}

    def _address(self, access: Access) -> str:
        """Of the element of a column, whose digits are known."""
        return self.text.element_of(access, access.operand.inner != self.whole.inner)


def _at(arrays: str, number: int, length: str, element: str = "column") -> str:
    """An element of the array with this number, of several that have so many elements each."""
    return f"{arrays}[{number} * {length} + {element}]" if number else f"{arrays}[{element}]"
