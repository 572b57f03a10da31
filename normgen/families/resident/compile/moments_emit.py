"""Plan of a resident kernel -> CUDA text: `templates/resident/moments.cu.jinja` walks a block's slice, and
`device/resident/resident.cuh` is how the blocks of a segment meet.

What the kernel has of statistics, what it applies, and what is made of moments in between are printed as for
kernels of rows and for those that finalise. The values that a split hands on in memory lie in shared memory:
their pointers and strides are variables of the kernel.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from normgen.diagnostics import Source
from normgen.families.resident.compile.moments import ResidentPlan
from normgen.families.rows.compile.emit import RowsView
from normgen.ir.expr import Extent, Scalar, walk
from normgen.kernel.access import Access, Flag
from normgen.kernel.body import Body
from normgen.kernel.finals import finals_view
from normgen.kernel.phases import is_function
from normgen.kernel.plan import KernelPlan
from normgen.kernel.render import Context, clear_form, form_record
from normgen.kernel.text import KernelText, digits_of, factor, lengths_of, needs_of
from normgen.package.kernels import ResidentRecord
from normgen.package.operands import OperandRecord, Parameter, axis_name


def emit_resident(
    plan: ResidentPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> ResidentRecord:
    """The record of a kernel with its text, and that of the kernel that clears the words by which blocks
    meet. Arguments as those of `emit`."""
    emitter = _Resident(plan, source, accumulated, formulas)
    text, whole = emitter.text, plan.whole
    kernel, parameters = emitter.context(), emitter.parameters()
    main = form_record(text, "resident", "resident/moments", kernel, parameters, entry=plan.name)
    forms = [main, clear_form(text)]
    record = ResidentRecord(
        name=plan.name,
        kept=whole.kept,
        inner=whole.inner,
        segment=whole.segment,
        folded=whole.folded,
        operand=plan.kept.tensor.name,
        temporaries=len(plan.temporaries),
        functions=any(map(is_function, walk(*(r.expr for r in whole.results)))),
        reads=tuple(emitter.operands(emitter.reads)),
        writes=tuple(a.record() for a in text.writes),
        finals=tuple(a.record() for a in emitter.finals),
        forms=tuple(forms),
    )
    return text.names.settle(record)


def bands_of(accesses: list[Access]) -> list[str]:
    """The pointers that a block takes to its band: of what has a value for each element of a row."""
    return list(dict.fromkeys(a.pointer for a in accesses if a.operand.inner))


class _Resident:
    """The template's view of a kernel."""

    def __init__(
        self, plan: ResidentPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]
    ) -> None:
        self.plan, self.whole = plan, plan.whole
        self.text = text = KernelText(self.whole, source, accumulated, formulas, needs_of(self.whole))
        self.made = {t.name for t in plan.temporaries}
        self.temporaries = [a for a in text.reads if a.operand.tensor.name in self.made]
        known = [a for a in text.reads if a not in self.temporaries]
        seen = {a.operand.tensor.name: a for a in known}
        self.reads = known + [a for a in text.final_reads if a.operand.tensor.name not in seen]
        text.final_reads = [seen.get(a.operand.tensor.name, a) for a in text.final_reads]
        self.finals = [text.result(r) for r in self.whole.finals if r.tensor.name not in self.made]
        for access in text.final_reads:  # what the first block of a segment writes the others do not read
            access.reader = "home == 0" if access.updated else ""
        for access in text.reads:
            self._settle(access)

    def _settle(self, access: Access) -> None:
        """What every direct result is computed from is read wherever it is there: nothing else is done for
        the statistics alone."""
        name, direct = access.operand.tensor.name, {r.tensor.name for r in self.whole.results}
        if name in self.made:
            access.flag = ""
        elif access.flag.startswith("READ_") and direct <= set(access.wanted_by):
            optional = access.operand.tensor.role == "cotangent" or access.operand.tensor.default is not None
            access.flag = f"HAS_{access.identifier.upper()}" if optional else ""

    # -------------------------------------------------------------------------------------------- records

    def operands(self, accesses: list[Access]) -> list[OperandRecord]:
        """Operands with the results of the kernel that they are read for: by way of a temporary too."""
        through = {a.operand.tensor.name: a.wanted_by for a in self.temporaries}
        found = []
        for access in accesses:
            wanted = [n for name in access.wanted_by for n in through.get(name, (name,))]
            found.append(replace(access.record(), wanted_by=tuple(dict.fromkeys(wanted))))
        return found

    def parameters(self) -> tuple[Parameter, ...]:
        whole, tensors = self.whole, [*self.reads, *self.text.writes, *self.finals]
        out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
        for a in tensors:
            partial = a.operand.inner and a.operand.inner != whole.inner
            axes = a.operand.kept + (a.operand.inner if partial else ())
            out += [Parameter("stride", a.operand.tensor.name, axis) for axis in axes]
        used = [r.expr for r in (*whole.results, *whole.finals)] + [c.value for c in whole.columns]
        lengths = {n.axis for n in walk(*used) if isinstance(n, Extent)} | set(whole.segment)
        lengths |= set(self.text.walk) if len(self.text.walk) > 1 else set()
        others = sorted(lengths - {*whole.kept, *whole.inner})
        out += [Parameter("size", axis=a) for a in (*whole.kept, *others) if a in lengths]
        scalars = {n.name for n in walk(*used) if isinstance(n, Scalar)}
        out += [Parameter("scalar", a) for a in whole.scalars if a in scalars]
        return (*dict.fromkeys(out), Parameter("rows"), Parameter("words"), Parameter("met"))

    # -------------------------------------------------------------------------------------------- context

    def context(self) -> Context:
        text, whole, first = self.text, self.whole, self.plan.statistics
        beside = whole.inner[: len(whole.inner) - len(whole.folded)] if whole.folded else ()
        own = [a for a in text.reads if a.operand.tensor.name == self.plan.kept.tensor.name]
        statistics = self._rows(first, replace(whole, operands=first.operands, results=()), own)
        applied = replace(whole, columns=(), finals=())
        apply = self._rows(self.plan.apply, applied, text.reads, columns=False)
        finals = finals_view(self._view(first, whole, text.reads), whole.finals)
        ones = [flag for flag in apply["flags"] if flag.name.startswith("ONE_")]
        return {
            "formulas": text.formulas,
            "pieces": [],
            "row_columns": [],
            "vector_columns": [],
            "flags": [*self._wanted(), *text.flags(self.reads), *ones],
            "digits": text.digits,
            "segment_digits": text.segment_digits,
            "bands": bands_of([*self.reads, *text.writes, *self.finals]) if self.plan.banded else [],
            "column_digits": digits_of(beside, "column", always=True),
            "fold": factor(lengths_of(whole.folded)) or "1",
            "held": own,
            "column": text.columns[0],
            "statistics": statistics,
            "apply": apply,
            "vectors": [v for v in apply["shared"] if v not in self.temporaries],
            "found": [v for v in apply["shared"] if v in self.temporaries],
            "temporaries": [self._temporary(k, a) for k, a in enumerate(self.temporaries)],
            "statements": finals["statements"],
            "stores": [s | self._stored(a) for s, a in zip(finals["stores"], self._results(), strict=True)],
        }

    def _wanted(self) -> list[Flag]:
        """Whether what is handed on is wanted: by any result that is computed from it."""
        return [
            Flag(self.text.wants[a.operand.tensor.name], " || ".join(self.text.wants[n] for n in a.wanted_by))
            for a in self.temporaries
        ]

    def _rows(self, part: KernelPlan, plan: KernelPlan, reads: list[Access], columns: bool = True) -> Context:
        """The template's view of what is done for each row, by one of the two plans."""
        text = self._view(part, plan, reads)
        if not columns:
            text.columns = []
        else:
            text.writes = []
        values = {
            a.operand.tensor.name: f"{a.value}[i]" if a.operand.inner == plan.inner else a.value
            for a in reads
        }
        names, claims = text.names.inner(), dict(text.result_names)
        body = Body(text.plan, (), names, text.printer(values), text.source, claims, False)
        return RowsView(text, body, "batch").context()

    def _view(self, part: KernelPlan, plan: KernelPlan, reads: list[Access]) -> KernelText:
        """The kernel's identifiers with the values that one of the two plans gives a name."""
        text = copy.copy(self.text)
        text.plan, text.reads = replace(plan, bindings=part.bindings), reads
        return text

    def _temporary(self, number: int, access: Access) -> Context:
        """Where a value lies that statistics hand on: in a table of this block, without a segment."""
        operand, strides = access.operand, [(axis, "0") for axis in access.operand.kept]
        if operand.inner != self.whole.inner:
            for k, axis in enumerate(operand.inner):
                strides.append((axis, lengths_of(operand.inner[k + 1 :]) or "1"))
        declared = [f"{access.identifier}_stride_{axis_name(axis)} = {step}" for axis, step in strides]
        return {"access": access, "number": number, "strides": ", ".join(declared)}

    def _results(self) -> list[Access]:
        return [self.text.result(r) for r in self.whole.finals]

    def _stored(self, access: Access) -> Context:
        """Results of the kernel leave by one block of each segment."""
        return {"leaves": access.operand.tensor.name not in self.made}
