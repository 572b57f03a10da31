"""The error bounds that docs/faq.md shows are those that checks go by."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from normgen import bundled
from normgen.codegen.package import package
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case, same_dtype
from normgen.verify.draw import draw, scalar_values
from normgen.verify.expected import Expectation, Expected, Subject

PAGE = Path(__file__).parent.parent.parent / "docs" / "faq.md"
TABLE = re.compile(r"(?<=<!-- bounds: )(.*?-->\n\n)(.*?)\n\n", re.DOTALL)
SHOWN = ("rmsnorm", "layernorm", "softmax", "batchnorm")


def bounds(name: str) -> str:
    """A row of the table: the largest bound of each result over its largest element."""
    source = bundled.read(name)
    assert source is not None
    definition = load_definition(source, {})
    derived = backward(definition)
    case, scalars = make_case(definition, 33, 1000, same_dtype("f32")), scalar_values(definition.program)
    subject = Subject(definition, derived, Norm(package(definition, derived)))
    expected = Expectation(subject, case, draw(definition, case, scalars, {}), scalars)
    forward = cell(expected.forward, [each.tensor.name for each in definition.program.results])
    gradients = cell(expected.backward, [each.tensor.name for each in derived.results])
    return f"| `{name}` | {forward} | {gradients} |"


def cell(expected: Expected, names: list[str]) -> str:
    shares = {name: expected.bounds[name].max() / np.abs(expected.truth[name]).max() for name in names}
    return ", ".join(f"`{name}` {share:.0e}" for name, share in shares.items())


def test_the_page_shows_the_bounds_of_today(request: pytest.FixtureRequest) -> None:
    rows = ["| spec | forward | backward |", "|---|---|---|", *(bounds(name) for name in SHOWN)]
    text = PAGE.read_text(encoding="utf-8")
    found = TABLE.search(text)
    assert found is not None
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text[: found.start(2)] + "\n".join(rows) + text[found.end(2) :], encoding="utf-8")
        return
    assert found[2].splitlines() == rows
