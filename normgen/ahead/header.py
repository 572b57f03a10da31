"""A C header that holds the kernels of one shape, and functions that launch them by the CUDA driver API.

The template has the text; here is what it is filled in with. Whatever a user wrote enters as a comment that
it cannot end, or as a name that C allows.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from struct import calcsize
from typing import Any

from normgen.ahead.cases import Cases, kernel_of
from normgen.ahead.interface import (
    bytes_of,
    file_stem,
    forms_of,
    scalars,
    size_names,
    spec_digest,
    tensors,
)
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
    return (
        environment()
        .get_template("ahead/header.h.jinja")
        .render(
            writer=writer,
            digest=spec_digest(package.spec),
            doc=_comment(package.doc or f"The norm {package.name}."),
            shape=f"{first.dtype}, {sizes}" if sizes else first.dtype,
            device=first.device,
            resident=any(cases.resident for cases in every),
            prefix=prefix,
            guard=f"NORMGEN_{prefix}_{first.device.arch}_H".upper(),
            kernels=kernels,
            cubins=[_filled(cubins[kernel]) for kernel in kernels],
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
    meanings = {entry: form.parameters for entry, form in forms_of(cases).items()}
    return {
        "name": cases.direction.name,
        "parameters": _wrapped(parameters),
        "sizes": [*sizes.values()],
        "addresses": [*arrays, *(["scratch"] if scratch else [])],
        "scratch": scratch,
        "cases": [_case(case, kernels, meanings, sizes, names) for case in cases.cases],
        "comment": "\n".join(f" *   {_harmless(line)}" for line in lines),
    }


_ACCESS = {"read": "read", "write": "written", "update": "read and written"}


def _case(
    case: Case[LaunchPlan],
    kernels: list[Launch],
    meanings: Mapping[str, Sequence[Parameter]],
    sizes: Mapping[str, str],
    names: Mapping[str, str],
) -> dict[str, Any]:
    """The launches of a case. `scratch`: bytes."""
    begin, begins = Formula.of(0), {}
    for name, shape, dtype in case.value.workspace:
        begins[name] = begin
        begin += (bytes_of(shape, dtype) + Formula.of(GRANULE - 1)).over(GRANULE) * Formula.of(GRANULE)

    def value(code: str, given: Any) -> str:
        if not isinstance(given, Slot):
            return _cast(_C_TYPES[code], given, sizes)
        if given.name in begins:
            return f"scratch + {_cast('CUdeviceptr', begins[given.name], sizes)}".removesuffix(" + 0")
        return names[given.name]

    def meaning(code: str, given: Any, parameter: Parameter) -> str:
        absent = code == "P" and not isinstance(given, Slot)
        return _harmless(parameter.meaning) + ", which is not there" * absent

    return {
        "condition": " && ".join(case.limits.texts(sizes.__getitem__, "/")),
        "scratch": _c(begin, sizes),
        "launches": [
            {
                "kernel": kernels.index(kernel_of(launch)),
                "launch": launch,
                "fields": [*_fields(launch.format)],
                "arguments": [
                    (value(code, given), meaning(code, given, parameter))
                    for code, given, parameter in zip(
                        launch.format, launch.values, meanings[launch.entry], strict=True
                    )
                ],
                "bytes": calcsize(launch.format),
                "grid": [_cast("unsigned", each, sizes) for each in launch.grid],
            }
            for launch in case.value.launches
        ],
    }


def _fields(codes: str) -> Iterator[str]:
    """The declarations of arguments: `int v4, v5`."""
    for code, group in groupby(enumerate(codes), key=lambda each: each[1]):
        yield f"{_C_TYPES[code]} {', '.join(f'v{place}' for place, _ in group)}"


def _cast(kind: str, given: int | Formula, sizes: Mapping[str, str]) -> str:
    """A number or a formula as a value of a type."""
    formula = formula_of(given)
    text = _c(formula, sizes)
    return text if formula.number is not None else f"({kind})({text})"


def _c(formula: Formula, sizes: Mapping[str, str]) -> str:
    """A formula in C. Numbers beyond an int are long long by themselves."""
    return formula.text(sizes.__getitem__, "/")


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


def _filled(content: bytes) -> str:
    """Bytes as C writes them, in lines that are filled."""
    return _wrapped([*map(str, content)])


def _wrapped(parts: Sequence[str]) -> str:
    """Parts with commas between them, in lines that are filled."""
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) + 2 > WIDTH - 5:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{part},"
    return "\n".join(f"    {line}" for line in lines).removesuffix(",")


def _comment(text: str) -> str:
    lines = textwrap.wrap(_harmless(text), WIDTH - 3)
    return "\n".join(f" * {line}" for line in lines)


def _harmless(text: str) -> str:
    """A text that ends no comment, and has no letter that changes how others are read."""
    return re.sub(r"[^\x20-\x7e]", "?", text.replace("\n", " ")).replace("*/", "* /").replace("/*", "/ *")
