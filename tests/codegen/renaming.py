"""Specs under other names, and what becomes of the names in kernel texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.program import Definition
from normgen.kernel import names
from normgen.kernel.names import Names
from normgen.package.constants import Constants
from tests.codegen.norms import source_of
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


def renamed(text: str, called: Mapping[str, str]) -> str:
    """The text of a spec with other names."""
    return _OF_SPECS.sub(lambda found: called.get(found[0], found[0]), text)


def defined(text: str, attrs: Mapping[str, object], called: Mapping[str, str]) -> Definition:
    """The spec under other names."""
    given = {called.get(name, name): value for name, value in attrs.items()}
    return load_definition(Source("spec.norm", renamed(text, called)), given)


def named_by_user(definition: Definition, text: str) -> tuple[list[str], list[str]]:
    """The names that a spec gives: to values, and to axes."""
    program = definition.program
    values = [t.name for t in (*program.operands, *(r.tensor for r in program.results))]
    values += [a.name for a in program.attrs] + [b.name for b in program.bindings]
    found = set(_OF_SPECS.findall(text))
    return [n for n in dict.fromkeys(values) if n in found], [a.name for a in program.axes if a.name in found]


@dataclass(frozen=True)
class Printed:
    """A text of a kernel, with its head, before its names were spelled and after."""

    before: str
    after: str
    symbols: Mapping[str, str]  # of tensors


def printed(definition: Definition) -> list[Printed]:
    """The texts of all kernels of a spec."""
    heads: list[str] = []
    found: list[Printed] = []
    print_text, head = Names.text, names.headed

    def headed(*given: Any) -> str:
        heads.append(head(*given))
        return heads[-1]

    def text(
        own: Names, source: str, parameters: Any, operands: Mapping[str, str], constants: Constants
    ) -> str:
        after = print_text(own, source, parameters, operands, constants)
        found.append(Printed(heads[-1], after, operands))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "headed", headed)
        patch.setattr(Names, "text", text)
        made = package(definition)
        for each in (made.forward, made.backward):
            for form in (form for kernel in each.kernels for form in kernel.forms) if each else ():
                assert source_of(form)
    return found
