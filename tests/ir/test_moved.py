"""States have their new values when a backward runs: what it needs of the old ones is kept, or refused."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.diagnostics import SpecError
from normgen.ir import grad
from normgen.ir.grad import backward
from normgen.ir.levels import differentiated
from normgen.ir.reference import check_gradient, evaluate
from normgen.ir.show import show
from normgen.verify.events import FAILED, Row
from normgen.verify.run import Options, run

from .specs import draw, extents, written

HEAD = "input x[B, D]\nparam w[D] = 1\nstate s[D] = 1\nstate t[D] = 1\n"
# By what a backward needs of the state s.
READS = {
    "a factor": "output y[B, D] = x * s\nupdate s = 2 * s",
    "a power": "output y[B, D] = x * w * rsqrt(s^2 + 1)\nupdate s = mean[B](x)",
    "what is stopped": "output y[B, D] = x * stop(s)\nupdate s = 2 * s",
    "a condition": "output y[B, D] = x if x > s else w * x\nupdate s = max(s, 0) + 1",
    "a window": "output y[B, D] = x * sum[D: -1 .. 1](s)\nupdate s = 2 * s",
    "an argument": "output y[B, D] = tanh(x + s)\nupdate s = lerp(s, t, 0.5)",
    "a reduction": "output y[B, D] = x * sum[D](s * t)\nupdate s = t",
}
KEPT = "save s_before[D] = s\n"


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_what_is_gone_is_refused_with_its_cure(text: str) -> None:
    with pytest.raises(
        SpecError, match=r"needs the value of `s` before its update(?s:.*)`save s_before\[D\] = s`"
    ):
        normgen.load(f"norm test\n{HEAD}{text}")


@pytest.mark.parametrize("text", READS.values(), ids=READS)
def test_the_cure_gives_right_gradients_of_every_order(text: str) -> None:
    first = written(HEAD + KEPT + text)
    second = differentiated(first)
    assert second is not None
    for definition in (first, second.definition):
        derived, sizes = backward(definition), extents(definition)
        assert "s" not in {tensor.name for tensor in derived.operands}
        errors = check_gradient(definition, derived, draw(definition, derived, sizes), sizes)
        assert max(errors.values()) < 1e-6, errors


@pytest.mark.parametrize("kept", ["rsqrt(s)", "3 * s", "(s + 1)^2"])
def test_what_is_made_of_a_state_and_kept_will_do(kept: str) -> None:
    text = f"save k[D] = {kept}\noutput y[B, D] = w * {kept} * x\ngrad y wrt w\nupdate s = 2 * s"
    assert show(backward(written(HEAD + text)).results[0].expr) == "k * sum[B](dy * x)"


def test_a_state_that_is_not_updated_may_be_read() -> None:
    derived = backward(written(HEAD + "output y[B, D] = x * s\nupdate t = 2 * t"))
    assert "s" in {tensor.name for tensor in derived.operands}


def test_a_copy_of_a_state_is_read_though_it_spares_nothing() -> None:
    """Another call may have updated the state before the backward of this one runs."""
    derived = backward(written(HEAD + KEPT + "output y[B, D] = x * s"))
    arrays = {"dy": np.ones((2, 3)), "s_before": np.full(3, 2.0), "s": np.full(3, 7.0)}
    read = {tensor.name: arrays[tensor.name] for tensor in derived.operands}
    np.testing.assert_array_equal(evaluate(derived, read, {"B": 2, "D": 3})["dx"], 2.0)


@pytest.mark.parametrize("text", [READS["a factor"], READS["an argument"]])
def test_a_check_finds_what_is_not_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad, "refuse_moved", lambda definition, gradients: None)
    source = written(HEAD + text).source
    rows = [event for event in run(source, Options(kernels=False)) if isinstance(event, Row)]
    assert {(row.stage, row.result) for row in rows if row.status == FAILED} >= {("differences", "dx")}
