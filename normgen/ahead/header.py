"""A C header that holds the kernels of one shape, and functions that launch them by the CUDA driver API.

The template has the text; here is what it is filled in with. Whatever a user wrote enters as a comment that
it cannot end, or as a name that C allows.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from struct import calcsize
from typing import Any

from normgen.ahead.cases import Cases, kernel_of
from normgen.ahead.interface import bytes_of, file_stem, filled, forms_of, scalars, size_names, tensors
from normgen.kernel.names import RESERVED
from normgen.kernel.templates import environment
from normgen.launching.case import Case
from normgen.launching.formula import Formula
from normgen.launching.launch import Launch, LaunchPlan, Slot
from normgen.launching.machine import PORTABLE_CLUSTER
from normgen.launching.tracing import formula_of
from normgen.package.operands import Parameter, axis_name
from normgen.package.records import Package
from normgen.runtime.calls.workspace import GRANULE

WIDTH = 110
_C_TYPES = {"P": "CUdeviceptr", "i": "int", "q": "long long", "I": "unsigned", "f": "float"}
_OWN = frozenset(("norm", "stream", "scratch", "scratch_bytes", "arguments", "code"))


def header_name(every: Sequence[Cases]) -> str:
    """The name of the file: `<norm>.bf16.D4096.sm_90.h`."""
    return f"{every[0].direction.norm}.{file_stem(every[0])}.h"


def header_prefix(every: Sequence[Cases]) -> str:
    """What names in the header begin with: `<norm>_bf16_D4096`."""
    return "_".join([every[0].direction.norm, *file_stem(every[0]).split(".")[:-1]])


def header_text(every: Sequence[Cases], cubins: Mapping[Launch, bytes], package: Package, writer: str) -> str:
    """The header. `every`: the directions that it is to have; `cubins`: their kernels, compiled."""
    first = every[0]
    kernels = list(dict.fromkeys(kernel for cases in every for kernel in cases.kernels))
    prefix = header_prefix(every)
    attrs = [attr.name for attr in package.attrs]
    sizes = ", ".join(f"{axis_name(axis)} = {length}" for axis, length in first.sizes.items())
    doc = _harmless(package.doc or f"The norm {package.name}.")
    return (
        environment()
        .get_template("ahead/header.h.jinja")
        .render(
            writer=writer,
            digest=sha256(package.spec.encode()).hexdigest(),
            doc=textwrap.fill(doc, WIDTH, initial_indent=" * ", subsequent_indent=" * "),
            shape=f"{first.dtype}, {sizes}" if sizes else first.dtype,
            device=first.device,
            resident=any(cases.resident for cases in every),
            prefix=prefix,
            guard=f"NORMGEN_{prefix}_{first.device.arch}_H".upper(),
            kernels=kernels,
            cubins=[_wrapped(map(str, cubins[kernel])) for kernel in kernels],
            portable_cluster=PORTABLE_CLUSTER,
            functions=[_function(cases, kernels, prefix, attrs) for cases in every],
        )
    )


def _function(cases: Cases, kernels: list[Launch], prefix: str, attrs: Sequence[str]) -> dict[str, Any]:
    """`forward` or `backward` of the header."""
    sizes = size_names(cases)
    asked = [name for name in attrs if name in scalars(cases)]
    found = tensors(cases)
    names = _c_names([each.record.name for each in found] + [*asked], sizes.values())
    scratch = any(case.value.workspace for case in cases.cases)
    arrays = [names[each.record.name] for each in found]
    parameters = [
        f"const {prefix} *norm",
        "CUstream stream",
        *(f"CUdeviceptr {name}" for name in arrays),
        *(["CUdeviceptr scratch", "size_t scratch_bytes"] if scratch else []),
        *(f"long long {name}" for name in sizes.values()),
        *(f"float {names[name]}" for name in asked),
    ]
    lines = [
        f"{names[each.record.name]}: {each.dtype} [{', '.join(each.shape)}], {each.record.role}, "
        f"{_ACCESS[each.access]}"
        for each in found
    ]
    return {
        "name": cases.direction.name,
        "parameters": _wrapped(parameters),
        "sizes": [*sizes.values()],
        "addresses": [*arrays, *(["scratch"] if scratch else [])],
        "scratch": scratch,
        "cases": [_case(cases, case, kernels, names) for case in cases.cases],
        "comment": "\n".join(f" *   {_harmless(line)}" for line in lines),
    }


_ACCESS = {"read": "read", "write": "written", "update": "read and written"}


def _case(
    cases: Cases, case: Case[LaunchPlan], kernels: list[Launch], names: Mapping[str, str]
) -> dict[str, Any]:
    """The launches of a case, with their arguments by type (`int v4, v5`). `scratch`: bytes."""
    name, forms = size_names(cases).__getitem__, forms_of(cases)
    begin, begins = Formula.of(0), {}
    for array, shape, dtype in case.value.workspace:
        begins[array] = begin
        begin += (bytes_of(shape, dtype) + Formula.of(GRANULE - 1)).over(GRANULE) * Formula.of(GRANULE)

    def cast(kind: str, given: int | Formula) -> str:
        """A number of a type. (Those beyond an int are long long by themselves.)"""
        formula = formula_of(given)
        text = formula.text(name, "/")
        return text if formula.number is not None else f"({kind})({text})"

    def argument(code: str, given: Any, parameter: Parameter) -> tuple[str, str]:
        """What it is set to, and what that means."""
        meaning = _harmless(parameter.meaning)
        if not isinstance(given, Slot):
            return cast(_C_TYPES[code], given), meaning + ", which is not there" * (code == "P")
        if given.name in begins:
            return f"scratch + {cast('CUdeviceptr', begins[given.name])}".removesuffix(" + 0"), meaning
        return names[given.name], meaning

    return {
        "condition": " && ".join(case.limits.texts(name, "/")),
        "scratch": begin.text(name, "/"),
        "launches": [
            {
                "kernel": kernels.index(kernel_of(launch)),
                "launch": launch,
                "fields": [
                    f"{_C_TYPES[code]} {', '.join(f'v{place}' for place, _ in group)}"
                    for code, group in groupby(enumerate(launch.format), itemgetter(1))
                ],
                "arguments": [*map(argument, launch.format, launch.values, forms[launch.entry].parameters)],
                "bytes": calcsize(launch.format),
                "grid": [cast("unsigned", each) for each in launch.grid],
            }
            for launch in case.value.launches
        ],
    }


def _c_names(wanted: Sequence[str], sizes: Collection[str]) -> dict[str, str]:
    """A name in C for each array and attr, apart from keywords and all other names."""
    taken = {*_OWN, *sizes, *RESERVED}
    found: dict[str, str] = {}
    for name in wanted:
        called = name
        while called in taken:
            called += "_"
        taken.add(called)
        found[name] = called
    return found


def _wrapped(parts: Iterable[str]) -> str:
    """Parts with commas between them, in lines that are filled."""
    return filled(", ".join([*parts, ""]).strip(), WIDTH - 1, "    ", "    ").removesuffix(",")


def _harmless(text: str) -> str:
    """A text that ends no comment, and has no letter that changes how others are read."""
    return re.sub(r"[^\x20-\x7e]", "?", text.replace("\n", " ")).replace("*/", "* /").replace("/*", "/ *")
