"""Kernel texts from templates: the environment, the device functions, the parameters of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from normgen.ir.expr import Expr, Extent, Scalar, walk
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.text import KernelText
from normgen.kernel.tidy import tidy
from normgen.package.operands import FormRecord, Parameter, axis_name

# What kernels of all families call.
_SHARED = (
    "prologue.cuh",
    "programmatic.cuh",
    "vector.cuh",
    "math.cuh",
    "async.cuh",
    "cluster.cuh",
    "team.cuh",
    "places.cuh",
    "accumulators.cuh",
    "statistics.cuh",
    "lines.cuh",
    "shifted.cuh",
    "row_ring.cuh",
    "running.cuh",
    "finalise.cuh",
)
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


def device_functions(names: Iterable[str]) -> str:
    """The text of device functions: those that all kernels call, and these, each once."""
    folder = resources.files("normgen") / "templates" / "device"
    return "\n".join((folder / name).read_text() for name in dict.fromkeys((*_SHARED, *names)))


def form_record(
    text: KernelText,
    form: str,
    template: str,
    kernel: Context,
    parameters: tuple[Parameter, ...],
    entry: str = "",
) -> FormRecord:
    """A form with its text; `kernel` is the template's view of it. `entry`: its name, if not the usual."""
    entry = entry or f"{text.plan.name}_{form}"
    found = environment().get_template(f"{template}.cu.jinja")
    declared = [declare(text, p) for p in parameters]
    return FormRecord(
        form, entry, parameters, tidy(found.render(kernel=kernel, entry=entry, parameters=declared))
    )


def clear_form(text: KernelText) -> FormRecord:
    """The kernel that clears the words by which blocks meet."""
    return form_record(text, "clear", "shared/clear", {}, (Parameter("words"), Parameter("count")))


def parameters_of(text: KernelText, form: str) -> tuple[Parameter, ...]:
    """The parameters of a form, in order."""
    final = form == "finalise"
    reads = text.final_reads if final else text.reads
    writes = [text.result(r) for r in text.plan.finals] if final else text.writes
    used = [r.expr for r in (text.plan.finals if final else text.plan.results)]
    used += [] if final else [c.column.value for c in text.columns]
    out = arguments(text, [*reads, *writes], text.columns, used, final)
    if not final:
        out.append(Parameter("rows"))
    if form == "split":
        out.append(Parameter("split"))
    if form == "spread":
        out += [Parameter("words"), Parameter("met")]
    elif form not in ("registers", "slab") and not text.plan.part:
        out.append(Parameter("blocks"))
    return tuple(out)


def arguments(
    text: KernelText, tensors: list[Access], columns: list[ColumnText], used: list[Expr], final: bool = False
) -> list[Parameter]:
    """Parameters for tensors, for the partials of accumulators, and for lengths and scalars that are used.

    `final`: of the kernel that combines partials.
    """
    out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
    out += [Parameter("partial", c.name) for c in columns]
    for a in tensors:
        partial = a.operand.inner and (a.operand.inner != text.plan.piece or (final and text.plan.part))
        axes = a.operand.kept + (a.operand.inner if partial else ())
        out += [Parameter("stride", a.operand.tensor.name, axis) for axis in axes]
    out = list(dict.fromkeys(out))  # a state is read and written
    lengths = {n.axis for n in walk(*used) if isinstance(n, Extent)} | set(text.plan.segment)
    if text.plan.part or (len(text.walk) > 1 and not final):
        lengths |= set(text.walk)
    others = sorted(lengths - {*text.plan.kept, *text.plan.inner})  # a mean of means divides by lengths gone
    out += [Parameter("size", axis=a) for a in (*text.plan.kept, *others) if a in lengths]
    scalars = {n.name for n in walk(*used) if isinstance(n, Scalar)}
    return out + [Parameter("scalar", a) for a in text.plan.scalars if a in scalars]


def declare(text: KernelText, parameter: Parameter) -> str:
    """A parameter as kernel text declares it."""
    name = parameter.name
    match parameter.kind:
        case "pointer":
            access = next(
                (a for a in (*text.reads, *text.final_reads) if a.operand.tensor.name == name), None
            )
            kind = f"{text.ids[name]}_t*"
            if access is None or not access.updated:
                kind = f"{'' if access is None else 'const '}{kind} __restrict__"
            return f"{kind} {text.ids[name]}_ptr"
        case "partial":
            return f"float* __restrict__ {name}_partial"
        case "stride":
            kind = "offset_t" if text.steps_far(parameter.axis) else "index_t"
            return f"{kind} {text.ids[name]}_stride_{axis_name(parameter.axis)}"
        case "size":
            return f"index_t size_{axis_name(parameter.axis)}"
        case "scalar":
            return f"float {text.scalars[name]}"
        case "rows" | "columns" | "split" | "count" | "chunks" | "chunks_per_group":
            return f"index_t {name or parameter.kind}"
        case "words":
            return "word_t* __restrict__ words"
        case "met":
            return "float* __restrict__ met"
        case "blocks":
            return "int blocks_per_segment"
    raise AssertionError(parameter)
