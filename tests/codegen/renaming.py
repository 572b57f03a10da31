"""Specs under other names, and what becomes of the names in kernel texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.program import Definition
from normgen.kernel.names import Names
from normgen.package.operands import FormRecord, OperandRecord
from normgen.package.records import Package
from tests.ir.specs import SPECS, VARIANTS

MARK = "ꞏ"
# Words of a text; what belongs to something else, a member, keeps what tells so.
_TOKEN = re.compile(r"(?:\.|->|::|(?<!\w))[^\W\d]\w*")
_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*')
_OF_SPECS = re.compile(r'"[^"\n]*"|#[^\n]*|(?<![\w.])[A-Za-z]\w*')


def words(text: str) -> list[str]:
    """The identifiers of a kernel text, members of others left out, in order."""
    return [word for word in _TOKEN.findall(_NO_CODE.sub("", text)) if word[0] not in ".-:"]


Block = tuple[int, ...]


def blocks(text: str) -> dict[str, set[Block]]:
    """For each identifier of a text the blocks that it is written in: the numbers of the braces around it."""
    found: dict[str, set[Block]] = {}
    around: list[int] = []
    for number, part in enumerate(re.findall(r"[{}]|" + _TOKEN.pattern, _NO_CODE.sub("", text))):
        if part == "{":
            around.append(number)
        elif part == "}":
            around.pop()
        elif part[0] not in ".-:":
            found.setdefault(part, set()).add(tuple(around))
    return found


def nested(a: Block, b: Block) -> bool:
    """Whether one of two blocks lies in the other."""
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter]


def spec_of(name: str) -> tuple[str, dict[str, object]]:
    """The text of a bundled spec, or of a variant of one, and its attrs."""
    path = SPECS / f"{name.partition('-')[0]}.norm"
    return path.read_text(encoding="utf-8"), VARIANTS.get(name, {})


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text of a spec with other names."""
    return _OF_SPECS.sub(lambda found: names.get(found[0], found[0]), text)


def defined(text: str, attrs: Mapping[str, object], names: Mapping[str, str]) -> Definition:
    """The spec under other names."""
    given = {names.get(name, name): value for name, value in attrs.items()}
    return load_definition(Source("spec.norm", renamed(text, names)), given)


def named_by_user(definition: Definition, text: str) -> tuple[list[str], list[str]]:
    """The names that a spec gives: to values, and to axes."""
    program = definition.program
    values = [t.name for t in (*program.operands, *(r.tensor for r in program.results))]
    values += [a.name for a in program.attrs] + [b.name for b in program.bindings]
    found = set(_OF_SPECS.findall(text))
    return [n for n in dict.fromkeys(values) if n in found], [a.name for a in program.axes if a.name in found]


@dataclass(frozen=True)
class Kernel:
    """A kernel's names, and its record before they were spelled and after."""

    names: Names
    symbolic: Any
    spelled: Any

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """Its texts, before and after."""
        for before, after in zip(self.symbolic.forms, self.spelled.forms, strict=True):
            assert isinstance(before, FormRecord)
            yield before.source, after.source

    @property
    def operands(self) -> Iterator[OperandRecord]:
        """Its operands, with symbols for names."""
        for name in ("reads", "writes", "final_reads", "finals"):
            yield from getattr(self.symbolic, name, ())


def kernels_of(definition: Definition) -> tuple[Package, list[Kernel]]:
    """The package of a spec, and the kernels that it was made of."""
    found: list[Kernel] = []
    spell = Names.spell

    def seen(names: Names, record: Any) -> Any:
        spelled = spell(names, record)
        found.append(Kernel(names, record, spelled))
        return spelled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Names, "spell", seen)
        return package(definition), found
