"""The package of a module of one shape: launches by formulas, each with the text of its kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

from normgen.ahead.cases import Cases
from normgen.ahead.interface import Name, filled, size_names, texts_of
from normgen.kernel.folding import WIDTH
from normgen.launching.launch import Launch, Slot
from normgen.launching.tracing import formula_of
from normgen.package.device_functions import included, includes
from normgen.package.made import LaunchRecord, MadeRecord, ScratchRecord
from normgen.package.records import Package, PassRecord
from normgen.page.kernels import kernels
from normgen.page.page import device_macros

_PARAMETERS = re.compile(r"(?<=\(\n)((?:    [^\n]*,\n)*    [^\n]*)\) \{")
_COMMENTS = re.compile(r"^//.*\n|  //.*", re.MULTILINE)
_DEFINITION = re.compile(r"constexpr (bool|int|long long) (\w+) = (.*);")


def made_package(package: Package, every: Sequence[Cases], command: str) -> Package:
    """A package for the calls of these directions alone. `command`: what compiles the spec for any call."""
    records = {cases.direction.name: _record(cases, command) for cases in every}
    return replace(package, forward=records["forward"], backward=records.get("backward"))


def _record(cases: Cases, command: str) -> PassRecord:
    record = cases.direction.record
    strategy = next(each for each in record.strategies if each.name == cases.strategy)
    writes = tuple(tensor for tensor in record.writes if cases.saves or tensor.role != "save")
    own = replace(strategy, kernels=tuple(replace(kernel, forms=()) for kernel in strategy.kernels))
    return replace(record, writes=writes, strategies=(own,), made=_made(cases, command))


def _made(cases: Cases, command: str) -> MadeRecord:
    names = {axis: f"{name}_" if iskeyword(name) else name for axis, name in size_names(cases).items()}
    name, texts = names.__getitem__, _texts(cases)
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
                text=texts[launch.source][0],
                entry=launch.entry,
                grid=", ".join(texts_of(launch.grid, name)),
                block=launch.block[0],
                arguments=", ".join(_argument(each, launch, name) for each in launch.values),
                format=launch.format,
                shared=launch.shared,
                cluster=launch.cluster,
                programmatic=launch.programmatic,
                clears=launch.clears,
                constants=texts[launch.source][1],
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


def _texts(cases: Cases) -> dict[str, tuple[str, str]]:
    """By the text of a launch, the text that a module has for it, and the constants that this lacks: those in
    which launches differ whose texts are the same otherwise."""
    sources = list(dict.fromkeys(launch.source for launch in cases.launches))
    folded = kernels([*map(_uncommented, sources)], device_macros(cases.device.arch))
    parted, found = [*map(_parted, folded)], {}
    for source, (constants, rest) in zip(sources, parted, strict=True):
        shared = set.intersection(*({*others} for others, same in parted if same == rest))
        text = _laid_out([line for line in constants if line in shared], rest)
        found[source] = text, " ".join(line for line in constants if line not in shared)
    return found


def _uncommented(source: str) -> str:
    """A text whose constants have no comments."""
    files, constants, rest = source.split("\n\n", 2)
    return f"{files}\n\n{_COMMENTS.sub('', constants)}\n\n{rest}"


def _parted(text: str) -> tuple[list[str], str]:
    """The lines that define constants, and the rest of a text."""
    lines = text.split("\n")
    constants = [line for line in lines if _DEFINITION.fullmatch(line)]
    return constants, "\n".join(line for line in lines if line not in constants)


def _laid_out(definitions: Sequence[str], text: str) -> str:
    """A text with its constants in few lines."""
    lines = text.split("\n")
    first = next(k for k, line in enumerate(lines) if line and not line.startswith(("#", "using")))
    constants: dict[str, list[str]] = {}
    for line in definitions:
        if found := _DEFINITION.fullmatch(line):
            constants.setdefault(found[1], []).append(f"{found[2]} = {found[3]}")
    others = [line for line in lines[:first] if line and not line.startswith("#include")]
    own = [
        filled(f"constexpr {kind} {', '.join(each)};", WIDTH, "", "    ") for kind, each in constants.items()
    ]
    own += [filled(" ".join(others), WIDTH)] * bool(others)
    kernel = _PARAMETERS.sub(_headed, "\n".join(lines[first:]), count=1)
    return "\n".join([includes(included(text)), *own, "", kernel])


def _headed(found: re.Match[str]) -> str:
    """The parameters of a kernel in lines that are full."""
    return filled(f"{' '.join(found[1].split())}) {{", WIDTH, "    ", "    ")
