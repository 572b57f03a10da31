"""Kernel texts from templates: the environment, the device functions, the parameters of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from normgen.ir.expr import Extent, Scalar, walk
from normgen.kernel.text import KernelText
from normgen.kernel.tidy import tidy
from normgen.package.kernels import (
    ColumnsRecord,
    Kernel,
    KernelRecord,
    ResidentRecord,
    ResidentSumsRecord,
    TilesRecord,
    WindowsRecord,
)
from normgen.package.operands import Parameter, axis_name

_TEMPLATES = {
    "registers": "rows/registers",
    "batch": "rows/batch",
    "ring": "rows/ring",
    "skewed": "rows/skewed",
    "slanted": "rows/slanted",
    "slab": "rows/slab",
    "stream": "rows/stream",
    "split": "rows/split",
    "spread": "rows/spread",
    "clear": "shared/clear",
    "finalise": "rows/finalise",
    "resident": "resident/moments",
    "resident_sums": "resident/sums",
}
_HEADERS = (
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
# What only some kernels of rows call: those whose blocks meet in memory, whose rows may be slanted, or marked
# where clusters walk them, or come in slabs, that sum parts of rows, or pieces of them, and whose blocks
# merge what they have of neighbours.
_OF_ROWS: tuple[tuple[str, Callable[[KernelRecord], object]], ...] = (
    ("spread.cuh", lambda kernel: kernel.spread),
    ("rows/slanted.cuh", lambda kernel: any(form.form == "slanted" for form in kernel.forms)),
    ("rows/walked_lines.cuh", lambda kernel: kernel.marks and not kernel.columns),
    ("rows/slab.cuh", lambda kernel: any(form.form == "slab" for form in kernel.forms)),
    ("rows/runs.cuh", lambda kernel: kernel.part and not kernel.adds_pieces),
    ("rows/pieces.cuh", lambda kernel: kernel.adds_pieces),
    ("folded.cuh", lambda kernel: kernel.folded),
)
# What only kernels of one family call.
_OF_FAMILIES: tuple[tuple[type, str], ...] = (
    (ColumnsRecord, "columns/columns.cuh"),
    (TilesRecord, "tiles/tiles.cuh"),
    (WindowsRecord, "windows/windows.cuh"),
)
# What only some kernels of windows call: those that walk pixel by pixel.
_OF_WINDOWS: tuple[tuple[str, Callable[[WindowsRecord], object]], ...] = (
    ("windows/pixels.cuh", lambda kernel: any(form.form == "pixels" for form in kernel.forms)),
)
# What those call whose blocks keep what they read: of blocks that meet, and merge neighbours, besides. And
# those that add up.
_OF_RESIDENT = ("spread.cuh", "folded.cuh", "resident/resident.cuh")
_OF_SUMS = (*_OF_RESIDENT, "resident/sums.cuh")
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


def device_header(kernels: Iterable[Kernel]) -> str:
    """The device functions that the texts of these kernels start with."""
    kernels = tuple(kernels)
    used = {type(kernel) for kernel in kernels}
    folder = resources.files("normgen") / "templates" / "device"
    names = (*_HEADERS, *(name for family, name in _OF_FAMILIES if family in used))
    rows = [kernel for kernel in kernels if isinstance(kernel, KernelRecord)]
    names += tuple(name for name, needs in _OF_ROWS if any(map(needs, rows)))
    windows = [kernel for kernel in kernels if isinstance(kernel, WindowsRecord)]
    names += tuple(name for name, needs in _OF_WINDOWS if any(map(needs, windows)))
    meeting = _OF_SUMS if ResidentSumsRecord in used else _OF_RESIDENT if ResidentRecord in used else ()
    names += tuple(name for name in meeting if name not in names)
    return "\n".join((folder / name).read_text() for name in names)


def render(
    text: KernelText, form: str, kernel: Context, entry: str, parameters: tuple[Parameter, ...]
) -> str:
    """The text of a form; `kernel` is the template's view of it."""
    template = environment().get_template(f"{_TEMPLATES[form]}.cu.jinja")
    return tidy(
        template.render(kernel=kernel, entry=entry, parameters=[declare(text, p) for p in parameters])
    )


def parameters_of(text: KernelText, form: str) -> tuple[Parameter, ...]:
    """The parameters of a form, in order."""
    if form == "clear":
        return Parameter("words"), Parameter("count")
    final = form == "finalise"
    reads = text.final_reads if final else text.reads
    writes = [text.result(r) for r in text.plan.finals] if final else text.writes
    tensors = [*reads, *writes]
    out = [Parameter("pointer", a.operand.tensor.name) for a in tensors]
    out += [Parameter("partial", c.name) for c in text.columns]
    for a in tensors:
        partial = a.operand.inner and (a.operand.inner != text.plan.piece or (final and text.plan.part))
        axes = a.operand.kept + (a.operand.inner if partial else ())
        out += [Parameter("stride", a.operand.tensor.name, axis) for axis in axes]
    out = list(dict.fromkeys(out))  # a state is read and written
    used = [r.expr for r in (text.plan.finals if final else text.plan.results)]
    used += [] if final else [c.column.value for c in text.columns]
    lengths = {n.axis for n in walk(*used) if isinstance(n, Extent)} | set(text.plan.segment)
    if text.plan.part or (len(text.walk) > 1 and not final):
        lengths |= set(text.walk)
    others = sorted(lengths - {*text.plan.kept, *text.plan.inner})  # a mean of means divides by lengths gone
    out += [Parameter("size", axis=a) for a in (*text.plan.kept, *others) if a in lengths]
    scalars = {n.name for n in walk(*used) if isinstance(n, Scalar)}
    out += [Parameter("scalar", a) for a in text.plan.scalars if a in scalars]
    if not final:
        out.append(Parameter("rows"))
    if form == "split":
        out.append(Parameter("split"))
    if form == "spread":
        out += [Parameter("words"), Parameter("met")]
    elif form not in ("registers", "slab") and not text.plan.part:
        out.append(Parameter("blocks"))
    return tuple(out)


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
