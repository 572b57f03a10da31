"""A new primitive is one row of the table: specs, derivatives, kernels and checks follow from it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.ir.primitives import PRIMITIVES, Primitive
from normgen.ir.show import show
from normgen.verify.events import OK, Row
from normgen.verify.run import Options, run
from tests.codegen.norms import source_of

pytestmark = pytest.mark.kernels

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
TEXT = """norm bent
input x[..., D]
param w[D] = 1
save rstd[...] = rsqrt(mean[D](x^2) + 1)
output y[..., D] = w * atan(x * rstd)
"""


def written_down() -> Primitive:
    """The primitive that CONTRIBUTING adds, as it stands there."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(import numpy.*?)```", text, re.S)
    tree = ast.parse(block)
    (row,) = (node.value for node in tree.body if isinstance(node, ast.Expr))
    imports = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    known: dict[str, object] = {}
    exec(compile(imports, "CONTRIBUTING.md", "exec"), known)
    found = eval(compile(ast.Expression(row), "CONTRIBUTING.md", "eval"), known)
    assert isinstance(found, Primitive)
    return found


def test_a_row_is_all_that_a_primitive_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("bent.norm", TEXT)
    monkeypatch.delitem(PRIMITIVES, "atan", raising=False)  # whoever adds it does not break this test
    with pytest.raises(SpecError, match="there is no function `atan`"):
        load_definition(source, {})
    monkeypatch.setitem(PRIMITIVES, "atan", written_down())
    definition = load_definition(source, {})
    assert show(definition.program.results[-1].expr).startswith("w * atan(rsqrt(")
    derived = backward(definition)
    gradients = {result.tensor.name: show(result.expr) for result in derived.results}
    assert gradients["dw"] == "sum[...](dy * atan(rstd * x))"
    (strategy, *_) = package(definition, derived).forward.strategies
    assert any("atanf(" in source_of(form) for kernel in strategy.kernels for form in kernel.forms)
    events = list(run(source, Options(executors=("host",), dtype="f32", quick=True)))
    rows = [event for event in events if isinstance(event, Row)]
    assert all(found.status == OK for found in rows), rows
    assert {found.stage for found in rows} == {"parse", "check", "derive", "differences", "kernels"}
    assert {found.direction for found in rows} == {"", "forward", "backward"}
