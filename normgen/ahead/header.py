"""A C header that holds the kernels of one shape, and functions that launch them by the CUDA driver API.

The template has the text; here is what it is filled in with. Whatever a user wrote enters as a comment that
it cannot end, or as a name that C allows.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from normgen.ahead.cases import Case, Cases, Step, Text
from normgen.ahead.interface import (
    bytes_of_arguments,
    file_stem,
    scalars,
    size_names,
    spec_digest,
    tensors,
)
from normgen.kernel.names import RESERVED
from normgen.kernel.templates import environment
from normgen.launching.formula import Formula
from normgen.launching.launch import Slot
from normgen.launching.machine import PORTABLE_CLUSTER
from normgen.package.operands import axis_name
from normgen.package.records import Package
from normgen.runtime.calls.workspace import GRANULE

WIDTH = 110
_C_TYPES = {"P": "CUdeviceptr", "i": "int", "q": "long long", "I": "unsigned", "f": "float"}
_OWN = frozenset(("norm", "stream", "scratch", "scratch_bytes", "arguments", "code"))


@dataclass(frozen=True)
class _Kernel:
    """A kernel of the header. `cubin`: its bytes, as C writes them."""

    entry: str
    cubin: str
    shared: int
    large_cluster: bool


@dataclass(frozen=True)
class _Launch:
    """One launch. `fields`: the arguments in order, those of a type in a line; `values`: what each is set to,
    and what that means."""

    kernel: int
    entry: str
    fields: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    bytes: int
    grid: tuple[str, ...]
    block: tuple[int, int, int]
    shared: int
    programmatic: bool


@dataclass(frozen=True)
class _Case:
    condition: str
    launches: tuple[_Launch, ...]
    scratch: str  # bytes


@dataclass(frozen=True)
class _Function:
    """`forward` or `backward` of the header."""

    name: str
    parameters: str
    sizes: tuple[str, ...]
    addresses: tuple[str, ...]
    scratch: bool
    cases: tuple[_Case, ...]
    comment: str


def header_name(every: Sequence[Cases]) -> str:
    """The name of the file: `<norm>.bf16.D4096.sm_90.h`."""
    return f"{every[0].direction.norm}.{file_stem(every[0])}.h"


def header_prefix(every: Sequence[Cases]) -> str:
    """What names in the header begin with: `<norm>_bf16_D4096`."""
    return "_".join([every[0].direction.norm, *file_stem(every[0]).split(".")[:-1]])


def header_text(every: Sequence[Cases], cubins: Mapping[Text, bytes], package: Package, writer: str) -> str:
    """The header. `every`: the directions that it is to have; `cubins`: their kernels, compiled."""
    first = every[0]
    texts = list(dict.fromkeys(text for cases in every for text in cases.texts))
    prefix = header_prefix(every)
    kernels = [
        _Kernel(text.entry, _filled(cubins[text]), text.shared, text.cluster > PORTABLE_CLUSTER)
        for text in texts
    ]
    attrs = [attr.name for attr in package.attrs]
    functions = [_function(cases, texts, prefix, attrs) for cases in every]
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
            functions=functions,
        )
    )


def _function(cases: Cases, texts: list[Text], prefix: str, attrs: Sequence[str]) -> _Function:
    sizes = size_names(cases)
    asked = [name for name in attrs if name in scalars(cases)]
    found = tensors(cases)
    names = _c_names([each.record.name for each in found] + [*asked], sizes.values())
    scratch = any(case.scratch for case in cases.cases)
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
    return _Function(
        name=cases.direction.name,
        parameters=_wrapped(parameters),
        sizes=tuple(sizes.values()),
        addresses=(*arrays, *(["scratch"] if scratch else [])),
        scratch=scratch,
        cases=tuple(_case(case, texts, sizes, names) for case in cases.cases),
        comment="\n".join(f" *   {_harmless(line)}" for line in lines),
    )


_ACCESS = {"read": "read", "write": "written", "update": "read and written"}


def _case(case: Case, texts: list[Text], sizes: Mapping[str, str], names: Mapping[str, str]) -> _Case:
    """The launches of a case, and where its scratch arrays begin."""
    begin, begins = Formula.of(0), {}
    for array in case.scratch:
        begins[array.name] = begin
        begin += (array.bytes + Formula.of(GRANULE - 1)).over(GRANULE) * Formula.of(GRANULE)
    holds = " && ".join(case.limits.texts(sizes, "/"))
    launches = tuple(_launch(step, texts, sizes, names, begins) for step in case.steps)
    return _Case(holds, launches, _c(begin, sizes))


def _launch(
    step: Step,
    texts: list[Text],
    sizes: Mapping[str, str],
    names: Mapping[str, str],
    begins: Mapping[str, Formula],
) -> _Launch:
    text = step.text

    def value(code: str, given: Formula | Slot) -> str:
        if isinstance(given, Formula):
            return _cast(_C_TYPES[code], given, sizes)
        if given.name in begins:
            return f"scratch + {_cast('CUdeviceptr', begins[given.name], sizes)}".removesuffix(" + 0")
        return names[given.name]

    return _Launch(
        kernel=texts.index(text),
        entry=text.entry,
        fields=tuple(_fields(text.format)),
        values=tuple(
            (value(code, given), _harmless(each.meaning) + _absent(code, given))
            for code, given, each in zip(text.format, step.values, text.parameters, strict=True)
        ),
        bytes=bytes_of_arguments(text),
        grid=tuple(_cast("unsigned", each, sizes) for each in step.grid),
        block=text.block,
        shared=text.shared,
        programmatic=text.programmatic,
    )


def _absent(code: str, given: Formula | Slot) -> str:
    """What is added to the meaning of an address that a call does not have."""
    return ", which is not there" if code == "P" and isinstance(given, Formula) else ""


def _fields(codes: str) -> Iterator[str]:
    """The declarations of arguments: `int v4, v5`."""
    for code, group in groupby(enumerate(codes), key=lambda each: each[1]):
        yield f"{_C_TYPES[code]} {', '.join(f'v{place}' for place, _ in group)}"


def _cast(kind: str, formula: Formula, sizes: Mapping[str, str]) -> str:
    """A formula as a value of a type."""
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
