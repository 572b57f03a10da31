"""Kernel plan -> CUDA text, one for each form of the schedule.

Python prints expressions and statements and decides every name, flag and offset; the Jinja templates own the
loops. The text is fixed when the spec is compiled. A preamble of `constexpr` values and type aliases (see
`runtime.launch`) specialises it for a shape, its element types and a schedule.

- registers: one-shot; a team holds its row in registers.
- ring: persistent blocks with column sums in registers, rows arriving in a ring in shared memory.
- stream: any length of row; one pass over it per level, from memory or from a copy in shared memory.
- finalise: adds the partials of the column sums.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from normgen.codegen.body import Body, Phase
from normgen.codegen.plan import KernelPlan
from normgen.codegen.text import Access, ColumnText, KernelText, digits_of
from normgen.codegen.tidy import tidy
from normgen.diagnostics import Source
from normgen.ir.expr import Expr, Extent, Reduce, Scalar, walk
from normgen.ir.program import Result
from normgen.ir.show import show
from normgen.runtime.records import FormRecord, KernelRecord, Parameter, axis_name

_TEMPLATES = {
    "registers": "rows_registers",
    "ring": "rows_ring",
    "stream": "rows_stream",
    "finalise": "finalise",
}
_HEADERS = ("prologue.cuh", "vector.cuh", "math.cuh", "team.cuh", "running.cuh", "async.cuh", "finalise.cuh")
Context = dict[str, Any]


@cache
def environment() -> jinja2.Environment:
    """The one template environment: an undefined name in a template is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


@cache
def device_header() -> str:
    """The device functions that every kernel text starts with."""
    folder = resources.files("normgen") / "templates" / "device"
    return "\n".join((folder / name).read_text() for name in _HEADERS)


