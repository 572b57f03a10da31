"""Kernel texts from templates: the environment, the device functions, the parameters of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from normgen.kernel.text import KernelText
from normgen.package.operands import Parameter, axis_name

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
