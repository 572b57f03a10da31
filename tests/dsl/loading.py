"""What the tests of the language share."""

from __future__ import annotations

import pytest

from normgen.diagnostics import Source, SpecError
from normgen.dsl import ast, load_definition
from normgen.dsl.syntax import parse
from normgen.ir.program import Definition


def load(text: str, **attrs: object) -> Definition:
    return load_definition(Source("example.norm", text), attrs)


def faults(text: str, **attrs: object) -> list[tuple[str, str]]:
    """(code, headline) of every fault."""
    with pytest.raises(SpecError) as caught:
        load(text, **attrs)
    assert str(caught.value)
    return [(d.code, d.message) for d in caught.value.diagnostics]


def tree(text: str) -> ast.Spec:
    return parse(Source("t.norm", text))


def refused(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        tree(text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code in ("syntax", "number", "name", "nesting", "size", "character")
    return str(caught.value)