def emit(
    plan: KernelPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> KernelRecord:
    """The record of a kernel with the text of each form that its plan admits.

    `accumulated`: results that a call may add to what their memory holds. `formulas`: comment lines of the
    mathematics.
    """
    text = KernelText(plan, source, accumulated, formulas)
    rows = "ring" if plan.columns else "registers"
    first, held = _rows_form(text, rows)
    forms = [first]
    if plan.inner:
        forms.append(_rows_form(text, "stream")[0])
    if plan.finals:
        forms.append(finalise_form(text))
    return text.record(forms, held)


# ------------------------------------------------------------------------------------------------ forms of
# the rows


def _rows_form(text: KernelText, form: str) -> tuple[FormRecord, int]:
    """The text of a form, and how many values an element it holds between passes."""
    plan = text.plan
    values = {
        a.operand.tensor.name: f"{a.value}[i]" if a.operand.inner == plan.inner and plan.inner else a.value
        for a in text.reads
    }
    names = copy.deepcopy(text.names)
    levels = plan.streamed_levels if form == "stream" else plan.merged_levels
    body = Body(
        plan, levels, names, text.printer(values), text.source, dict(text.result_names), form == "registers"
    )
    kernel = _Rows(text, body, form).context()
    parameters = _parameters(text, form)
    entry = f"{plan.name}_{form}"
    return FormRecord(form, entry, parameters, _render(text, form, kernel, entry, parameters)), len(body.held)


def _render(
    text: KernelText, form: str, kernel: Context, entry: str, parameters: tuple[Parameter, ...]
) -> str:
    template = environment().get_template(f"{_TEMPLATES[form]}.cu.jinja")
    return tidy(
        template.render(kernel=kernel, entry=entry, parameters=[declare(text, p) for p in parameters])
    )


class _Rows:
    """The template's view of one form."""

    def __init__(self, text: KernelText, body: Body, form: str) -> None:
        self.text, self.body, self.form, self.plan = text, body, form, text.plan
        inner = self.plan.inner
        wide = [a for a in text.reads if inner and a.operand.inner == inner] if inner else []
        self.vectors = {a.operand.tensor.name: a for a in wide}
        self.scalars = [a for a in text.reads if not a.operand.inner]
        self.gathers = {a.operand.tensor.name: a for a in text.reads if a.operand.inner and a not in wide}

    def context(self) -> Context:
        body, text = self.body, self.text
        final = body.phases[-1]
        stores, row_stores = [], []
        for result, access in zip(self.plan.results, text.writes, strict=True):
            store = self._store(result, access)
            if access.operand.inner:
                stores.append(store | {"root": result.expr})
            else:
                store["value"] = body.row_value(result.expr)
                row_stores.append(store)
        per_row = [c for c in text.columns if body.per_row(c.column.reduce.arg)]
        columns = [c for c in text.columns if c not in per_row]
        values = body.element(final, [s["root"] for s in stores] + [c.column.reduce.arg for c in columns])
        for store, value in zip(stores, values, strict=False):
            final.statements.append(f"{store['value']}[i] = {value};{body.comment(store['root'])}")
        for column, value in zip(columns, values[len(stores) :], strict=True):
            final.statements.append(f"if ({column.flag} && live) {self._accumulate(column, value)}")
        row_columns = [self._accumulate_row(c) for c in per_row]
        phases = [self._phase(k, p) for k, p in enumerate(body.phases)]
        for k, phase in enumerate(phases):
            users = [[v.value for v in p["vectors"]] for p in phases]
            phase["first_use"] = {v: not any(v in u for u in users[:k]) for v in users[k]}
            phase["reused"] = {v: any(v in u for u in users[k + 1 :]) for v in users[k]}
            phase["staged"] = self._staged(phases[:k], users[k])
        phases[-1] |= {"stores": stores, "row_stores": row_stores}
        streamed = self._streamed(phases)
        offset = ""
        for v in self.vectors.values():
            v.staged_in = v in streamed
            v.late = self.form in ("registers", "ring")
        for v in streamed:
            v.ring_offset = offset
            offset += f" + SLOTS * VEC * THREADS * int(sizeof({v.type}))"
        fixed = [s for node, s in body.before if not self._walks(node)]
        moving = [s for node, s in body.before if self._walks(node)]
        widths = [
            max(len(p["sums"]), 3 if p["moments"] else 0, 1 if p["exponentials"] else 0) for p in phases
        ]
        narrow = any(not c.wide for c in text.columns) and self.form == "stream"
        return {
            "formulas": text.formulas,
            "flags": text.flags(text.reads),
            "exchanged": max(*widths, int(narrow)),
            "digits": text.digits,
            "segment": self.plan.segment,
            "segment_digits": text.segment_digits,
            "vectors": list(self.vectors.values()),
            "streamed": streamed,
            "shared": [v for v in self.vectors.values() if not v.walks],
            "row_scalars": self.scalars,
            "shared_scalars": [a for a in self.scalars if not a.walks],
            "walked_scalars": [a for a in self.scalars if a.walks],
            "prologue": fixed + (moving if self.form == "registers" else []),
            "row_prologue": moving,
            "levels": phases[:-1],
            "final": phases[-1],
            "columns": text.columns,
            "row_columns": row_columns,
            "held": body.held,
        }

    def _streamed(self, phases: list[Context]) -> list[Access]:
        """The operands that pass through shared memory."""
        walked = [v for v in self.vectors.values() if v.walks]
        match self.form:
            case "ring":
                return walked
            case "stream":
                return [v for v in walked if sum(v in p["vectors"] for p in phases) > 1]
            case _:
                return []

    def _walks(self, node: Expr) -> bool:
        return bool(node.axes & set(self.text.walk))

    def _store(self, result: Result, access: Access) -> Context:
        want = self.text.wants[result.tensor.name]
        return {
            "value": f"{access.identifier}_out",
            "address": f"{access.pointer}{access.offset}",
            "type": access.type,
            "guard": f"{want} && ",
            "accumulates": result.tensor.name in self.text.accumulated,
        }

    def _accumulate(self, column: ColumnText, value: str) -> str:
        if not column.wide:
            return f"{column.name}[0] += {value};"
        if self.form == "stream":
            at = f"{column.name}[column + i]"
            return f"{at} = first ? {value} : {at} + {value};"
        return f"{column.name}[item * VEC + i] += {value};"

    def _accumulate_row(self, column: ColumnText) -> str:
        value = self.body.row_value(column.column.reduce.arg)
        return f"if ({column.flag} && live && lane == 0) {column.name}[0] += {value};"

    def _phase(self, k: int, phase: Phase) -> Context:
        level = self.body.levels[k] if k < len(self.body.levels) else None
        gathered = [self._gather(self.gathers[t]) for t in phase.loads if t in self.gathers]
        return {
            "comments": self._comments(k),
            "vectors": [self.vectors[t] for t in phase.loads if t in self.vectors],
            "statements": gathered + phase.statements,
            "sums": phase.sums,
            "moments": phase.moments,
            "exponentials": phase.exponentials,
            "rows": phase.rows,
            "guard": "" if level is None or level.moments or level.exponentials else self._guard(level.sums),
        }

    @staticmethod
    def _gather(access: Access) -> str:
        text = f"load_scalar({access.pointer}{access.offset})"
        text = f"{access.flag} ? {text} : {access.missing}" if access.flag else text
        return f"const float {access.value} = {text};"

    def _guard(self, sums: tuple[Reduce, ...]) -> str:
        wanted = [self.text.wants[name] for name in self.plan.needing(sums)]
        return "" if len(wanted) == self.plan.wanted else " || ".join(wanted)

    def _comments(self, k: int) -> list[str]:
        if k == len(self.body.levels):
            return ["results"]
        sums = ", ".join(show(s, self.body.known) for s in self.body.levels[k].sums)
        return [f"exchange {k + 1}: {sums}"]

    @staticmethod
    def _staged(earlier: list[Context], values: list[str]) -> dict[str, str]:
        """For each operand, the condition that an earlier pass has put it into shared memory."""
        out = {}
        for value in values:
            guards = [p["guard"] for p in earlier if value in [v.value for v in p["vectors"]]]
            if guards:
                out[value] = "true" if "" in guards else " || ".join(guards)
        return out


# ------------------------------------------------------------------------------------------------ the
# finalising kernel


def finalise_form(text: KernelText) -> FormRecord:
    """The text of the kernel that adds the partials of column sums."""
    plan = text.plan
    values = {a.operand.tensor.name: a.value for a in text.final_reads}
    printer = text.printer(values)
    for c in text.columns:
        printer.names[c.column.reduce] = c.name
    finals = [_final(text, r, printer.text(r.expr)) for r in plan.finals]
    parameters = _parameters(text, "finalise")
    kernel = {
        "flags": text.flags(text.final_reads),
        "formulas": text.formulas,
        "finals": finals,
    }
    entry = f"{plan.name}_finalise"
    return FormRecord("finalise", entry, parameters, _render(text, "finalise", kernel, entry, parameters))


def _final(text: KernelText, result: Result, value: str) -> Context:
    access = text.result(result)
    columns = [c for c in text.columns if result.tensor.name in c.wanted_by]
    kept = columns[0].column.kept
    assert all(c.column.kept == kept and c.wide == columns[0].wide for c in columns), (
        "column sums of unlike shape"
    )
    rest = tuple(a for a in text.plan.segment if a not in kept)
    reads = [a for a in text.final_reads if result.tensor.name in a.wanted_by]
    return {
        "want": text.wants[result.tensor.name],
        "comment": f"{result.tensor.name}",
        "wide": columns[0].wide,
        "columns": columns,
        "outer_count": " * ".join(f"size_{axis_name(a)}" for a in kept) or "1",
        "digits": digits_of(kept, "outer", always=True),
        "count": " * ".join(["index_t(blocks_per_segment)", *(f"size_{axis_name(a)}" for a in rest)]),
        "row_of": _row_of(text.plan.segment, kept, rest),
        "statements": [f"const float {a.value} = {_final_load(a)};" for a in reads],
        "accumulates": result.tensor.name in text.accumulated,
        "address": _final_address(access),
        "value": value,
    }


def _final_load(access: Access) -> str:
    text = f"load_scalar({_final_address(access)})"
    return f"{access.flag} ? {text} : {access.missing}" if access.flag else text


def _final_address(access: Access) -> str:
    offset = "".join(
        f" + at_{axis_name(a)} * {access.identifier}_stride_{axis_name(a)}" for a in access.operand.kept
    )
    return f"{access.pointer}{offset}" + (" + column" if access.operand.inner else "")


def _row_of(segment: tuple[str, ...], kept: tuple[str, ...], rest: tuple[str, ...]) -> list[str]:
    """Statements that find the k-th partial row of a result, among those of all segments and blocks."""
    if not segment or not kept:
        return ["return k;"]
    if not rest:
        return ["return outer * blocks_per_segment + k;"]
    number = ""
    for axis in segment:
        at = f"at_{axis_name(axis)}"
        number = f"({number}) * size_{axis_name(axis)} + {at}" if number else at
    return [
        *digits_of(rest, "k / blocks_per_segment", always=True),
        f"return ({number}) * blocks_per_segment + k % blocks_per_segment;",
    ]


# ------------------------------------------------------------------------------------------------ parameters


def _parameters(text: KernelText, form: str) -> tuple[Parameter, ...]:
    final = form == "finalise"
    reads = text.final_reads if final else text.reads
    writes = [text.result(r) for r in text.plan.finals] if final else text.writes
    tensors = [*reads, *writes]
    out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
    out += [Parameter("partial", c.name) for c in text.columns]
    for a in tensors:
        partial = a.operand.inner and a.operand.inner != text.plan.inner
        axes = a.operand.kept + (a.operand.inner if partial else ())
        out += [Parameter("stride", a.operand.tensor.name, axis) for axis in axes]
    used = [r.expr for r in (text.plan.finals if final else text.plan.results)]
    used += [] if final else [c.column.reduce.arg for c in text.columns]
    lengths = {n.axis for n in walk(*used) if isinstance(n, Extent)} | set(text.plan.segment)
    if len(text.walk) > 1 and not final:
        lengths |= set(text.walk)
    out += [Parameter("size", axis=a) for a in text.plan.kept if a in lengths]
    scalars = {n.name for n in walk(*used) if isinstance(n, Scalar)}
    out += [Parameter("scalar", a) for a in text.plan.scalars if a in scalars]
    if not final:
        out.append(Parameter("rows"))
    if form != "registers":
        out.append(Parameter("blocks"))
    return tuple(out)


def declare(text: KernelText, parameter: Parameter) -> str:
    """A parameter as kernel text declares it."""
    name = parameter.name
    match parameter.kind:
        case "pointer":
            read = any(a.operand.tensor.name == name for a in (*text.reads, *text.final_reads))
            identifier = text.ids[name]
            return f"{'const ' if read else ''}{identifier}_t* __restrict__ {identifier}_ptr"
        case "partial":
            return f"float* __restrict__ {name}_partial"
        case "stride":
            return f"index_t {text.ids[name]}_stride_{axis_name(parameter.axis)}"
        case "size":
            return f"index_t size_{axis_name(parameter.axis)}"
        case "scalar":
            return f"float {text.scalars[name]}"
        case "rows":
            return "index_t rows"
        case "blocks":
            return "int blocks_per_segment"
    raise AssertionError(parameter)
