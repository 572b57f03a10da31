"""Plan of a resident kernel of sums -> CUDA text: `templates/resident/sums.cu.jinja` walks a block's slice,
and `device/resident/sums.cuh` is how teams, neighbours and members are added up.

Sums of a slice, what members leave and what is made of that lie in shared memory; factors of the results are
computed from it once for all rows of a thread.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from normgen.diagnostics import Source
from normgen.families.resident.compile.moments_emit import bands_of
from normgen.families.resident.compile.sums import ResidentSumsPlan
from normgen.families.rows.compile.emit import RowsView
from normgen.ir.expr import Const, Expr, Extent, Load, Reduce, Scalar, children, load, walk
from normgen.ir.nodes import is_condition
from normgen.kernel.access import Access, ColumnText, Flag
from normgen.kernel.accumulators import above
from normgen.kernel.body import Body
from normgen.kernel.finals import final_groups, finalise_form
from normgen.kernel.plan import KernelPlan
from normgen.kernel.render import Context, clear_form, form_record
from normgen.kernel.text import KernelText, digits_of, factor, lengths_of
from normgen.package.kernels import ResidentSumsRecord
from normgen.package.operands import ColumnRecord, Parameter, axis_name


def emit_resident_sums(
    plan: ResidentSumsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> ResidentSumsRecord:
    """The record of a kernel with its text, that of the one that clears the words by which blocks meet, and
    that of the one which adds up what they leave. Arguments as those of `emit`."""
    emitter = _Sums(plan, source, accumulated, formulas)
    text, whole = emitter.text, plan.whole
    kernel, parameters = emitter.context(), emitter.parameters()
    main = form_record(text, "resident_sums", "resident/sums", kernel, parameters, entry=plan.name)
    forms = [main, clear_form(text)]
    if whole.columns:
        forms.append(finalise_form(text))
    record = ResidentSumsRecord(
        name=plan.name,
        kept=whole.kept,
        inner=whole.inner,
        segment=whole.segment,
        folded=plan.folded,
        held=tuple(o.tensor.name for o in plan.kept),
        sums=len(plan.sums),
        left=len(plan.folds),
        made=len(plan.made),
        factors=len(plan.factors),
        beside=max(emitter.beside("statistics"), emitter.beside("apply")),
        reads=tuple(a.record() for a in text.reads),
        writes=tuple(a.record() for a in text.writes),
        final_reads=tuple(a.record() for a in text.final_reads),
        finals=tuple(text.result(r).record() for r in whole.finals),
        columns=tuple(ColumnRecord(c.name, c.column.kept, c.wide, c.wanted_by, c.op) for c in text.columns),
        groups=len(final_groups(whole)) if whole.columns else 0,
        forms=tuple(forms),
    )
    return text.names.settle(record)


class _Sums:
    """The template's view of a kernel."""

    def __init__(
        self, plan: ResidentSumsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]
    ) -> None:
        self.plan, self.whole = plan, plan.whole
        self.text = text = KernelText(self.whole, source, accumulated, formulas, plan.needs)
        self.ends = [text.result(r) for r in plan.ends]
        self.direct = {r.tensor.name for r in self.whole.results}
        for access in text.reads:
            self._settle(access)
        self.factors = {name: text.names.take(name.removeprefix("%")) for name, _ in plan.factors}
        self.sums = [
            ColumnText(c, name, "", self._wanted(plan.needs[leaf.tensor]), plan.needs[leaf.tensor])
            for k, (c, leaf) in enumerate(zip(plan.statistics.columns, plan.sums, strict=True), 1)
            if isinstance(leaf, Load) and (name := text.names.take(f"sum_{k}"))
        ]
        for access in text.reads:
            access.at = "item"

    def _settle(self, access: Access) -> None:
        """A call that has this kernel wants every result of its rows."""
        if access.flag.startswith("READ_") and self.direct <= set(access.wanted_by):
            optional = access.operand.tensor.role == "cotangent" or access.operand.tensor.default is not None
            access.flag = f"HAS_{access.identifier.upper()}" if optional else ""

    def _wanted(self, names: Iterable[str]) -> str:
        """When a value is wanted that these results are computed from."""
        found = tuple(names)
        direct = [n for n in found if n in self.direct]
        return self.text.wants[direct[0]] if direct else " || ".join(self.text.wants[n] for n in found)

    def beside(self, part: str) -> int:
        """How many values of each column a thread has in a pass, its own and of operands that rows share."""
        summed = [c.value for c in self.plan.statistics.columns]
        used = self._read(summed if part == "statistics" else [r.expr for r in self.whole.results])
        own = self.plan.sums if part == "statistics" else self.plan.factors
        return len(own) + sum(a in self._shared for a in used)

    @property
    def _shared(self) -> list[Access]:
        """Operands that rows share, of which there is a value for some elements of a row."""
        return [a for a in self.text.reads if a.operand.inner and not a.walks]

    # -------------------------------------------------------------------------------------------- records

    def parameters(self) -> tuple[Parameter, ...]:
        whole, text = self.whole, self.text
        tensors = [*text.reads, *text.writes, *self.ends]
        out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
        out += [Parameter("partial", c.name) for c in text.columns]
        for a in tensors:
            partial = a.operand.inner and a.operand.inner != whole.inner
            axes = a.operand.kept + (a.operand.inner if partial else ())
            out += [Parameter("stride", a.operand.tensor.name, axis) for axis in axes]
        results = (*self.plan.made, *self.plan.ends, *whole.results)
        used = [e for _, e in self.plan.factors] + [r.expr for r in results]
        used += [*self.plan.folds, *self.plan.shares, *(c.value for c in self.plan.statistics.columns)]
        lengths = {n.axis for n in walk(*used) if isinstance(n, Extent)} | set(whole.segment)
        lengths |= set(text.walk) if len(text.walk) > 1 else set()
        others = sorted(lengths - {*whole.kept, *whole.inner})
        out += [Parameter("size", axis=a) for a in (*whole.kept, *others) if a in lengths]
        scalars = {n.name for n in walk(*used) if isinstance(n, Scalar)}
        out += [Parameter("scalar", a) for a in whole.scalars if a in scalars]
        return (*out, Parameter("rows"), Parameter("words"), Parameter("met"))

    # -------------------------------------------------------------------------------------------- context

    def context(self) -> Context:
        text, whole, plan = self.text, self.whole, self.plan
        beside = whole.inner[: len(whole.inner) - len(plan.folded)]
        statistics = self._rows(
            replace(
                whole, results=(), columns=plan.statistics.columns, finals=plan.statistics.finals,
                bindings=plan.statistics.bindings,
            ),
            self.sums,
        )  # fmt: skip
        apply = self._rows(replace(whole, columns=(), finals=(), bindings=()), [])
        rows = [c.value for c in plan.statistics.columns] + [r.expr for r in whole.results]
        shared = [a for a in self._read(rows) if not a.walks]
        parts = [a for a in shared if a.operand.inner and a.operand.inner != whole.inner]
        inner = digits_of(whole.inner, "column", always=True)
        folds = self._values([n.arg for n in plan.folds if isinstance(n, Reduce)], self._sums_at_column())
        made = self._values([r.expr for r in (*plan.made, *plan.ends)], self._folds_at_group())
        made_texts, end_texts = made["texts"][: len(plan.made)], made["texts"][len(plan.made) :]
        last = [*plan.shares, *(value for _, value in plan.factors)]
        late = self._values(last, self._sums_at_column() | self._made_at_column())
        shares, factors = late["texts"][: len(plan.shares)], late["texts"][len(plan.shares) :]
        return {
            "formulas": text.formulas,
            "pieces": [],
            "row_columns": [],
            "vector_columns": [],
            "flags": [*text.flags(text.reads), *(Flag(a.one, f"{a.span} % VEC == 0") for a in parts)],
            "digits": text.digits,
            "segment_digits": text.segment_digits,
            "bands": bands_of([*text.reads, *text.writes, *self.ends]) if plan.banded else [],
            "held": [a for a in text.reads if a.walks],
            "fold": self._fold,
            "folded": bool(plan.folded),
            "sums": self.sums,
            "always": [bool(self.direct & set(s.wanted_by)) for s in self.sums],
            "left": len(plan.folds),
            "column_digits": inner,
            "group_digits": digits_of(beside, "column", always=True),
            "folds": folds,
            "statements": made["statements"],
            "made": [{"name": r.tensor.name, "value": v} for r, v in zip(plan.made, made_texts, strict=True)],
            "ends": [self._end(a, value) for a, value in zip(self.ends, end_texts, strict=True)],
            "late": late["statements"],
            "columns": [{"text": c, "value": v} for c, v in zip(text.columns, shares, strict=True)],
            "factors": [
                {"name": name, "value": v} for name, v in zip(self.factors.values(), factors, strict=True)
            ],
            "statistics": statistics,
            "apply": apply,
            "vectors": [a for a in shared if a.operand.inner == whole.inner],
            "parts": parts,
            "scalars": [a for a in shared if not a.operand.inner],
        }

    def _end(self, access: Access, value: str) -> Context:
        """A result that the first block of a band stores."""
        name = access.operand.tensor.name
        return {
            "want": self.text.wants[name],
            "accumulates": name in self.text.accumulated,
            "address": self._address(access),
            "value": value,
        }

    def _read(self, values: Iterable[Expr]) -> list[Access]:
        """The operands that some values are computed from."""
        read = {n.tensor for n in walk(*values) if isinstance(n, Load)}
        return [a for a in self.text.reads if a.operand.tensor.name in read]

    def _rows(self, plan: KernelPlan, columns: list[ColumnText]) -> Context:
        """The template's view of what is done for each row, in one of the two passes."""
        view = copy.copy(self.text)
        view.plan, view.columns = plan, columns
        view.reads = self._read([r.expr for r in plan.results] + [c.value for c in plan.columns])
        view.writes = view.writes if plan.results else []
        values = {a.operand.tensor.name: self._element(a) for a in view.reads}
        values |= {name: f"{text}[item * VEC + i]" for name, text in self.factors.items()}
        names, claims = view.names.inner(), dict(view.result_names)
        body = Body(plan, (), names, view.printer(values), view.source, claims, False)
        return RowsView(view, body, "batch").context()

    def _element(self, access: Access) -> str:
        return f"{access.value}[i]" if access.operand.inner == self.whole.inner else access.value

    def _values(self, values: Iterable[Expr], known: dict[Expr, str]) -> Context:
        """Statements and texts of values of one column, or of one group, of which one thread computes
        each."""
        roots = list(values)
        names: dict[Expr, str] = dict(known)
        for a in self.text.reads:
            names[load(a.operand.tensor.name, a.operand.tensor.axes)] = f"({a.loaded(self._address(a))})"
        printer = self.text.printer({})
        printer.names.update(names)
        printer.first = frozenset(known)
        here = set(above(roots, frozenset(printer.names)))
        uses = Counter(roots) + Counter(c for n in here for c in set(children(n)))
        statements, numbers = [], count(1)
        own = self.text.names.inner()
        for node in walk(*roots):
            simple = isinstance(node, Load | Const | Scalar | Extent) or is_condition(node)
            loaded = node in names and node not in known and uses[node] > 1
            if not loaded and (node not in here or simple or uses[node] < 2):
                continue
            name = own.take(f"value_{next(numbers)}")
            statements.append(f"const float {name} = {printer.text(node)};")
            printer.names[node] = name
        return {"statements": statements, "texts": [printer.text(r) for r in roots]}

    def _sums_at_column(self) -> dict[Expr, str]:
        """Sums of this block's slice."""
        return {leaf: f"columns[{_behind(k, 'LENGTH')}column]" for k, leaf in enumerate(self.plan.sums)}

    def _folds_at_group(self) -> dict[Expr, str]:
        """What all members left, for the group with the number `column`."""
        return {fold: f"totals[{_behind(k, 'GROUPS')}column]" for k, fold in enumerate(self.plan.folds)}

    def _made_at_column(self) -> dict[Expr, str]:
        """What was made of that, for the group that a column is in."""
        group = f"column / {self._fold}" if self.plan.folded else "column"
        return {
            load(r.tensor.name, r.tensor.axes): f"table[{_behind(k, 'GROUPS')}{group}]"
            for k, r in enumerate(self.plan.made)
        }

    @property
    def _fold(self) -> str:
        """How many neighbours have one value of what members leave."""
        return factor(lengths_of(self.plan.folded)) or "1"

    def _address(self, access: Access) -> str:
        """Of the element of a column, whose digits are known."""
        operand, whole = access.operand, self.whole.inner
        axes = operand.kept + (operand.inner if operand.inner != whole else ())
        offset = "".join(f" + at_{axis_name(a)} * {access.identifier}_stride_{axis_name(a)}" for a in axes)
        return f"{access.pointer}{offset}" + (" + column" if operand.inner and operand.inner == whole else "")


def _behind(number: int, length: str) -> str:
    """What precedes the number of an element in the array with this number, of so many elements each."""
    return f"{number} * {length} + " if number else ""
