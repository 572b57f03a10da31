"""Norms with states on the tape: they pass through, are updated in place and never differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.autograd import Tensor, apply, no_grad
from tests.autograd.drawing import draw, leaf, load

pytestmark = pytest.mark.kernels

f32 = np.float32
CENTRED = """norm centred
input  x[..., D]
param  w[D] = 1
state  r[D] = 0
save   mu[D] = mean[...](x)
output y[..., D] = (x - mu) * w
update r = lerp(r, mu, 0.25)
"""
# The backward reads the state.
SHIFTED = """norm shifted
input  x[..., D]
param  w[D] = 1
state  r[D] = 0
output y[..., D] = (x - r) * w
"""


@pytest.mark.parametrize("wrap", [Tensor, lambda array: array], ids=["tensor", "array"])
def test_states_are_updated_in_place_and_gradients_go_around_them(wrap: Any) -> None:
    x, w, running = leaf(6, 8), leaf(8, seed=1), np.ones(8, f32)
    outputs = apply(load(CENTRED), x, w, wrap(running))
    assert outputs._fields == ("y",) and type(outputs).__name__ == "CentredOutputs"
    mean = x.data.mean(axis=0)
    np.testing.assert_allclose(running, 0.75 + 0.25 * mean, rtol=1e-6)
    np.testing.assert_allclose(outputs.y.data, (x.data - mean) * w.data, rtol=1e-6, atol=1e-6)
    dy = draw(6, 8, seed=2)
    outputs.y.backward(dy)
    np.testing.assert_allclose(x.grad, (dy - dy.mean(axis=0)) * w.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w.grad, (dy * (x.data - mean)).sum(axis=0), rtol=1e-5, atol=1e-5)


def test_states_are_updated_without_a_tape_too_may_be_left_out_and_require_no_grad() -> None:
    norm, x, w = load(CENTRED), leaf(6, 8), leaf(8)
    running = Tensor(np.zeros(8, f32), requires_grad=True)
    with pytest.raises(TypeError, match=r"r is a state of centred.*pass \.detach\(\)"):
        apply(norm, x, w, running)
    assert not running.data.any()
    with no_grad():
        outputs = apply(norm, x, w, running.detach())
    assert not outputs.y.requires_grad and running.data.any() and running.grad is None
    assert (apply(norm, x, w).y.data == outputs.y.data).all()


def test_a_state_that_a_backward_reads_may_not_be_updated_before_it() -> None:
    x, w, running = leaf(6, 8), leaf(8, seed=1), Tensor(np.zeros(8, f32))
    y = apply(load(SHIFTED), x, w, running).y
    apply(load(SHIFTED), x, w, running)  # reads it only
    y.sum().backward()
    w.grad = None
    y = apply(load(SHIFTED), x, w, running).y
    apply(load(CENTRED), x, w, running.detach())
    with pytest.raises(RuntimeError, match="r was changed in place after shifted saved it"):
        y.sum().backward()
    apply(load(SHIFTED), x, w, running).y.sum().backward()
    np.testing.assert_allclose(w.grad, (x.data - running.data).sum(axis=0), rtol=1e-5, atol=1e-5)
