"""The record of one form of a kernel: its parameters in order, and its text, which a template lays out when a
call takes the form, and which calls device functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from normgen.cache import digest
from normgen.cache_results import Late
from normgen.ir.expr import Expr, Extent, Scalar, walk
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.templates import environment
from normgen.kernel.text import KernelText
from normgen.package.constants import Constants
from normgen.package.kernels import IMAGE
from normgen.package.operands import FormRecord, Parameter, axis_name

T = TypeVar("T", bound=KernelText)
Context = dict[str, Any]

_STRINGS_AND_COMMENTS = re.compile(r'"(?:\\.|[^"\\])*"|//.*$')
_INDENT = "    "


def form_record(
    text: T,
    form: str,
    template: str,
    view: Callable[[T], Context],
    parameters: tuple[Parameter, ...],
    entry: str = "",
) -> FormRecord:
    """A form. `view`: makes the template's view of it, from the text of a launch; formulas are added here.
    `entry`: the name of its function, where that is not the kernel's and the form's."""
    entry = entry or f"{text.plan.name}_{form}"

    def printed(given: Constants) -> str:
        own = text.known(given)
        kernel = {"formulas": text.wording.formulas} | view(own)
        declared = [declare(own, p) for p in parameters]
        source = environment().get_template(f"{template}.cu.jinja")
        blocks = given["CLUSTER"]
        cluster = f" __cluster_dims__({blocks}, 1, 1)" if blocks != 1 else ""
        rendered = source.render(given, kernel=kernel, entry=entry, parameters=declared, cluster=cluster)
        return own.names.text(tidy(rendered), parameters, own.ids, given)

    key = f"{entry} {digest(*text.wording.formulas)[:16]}"
    return FormRecord(form, entry, parameters, Late(key, printed))


def tidy(text: str) -> str:
    """The text with each line indented by the braces and parentheses open around it, and no blank lines in a
    row.
    """
    out: list[str] = []
    depth = 0
    for raw in text.splitlines():
        line = raw.strip()
        if not line:
            if out and out[-1] and not out[-1].endswith("{"):
                out.append("")
            continue
        code = _STRINGS_AND_COMMENTS.sub("", line)
        leading = len(code) - len(code.lstrip(")}"))
        if line.startswith("}") and out and not out[-1]:
            out.pop()
        indent = 0 if line.startswith("#") else max(0, depth - leading)
        out.append(_INDENT * indent + line)
        depth += code.count("(") + code.count("{") - code.count(")") - code.count("}")
    return "\n".join(out).strip("\n") + "\n"


def clear_form(text: KernelText) -> FormRecord:
    """The kernel that clears the words by which blocks meet."""
    own = (Parameter("words"), Parameter("count"))
    return form_record(text, "clear", "shared/clear", lambda text: {}, own)


def parameters_for(
    text: KernelText,
    steps: Callable[[Operand], Order],
    used: Iterable[Expr],
    lengths: Iterable[str],
    own: Iterable[Parameter],
    fixed: Order = (),
    tensors: Iterable[Access] = (),
    columns: Iterable[ColumnText] | None = None,
) -> tuple[Parameter, ...]:
    """Pointers, partials, strides, lengths, attrs, then the family's own parameters.

    `steps`: the axes along which a text steps through an operand by a stride. `used`: every expression that
    it computes. `lengths`: axes whose lengths it needs besides; those of `fixed` are constants of the text.
    `tensors`, `columns`: what it reads and writes, and its accumulators, where those are not the rows'.
    """
    plan, nodes, channel = text.plan, set(walk(*used)), text.plan.channel
    operands = [a.operand for a in (*tensors,) or (*text.reads, *text.writes)]
    wanted = {*lengths, *(n.axis for n in nodes if isinstance(n, Extent))} - set(fixed)
    axes = (*plan.kept, *plan.inner)
    scalars = {n.name for n in nodes if isinstance(n, Scalar)}
    found = (
        *(Parameter("channel" if o.tensor.name == channel else "pointer", o.tensor.name) for o in operands),
        *(Parameter("partial", c.label) for c in (text.accumulators if columns is None else columns)),
        *(Parameter("stride", o.tensor.name, axis) for o in operands for axis in steps(o)),
        *(Parameter("size", axis=a) for a in (*axes, *sorted(wanted - set(axes))) if a in wanted),
        *(Parameter("scalar", a) for a in plan.scalars if a in scalars),
        *own,
    )
    return tuple(dict.fromkeys(found))  # a state is read and written


def row_parameters(
    text: KernelText,
    used: Iterable[Expr],
    own: Iterable[Parameter],
    tensors: Iterable[Access] = (),
    columns: Iterable[ColumnText] | None = None,
    final: bool = False,
) -> tuple[Parameter, ...]:
    """`parameters_for` a text that walks rows, whose lengths are constants; or of the `final` one, that
    combines partials. That takes lengths of images as arguments where it adds up single values, so that one
    text serves all sizes."""
    plan = text.plan

    def steps(operand: Operand) -> Order:
        return operand.kept + (operand.inner if (final and plan.part) or operand.inner != plan.piece else ())

    walked = plan.part or (len(text.walk) > 1 and not final)
    needed = {*plan.segment, *(text.walk if walked else ())}
    apart = plan.part or plan.folded or any(c.wide for c in plan.columns)
    fixed = () if final and IMAGE in plan.piece and not apart else plan.inner
    return parameters_for(text, steps, used, needed, own, fixed, tensors, columns)


def store_of(text: KernelText, access: Access, value: str = "", address: str = "") -> Context:
    """How a template stores a result: the value, where it goes, and when."""
    name = access.tensor
    return {
        "result": access.value,
        "value": value or f"{access.value}_out",
        "type": access.type,
        "address": address or f"{access.pointer}{access.offset}",
        "at_place": access.at_place,
        "accumulates": name in text.wording.accumulated,
        "in_pieces": bool(text.plan.pieces),
    }


def declare(text: KernelText, parameter: Parameter) -> str:
    """A parameter as kernel text declares it.

    `__restrict__` is for what a text writes alone. On what it only reads, compilers would take it for memory
    that nobody writes while the kernel lives, and load it before the kernel has waited (programmatic.cuh).
    """
    name = parameter.name
    match parameter.kind:
        case "pointer":
            access = next((a for a in (*text.reads, *text.final_reads) if a.tensor == name), None)
            kind = f"{text.ids[name]}_t*"
            if access is None:
                kind += " __restrict__"
            elif not access.updated:
                kind = f"const {kind}"
            return f"{kind} {text.ids[name]}_ptr"
        case "channel":
            return f"const ChannelRecord* {text.ids[name]}_ptr"
        case "partial":
            return f"float* {next(c.name for c in text.accumulators if c.label == name)}_partial"
        case "stride":
            kind = "offset_t" if text.steps_far(parameter.axis) else "index_t"
            return f"{kind} {text.ids[name]}_stride_{axis_name(parameter.axis)}"
        case "size":
            return f"index_t size_{axis_name(parameter.axis)}"
        case "scalar":
            return f"float {text.scalars[name]}"
        case "team" | "members":
            return f"int {parameter.kind}"
        case "rows" | "columns" | "count" | "chunks" | "chunks_per_group":
            return f"index_t {name or parameter.kind}"
        case "words":
            return "word_t* words"
        case "published":
            return "float* published"
        case "blocks":
            return "int blocks_per_segment"
    raise AssertionError(parameter)
