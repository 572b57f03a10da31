"""A new primitive is one row of the table: specs, derivatives, kernels and checks follow from it."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.codegen.package import package
from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.ir.primitives import PRIMITIVES, Primitive
from normgen.ir.show import show
from normgen.verify.events import OK, Row
from normgen.verify.run import Options, run

pytestmark = pytest.mark.kernels

# CUDA documents an error of 2 ulps.
ATAN = Primitive(
    "atan", 1, np.arctan, lambda ir, g, out, x: (ir.times(g, ir.power(ir.add(1, ir.power(x, 2)), -1)),),
    cuda="atanf", roundings=4.0, increasing=True, costly=True, exact={0: 0}.get,
)  # fmt: skip
TEXT = """norm bent
input x[..., D]
param w[D] = 1
save rstd[...] = rsqrt(mean[D](x^2) + 1)
output y[..., D] = w * atan(x * rstd)
"""


def test_a_row_is_all_that_a_primitive_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("bent.norm", TEXT)
    with pytest.raises(SpecError, match="there is no function `atan`"):
        load_definition(source, {})
    monkeypatch.setitem(PRIMITIVES, "atan", ATAN)
    definition = load_definition(source, {})
    assert show(definition.program.results[-1].expr).startswith("w * atan(rsqrt(")
    derived = backward(definition)
    gradients = {result.tensor.name: show(result.expr) for result in derived.results}
    assert gradients["dw"] == "sum[...](dy * atan(rstd * x))"
    (strategy, *_) = package(definition, derived).forward.strategies
    assert any("atanf(" in form.source for kernel in strategy.kernels for form in kernel.forms)
    events = list(run(source, Options(executors=("host",), dtype="f32", quick=True)))
    rows = [event for event in events if isinstance(event, Row)]
    assert all(found.status == OK for found in rows), rows
    assert {found.stage for found in rows} == {"parse", "check", "derive", "differences", "kernels"}
    assert {found.direction for found in rows} == {"", "forward", "backward"}
