"""The check of derived gradients against differences: how small an error it finds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from pytest import MonkeyPatch

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir import centre, grad
from normgen.ir.expr import mul
from normgen.ir.program import Definition, Program
from normgen.verify import gradient as checks
from normgen.verify.draw import scalar_values
from normgen.verify.events import FAILED, Row
from normgen.verify.gradient import check_derivatives
from normgen.verify.run import Options, run
from tests.ir.specs import bundled
from tests.verify.subjects import bundled_source

SPECS = ["rmsnorm", "layernorm", "softmax", "groupnorm", "batchnorm", "local_response_norm"]


def scaled(definition: Definition, which: int, by: Fraction) -> Program:
    """The backward with one gradient too large by so much of itself."""
    return enlarged(grad.backward(definition), which, by)


def enlarged(program: Program, which: int, by: Fraction) -> Program:
    results = list(program.results)
    results[which] = replace(results[which], expr=mul(1 + by, results[which].expr))
    return replace(program, results=tuple(results))


@pytest.mark.parametrize("name", SPECS)
def test_every_gradient_that_is_wrong_by_a_hundred_thousandth_is_found(name: str) -> None:
    definition = bundled(name)
    scalars = scalar_values(definition.program)
    for which, gradient in enumerate(grad.backward(definition).results):
        for by in (Fraction(1, 1000), Fraction(-1, 100_000)):
            found = list(check_derivatives(definition, scaled(definition, which, by), scalars))
            wrong = {f.result for f in found if f.stage == "differences" and not f.ok}
            assert wrong == {gradient.tensor.name}, (by, found)


@pytest.mark.parametrize("size", ["1", "0.001"])
@pytest.mark.parametrize(("by", "ok"), [(Fraction(0), True), (Fraction(4, 10**9), False)])
def test_centring_that_is_wrong_is_found(size: str, by: Fraction, ok: bool, monkeypatch: MonkeyPatch) -> None:
    """By a hundred-millionth of a result, and also of a small one."""
    text = f"norm centred\ninput x[..., D]\noutput y[..., D] = {size} * (x - mean[D](x))\n"
    definition = load_definition(Source("c.norm", text), {})
    monkeypatch.setattr(checks, "centre", lambda program: enlarged(centre.centre(program), 0, by))
    found = [each for each in check_derivatives(definition, None, {}) if each.stage == "centring"]
    assert found and all(each.ok is ok for each in found), found


def test_a_wrong_gradient_fails_the_check_of_its_spec(monkeypatch: MonkeyPatch) -> None:
    wrong = scaled(bundled("layernorm"), 0, Fraction(1, 1000))
    monkeypatch.setattr(grad, "backward", lambda definition: wrong)
    events = list(run(bundled_source("layernorm"), Options(kernels=False)))
    failed = [event for event in events if isinstance(event, Row) and event.status == FAILED]
    assert {(row.stage, row.result) for row in failed} == {("differences", "dx")}
