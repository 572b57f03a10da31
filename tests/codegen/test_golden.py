"""The emitted kernels as texts: one of each form, and for all norms the way back to the spec's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import normgen
from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.package.operands import FormRecord
from normgen.verify.texts import texts as launched_texts
from tests.codegen import residing, windowing
from tests.codegen.norms import ROWS, packaged, source_of
from tests.conftest import GOLDEN
from tests.kinds import ATTRS
from tests.verify.subjects import bundled_source

DIRECTIONS = ("forward", "backward")
FOLDER = Path(normgen.__file__).parent / "templates"
# By the family, or `shared`, and the form.
TEMPLATES = sorted(
    f"{path.parent.name}.{path.name.partition('.')[0]}" for path in FOLDER.glob("*/*.cu.jinja")
)


def forms(name: str, direction: str) -> Iterator[FormRecord]:
    """Every text of a direction."""
    for kernel in getattr(packaged(name), direction).kernels:
        yield from kernel.forms


# Passes that between them have every form of every family: of each form, the first text is shown.
SHOWN = {
    "rmsnorm": ("forward", "backward"),
    "dyt": ("forward",),
    "softmax2d": ("forward",),
    "local_response_norm": ("forward",),
    windowing.text(windowing.LAST): ("forward",),
    "norm turned\ninput x[M, N]\noutput y[M, N] = x * 2\noutput z[N, M] = x\n": ("forward",),
    "instancenorm": ("forward",),  # rows of images
    "groupnorm": ("backward",),  # gradients of params, of a batch
    residing.BANDS["bands without gains"]: ("forward", "backward"),
}


@cache
def texts() -> dict[str, str]:
    """A text of each template, by the family, or `shared`, and the form, for some call that takes it."""
    found: dict[str, str] = {}
    for spec, directions in SHOWN.items():
        source = Source("spec.norm", spec) if "\n" in spec else bundled_source(spec)
        definition = load_definition(source, ATTRS.get(spec, {}))
        made = package(definition)
        launched = launched_texts(definition, made)
        for direction in directions:
            for strategy in getattr(made, direction).strategies:
                for kernel in strategy.kernels:
                    for form in (form for form in kernel.forms if form.entry in launched):
                        own = f"{kernel.family}.{form.form}"
                        name = own if own in TEMPLATES else f"shared.{form.form}"
                        found.setdefault(name, launched[form.entry])
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_of_every_form(name: str, golden: Callable[[str, str], None]) -> None:
    """Every template has one text that people read, of a norm that is as small as its form allows."""
    if name not in texts():
        how = "run `make golden PYTEST_ARGS=tests/codegen/test_golden.py`, and read the text"
        said = (
            f"nothing shows the text of {name}: add a norm whose kernels have the form to SHOWN in this file"
        )
        pytest.fail(f"{said}, {how}", pytrace=False)
    golden(f"forms/{name}.cu", texts()[name])


def test_no_form_that_is_gone_has_a_text() -> None:
    assert {path.stem for path in (GOLDEN / "forms").iterdir()} <= {*TEMPLATES}


def named(text: str, name: str) -> list[str]:
    """The statements that give a value the name, or the elements of a result their values."""
    loaded = r"(?!next_|this_|last_|load_scalar|\w+ \? load_scalar)"
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
                for statement in named(source_of(form), binding):
                    place = f"// {source.name}:{line}"  # behind the statement, or above one that is long
                    margin = statement[: len(statement) - len(statement.lstrip())]
                    above = f"{margin}{place}\n{statement}\n" in source_of(form)
                    assert above or statement.endswith(f"  {place}"), (form.entry, statement)


@pytest.mark.parametrize("name", ROWS)
def test_texts_are_tidy(name: str) -> None:
    for form in (form for direction in DIRECTIONS for form in forms(name, direction)):
        assert source_of(form).endswith("}\n")
        assert "\t" not in source_of(form)
        assert "\n\n\n" not in source_of(form)
        depth, before, start, brackets = 0, ";", 0, 0
        for line in source_of(form).splitlines():
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
