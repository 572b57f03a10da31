"""The package of a module of one shape: the forms that run, with what all launches define alike known, and
launches by formulas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

from normgen.ahead.cases import Cases
from normgen.ahead.interface import Name, filled, forms_of, size_names, texts_of
from normgen.cache_results import ready
from normgen.kernel.folding import WIDTH
from normgen.launching.launch import Launch, Slot
from normgen.launching.tracing import formula_of
from normgen.package.constants import listed, listing
from normgen.package.device_functions import included, includes
from normgen.package.made import LaunchRecord, MadeRecord, ScratchRecord
from normgen.package.operands import FormRecord, Text
from normgen.package.records import Package, PassRecord
from normgen.page.kernels import kernels
from normgen.page.page import device_macros

_PARAMETERS = re.compile(r"(?<=\(\n)((?:    [^\n]*,\n)*    [^\n]*)\) \{")
_DEFINITION = re.compile(r"constexpr (bool|int|long long) (\w+) = (.*);")


def made_package(package: Package, every: Sequence[Cases], command: str) -> Package:
    """A package for the calls of these directions alone. `command`: what compiles the spec for any call."""
    records = {cases.direction.name: _record(cases, command) for cases in every}
    return replace(package, forward=records["forward"], backward=records.get("backward"))


def _record(cases: Cases, command: str) -> PassRecord:
    record = cases.direction.record
    strategy = next(each for each in record.strategies if each.name == cases.strategy)
    forms = _forms(cases)
    kept = (
        replace(k, forms=tuple(forms[f.entry] for f in k.forms if f.entry in forms)) for k in strategy.kernels
    )
    writes = tuple(tensor for tensor in record.writes if cases.saves or tensor.role != "save")
    own = replace(strategy, kernels=tuple(kept))
    return replace(record, writes=writes, strategies=(own,), made=_made(cases, forms, command))


def _made(cases: Cases, forms: Mapping[str, FormRecord], command: str) -> MadeRecord:
    names = {axis: f"{name}_" if iskeyword(name) else name for axis, name in size_names(cases).items()}
    name, original = names.__getitem__, forms_of(cases)
    plans = [(" and ".join(case.limits.texts(name)), case.value) for case in cases.cases]
    return MadeRecord(
        call=cases.direction.text,
        command=command,
        sizes=tuple(cases.sizes.items()),
        open=tuple(names.items()),
        dtype=cases.dtype,
        arch=cases.device.arch,
        operands=tuple((operand, each.dtype) for operand, each in cases.binding.operands),
        launches=tuple(
            LaunchRecord(
                when=when,
                entry=launch.entry,
                grid=", ".join(texts_of(launch.grid, name)),
                block=launch.block[0],
                arguments=", ".join(_argument(each, launch, name) for each in launch.values),
                format=launch.format,
                shared=launch.shared,
                cluster=launch.cluster,
                programmatic=launch.programmatic,
                clears=launch.clears,
                defines="\n".join(
                    definitions(launch, original[launch.entry])[constant]
                    for constant in forms[launch.entry].constants
                ),
            )
            for when, plan in plans
            for launch in plan.launches
        ),
        scratch=tuple(
            ScratchRecord(when, array, ", ".join(texts_of(shape, name)), dtype)
            for when, plan in plans
            for array, shape, dtype in plan.workspace
        ),
        multiprocessors=cases.device.multiprocessors if cases.resident else 0,
    )


def _argument(value: Any, launch: Launch, name: Name) -> str:
    if not isinstance(value, Slot):
        return formula_of(value).text(name)
    if value.kind == "scalar":
        return f"attr {value.name}"
    return f"{'in' * (value.name in launch.reads)}{'out' * (value.name in launch.writes)} {value.name}"


def _forms(cases: Cases) -> dict[str, FormRecord]:
    """By entry the forms that are launched, with what all launches of them define alike."""
    original, alike = forms_of(cases), dict[str, dict[str, str]]()
    for kernel in cases.kernels:
        defined = definitions(kernel, original[kernel.entry])
        known = alike.get(kernel.entry, defined)
        alike[kernel.entry] = {name: line for name, line in defined.items() if known.get(name) == line}
    sources = []
    for entry, known in alike.items():
        parts = listing(original[entry].source)
        sources.append(parts.before + "".join(f"{line}\n" for line in known.values()) + parts.after)
    forms = {}
    for entry, source in zip(alike, kernels(sources, device_macros(cases.device.arch)), strict=True):
        left = [name for name in original[entry].constants if name not in alike[entry]]
        forms[entry] = replace(
            original[entry], parameters=(), text=ready(entry, Text(_laid_out(source, left)))
        )
    return forms


def definitions(launch: Launch, form: FormRecord) -> dict[str, str]:
    """By name the lines that define constants in the text of a launch."""
    parts = listing(form.source)
    own = launch.source.removeprefix(parts.before).removesuffix(parts.after)
    lines = [line.partition("  //")[0] for line in own.splitlines() if not line.startswith("//")]
    return dict(zip(parts.names, lines, strict=True))


def _laid_out(text: str, left: Sequence[str]) -> str:
    """A text with its constants in few lines, and the list of those that are left to launches."""
    lines = text.split("\n")
    first = next(
        k for k, line in enumerate(lines) if line and not line.startswith(("#", "constexpr", "using"))
    )
    constants: dict[str, list[str]] = {}
    others = []
    for line in lines[:first]:
        if found := _DEFINITION.fullmatch(line):
            constants.setdefault(found[1], []).append(f"{found[2]} = {found[3]}")
        elif line and not line.startswith("#include"):
            others.append(line)
    own = [
        filled(f"constexpr {kind} {', '.join(each)};", WIDTH, "", "    ") for kind, each in constants.items()
    ]
    own += [filled(" ".join(others), WIDTH)] * bool(others)
    kernel = _PARAMETERS.sub(_headed, "\n".join(lines[first:]), count=1)
    parts = [includes(included(text)), listed(left) if left else "", "\n".join([*own, "", kernel])]
    return "\n".join(part for part in parts if part)


def _headed(found: re.Match[str]) -> str:
    """The parameters of a kernel in lines that are full."""
    return filled(f"{' '.join(found[1].split())}) {{", WIDTH, "    ", "    ")
