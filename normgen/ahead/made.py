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
from normgen.package.made import LaunchRecord, MadeRecord, ScratchRecord
from normgen.package.records import Package, PassRecord

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
    parted = {launch.source: _parted(launch.source) for launch in cases.launches}
    found = {}
    for source, (definitions, rest) in parted.items():
        shared = set.intersection(*({*others} for others, same in parted.values() if same == rest))
        text = _laid_out([line for line in definitions if line in shared], rest)
        found[source] = text, " ".join(line for line in definitions if line not in shared)
    return found


def _parted(text: str) -> tuple[list[str], str]:
    """The lines that define constants, without comments, and the rest of a text."""
    head, rest = text.split("\n\n", 1)
    return [line for line in _COMMENTS.sub("", head).split("\n") if line], rest


def _laid_out(definitions: Sequence[str], rest: str) -> str:
    """A text with its constants in few lines."""
    constants: dict[str, list[str]] = {}
    types: list[str] = []
    for line in definitions:
        if found := _DEFINITION.fullmatch(line):
            constants.setdefault(found[1], []).append(f"{found[2]} = {found[3]}")
        else:
            types.append(line)
    lines = [
        filled(f"constexpr {kind} {', '.join(each)};", WIDTH, "", "    ") for kind, each in constants.items()
    ]
    lines += [filled(" ".join(types), WIDTH)] * bool(types)
    return "\n".join([*lines, "", _PARAMETERS.sub(_headed, rest, count=1)])


def _headed(found: re.Match[str]) -> str:
    """The parameters of a kernel in lines that are full."""
    return filled(f"{' '.join(found[1].split())}) {{", WIDTH, "    ", "    ")
