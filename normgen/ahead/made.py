"""The package of a module of one shape: the forms that run, with what all launches define alike known, and
launches by formulas."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword

from normgen.ahead.cases import Case, Cases, Step, Text
from normgen.ahead.interface import size_names
from normgen.kernel.folding import WIDTH
from normgen.launching.formula import Formula
from normgen.launching.launch import Slot
from normgen.package.constants import listed, listing
from normgen.package.device_functions import included, includes
from normgen.package.made import LaunchRecord, MadeRecord, ScratchRecord
from normgen.package.operands import FormRecord
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


# ------------------------------------------------------------------------------------------ launches


def _made(cases: Cases, forms: Mapping[str, FormRecord], command: str) -> MadeRecord:
    names = {axis: f"{name}_" if iskeyword(name) else name for axis, name in size_names(cases).items()}
    original = _originals(cases)
    operands = tuple((name, each.dtype) for name, each in cases.binding.operands)
    return MadeRecord(
        call=cases.direction.text,
        command=command,
        sizes=tuple(cases.sizes.items()),
        open=tuple(names.items()),
        dtype=cases.dtype,
        arch=cases.device.arch,
        operands=operands,
        launches=tuple(
            _launch(_when(case, names), step, forms, names, original)
            for case in cases.cases
            for step in case.steps
        ),
        scratch=tuple(
            ScratchRecord(_when(case, names), each.name, _texts(each.shape, names), each.dtype)
            for case in cases.cases
            for each in case.scratch
        ),
        multiprocessors=cases.device.multiprocessors if cases.resident else 0,
    )


def _when(case: Case, names: Mapping[str, str]) -> str:
    return " and ".join(case.limits.texts(names))


def _launch(
    when: str,
    step: Step,
    forms: Mapping[str, FormRecord],
    names: Mapping[str, str],
    original: Mapping[str, FormRecord],
) -> LaunchRecord:
    text = step.text
    defined = definitions(text, original[text.entry])
    return LaunchRecord(
        when=when,
        entry=text.entry,
        grid=_texts(step.grid, names),
        block=text.block[0],
        arguments=", ".join(_argument(each, text, names) for each in step.values),
        format=text.format,
        shared=text.shared,
        cluster=text.cluster,
        programmatic=text.programmatic,
        clears=step.clears,
        defines="\n".join(defined[name] for name in forms[text.entry].constants),
    )


def _argument(value: Formula | Slot, text: Text, names: Mapping[str, str]) -> str:
    if not isinstance(value, Slot):
        return value.text(names.__getitem__)
    if value.kind == "scalar":
        return f"attr {value.name}"
    return f"{'in' * (value.name in text.reads)}{'out' * (value.name in text.writes)} {value.name}"


def _texts(formulas: Sequence[Formula], names: Mapping[str, str]) -> str:
    return ", ".join(each.text(names.__getitem__) for each in formulas)


# ------------------------------------------------------------------------------------------ texts


def _originals(cases: Cases) -> dict[str, FormRecord]:
    return {form.entry: form for kernel in cases.direction.record.kernels for form in kernel.forms}


def _forms(cases: Cases) -> dict[str, FormRecord]:
    """By entry the forms that are launched, with what all launches of them define alike."""
    original = _originals(cases)
    by_entry: dict[str, list[dict[str, str]]] = {}
    for text in cases.texts:
        by_entry.setdefault(text.entry, []).append(definitions(text, original[text.entry]))
    known = {
        entry: dict(set.intersection(*(set(each.items()) for each in found)))
        for entry, found in by_entry.items()
    }
    sources = []
    for entry, found in known.items():
        parts = listing(original[entry].source)
        common = "".join(f"{found[name]}\n" for name in parts.names if name in found)
        sources.append(parts.before + common + parts.after)
    folded = kernels(sources, device_macros(cases.device.arch))
    forms = {}
    for (entry, found), source in zip(known.items(), folded, strict=True):
        left = [name for name in original[entry].constants if name not in found]
        forms[entry] = replace(original[entry], parameters=(), source=_laid_out(source, left))
    return forms


def definitions(text: Text, form: FormRecord) -> dict[str, str]:
    """By name the lines that define constants in the text of a launch."""
    parts = listing(form.source)
    own = text.source.removeprefix(parts.before).removesuffix(parts.after)
    lines = [line.partition("  //")[0] for line in own.splitlines() if not line.startswith("//")]
    return dict(zip(parts.names, lines, strict=True))


def _laid_out(text: str, left: Sequence[str]) -> str:
    """A text with its constants in few lines, and the list of those that are left to launches."""
    lines = text.split("\n")
    first = next(
        k for k, line in enumerate(lines) if line and not line.startswith(("#", "constexpr", "using"))
    )
    own = [line for line in lines[:first] if line and not line.startswith("#include")]
    by_type: dict[str, list[str]] = {}
    others = []
    for line in own:
        if found := _DEFINITION.fullmatch(line):
            by_type.setdefault(found[1], []).append(f"{found[2]} = {found[3]}")
        else:
            others.append(line)
    constants = [*(f"constexpr {kind} {', '.join(each)};" for kind, each in by_type.items())]
    lines[first:] = _headed("\n".join(lines[first:])).split("\n")
    lines[first:first] = [""]
    lines[:first] = [part for line in (*constants, " ".join(others)) for part in _filled(line)]
    parts = [includes(included(text)), listed(left) if left else "", "\n".join(lines)]
    return "\n".join(part for part in parts if part)


def _headed(text: str) -> str:
    """A kernel with its parameters in lines that are full."""
    found = _PARAMETERS.search(text)
    assert found is not None
    taken = " ".join(found[1].split()).replace(" ", "\0").replace(",\0", ", ") + ")\0{"
    lines = textwrap.wrap(
        taken, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False
    )
    return f"{text[: found.start(1)]}{chr(10).join(lines)}{text[found.end() :]}".replace("\0", " ")


def _filled(line: str) -> list[str]:
    """Definitions in lines that are full, each on one of them."""
    together = re.sub(r" = |using ", lambda found: found[0].replace(" ", "\0"), line)
    return [
        part.replace("\0", " ")
        for part in textwrap.wrap(
            together, WIDTH, subsequent_indent="    " * (";" not in line[:-1]), break_long_words=False
        )
    ]
