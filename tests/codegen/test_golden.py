"""The emitted kernels as texts: one of each form, and for all norms the way back to the spec's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import normgen
from normgen.dsl import load_definition
from normgen.package.operands import FormRecord
from tests.codegen.norms import ATTRS, ROWS, packaged
from tests.verify.subjects import bundled_source

DIRECTIONS = ("forward", "backward")
TEMPLATES = Path(normgen.__file__).parent / "templates"


def forms(name: str, direction: str) -> Iterator[FormRecord]:
    """Every text of a direction."""
    for kernel in getattr(packaged(name), direction).kernels:
        yield from kernel.forms


# Passes that have every form of the rows and of the columns family; tiles, windows and resident kernels have
# golden texts beside their tests.
SHOWN = (
    ("layernorm", "forward"),
    ("rmsnorm", "backward"),
    ("layernorm2d", "backward"),
    ("dyt", "forward"),
)


@cache
def texts() -> dict[str, str]:
    """A text of each form, by family and form: of the first pass that has it."""
    found: dict[str, str] = {}
    for name, direction in SHOWN:
        for kernel in getattr(packaged(name), direction).kernels:
            for form in kernel.forms:
                found.setdefault(f"{kernel.family}.{form.form}", form.source)
    return found


def templates(family: str) -> set[str]:
    """The forms that a family has templates for."""
    names = {path.name.partition(".")[0] for path in (TEMPLATES / family).glob("*.cu.jinja")}
    return {f"{family}.{name}" for name in names}


def test_a_text_of_every_form(golden: Callable[[str, str], None]) -> None:
    for name, text in texts().items():
        golden(f"forms/{name}.cu", text)


def test_every_form_of_rows_and_columns_is_shown() -> None:
    assert templates("rows") | {"columns.registers", "columns.multipass"} <= texts().keys()


def named(text: str, name: str) -> list[str]:
    """The statements that give a value the name, or the elements of a result their values."""
    loaded = r"(?!next_|this_|last_|load_scalar|\w+ \? load_scalar|READ_|HAS_)"
    pattern = rf"\s*(?:const float {name} = {loaded}|{name}_out\[i\] = )"
    return [line for line in text.splitlines() if re.match(pattern, line)]


@pytest.mark.parametrize("name", ROWS)
def test_what_has_a_users_name_tells_its_line(name: str) -> None:
    source = bundled_source(name)
    definition = load_definition(source, ATTRS.get(name, {}))
    lines = {
        b.name: source.text.count("\n", 0, b.span.start) + 1
        for b in definition.program.bindings
        if b.span is not None
    }
    for direction in DIRECTIONS:
        for form in forms(name, direction):
            for binding, line in lines.items():
                for statement in named(form.source, binding):
                    place = f"// {source.name}:{line}"  # behind the statement, or above one that is long
                    margin = statement[: len(statement) - len(statement.lstrip())]
                    above = f"{margin}{place}\n{statement}\n" in form.source
                    assert above or statement.endswith(f"  {place}"), (form.entry, statement)


@pytest.mark.parametrize("name", ROWS)
def test_texts_are_tidy(name: str) -> None:
    for form in (form for direction in DIRECTIONS for form in forms(name, direction)):
        assert form.source.endswith("}\n")
        assert "\t" not in form.source
        assert "\n\n\n" not in form.source
        depth, before, start, brackets = 0, ";", 0, 0
        for line in form.source.splitlines():
            assert line == line.rstrip(), (form.entry, line)
            code = line.split("//")[0].rstrip()
            if code.strip() and not code.startswith("#"):
                indent = len(code) - len(code.lstrip())
                closing = len(code.strip()) - len(code.strip().lstrip(")}"))
                # a line begins a statement, or goes on with one further in
                if before[-1] in "{}" or (before[-1] == ";" and brackets <= 0):
                    start, brackets = indent, 0
                    assert indent == 4 * (depth - closing), (form.entry, line)
                else:
                    assert indent % 4 == 0 and (indent > start or start == 0), (form.entry, line)
                before, brackets = code, brackets + code.count("(") - code.count(")")
            depth += sum(map(code.count, "({")) - sum(map(code.count, ")}"))
        assert depth == 0
