"""Norms with states on the tape: they pass through, are updated in place and never differentiated."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from normgen.autograd import Tensor, apply, no_grad
from tests.autograd.drawing import draw, leaf
from tests.autograd.stubs import centred

f32 = np.float32


@pytest.mark.parametrize("wrap", [Tensor, lambda array: array], ids=["tensor", "array"])
def test_states_are_updated_in_place_and_gradients_go_around_them(wrap: Any) -> None:
    norm, _ = centred()
    x, w, running = leaf(6, 8), leaf(8, seed=1), np.ones(8, f32)
    outputs = apply(norm, x, w, wrap(running))
    assert outputs._fields == ("y",) and type(outputs).__name__ == "CentredOutputs"
    mean = x.data.mean(axis=0)
    np.testing.assert_allclose(running, 0.75 + 0.25 * mean, rtol=1e-6)
    np.testing.assert_allclose(outputs.y.data, (x.data - mean) * w.data, rtol=1e-6, atol=1e-6)
    dy = draw(6, 8, seed=2)
    outputs.y.backward(dy)
    np.testing.assert_allclose(x.grad, (dy - dy.mean(axis=0)) * w.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(w.grad, (dy * (x.data - mean)).sum(axis=0), rtol=1e-5, atol=1e-5)


def test_states_are_updated_without_a_tape_too_and_may_be_left_out() -> None:
    norm, executor = centred()
    running = Tensor(np.zeros(8, f32))
    with no_grad():
        outputs = apply(norm, leaf(6, 8), leaf(8), running)
    assert not outputs.y.requires_grad and running.data.any()
    (_, touched, _) = executor.calls[-1]
    assert "mu" not in touched and "r" in touched  # no save where no backward comes
    apply(norm, leaf(6, 8), leaf(8))
    assert "r" not in executor.calls[-1][1]


def test_a_state_requires_no_grad() -> None:
    norm, executor = centred()
    state = Tensor(np.zeros(8, f32), requires_grad=True)
    with pytest.raises(TypeError, match=r"r is a state of centred.*give \.detach\(\)"):
        apply(norm, draw(6, 8), leaf(8), state)
    assert not executor.calls
    apply(norm, draw(6, 8), leaf(8), state.detach())
    assert state.data.any() and state.grad is None


def test_a_state_that_a_backward_reads_may_not_be_updated_before_it() -> None:
    train, _ = centred()
    evaluate, _ = centred(training=False)
    x, w, running = leaf(6, 8), leaf(8, seed=1), Tensor(np.zeros(8, f32))
    y = apply(evaluate, x, w, running).y
    apply(evaluate, x, w, running)  # reads it only
    y.sum().backward()
    w.grad = None
    y = apply(evaluate, x, w, running).y
    apply(train, x, w, running.detach())
    with pytest.raises(RuntimeError, match="r was changed in place after centred kept it"):
        y.sum().backward()
    apply(evaluate, x, w, running).y.sum().backward()
    np.testing.assert_allclose(w.grad, (x.data - running.data).sum(axis=0), rtol=1e-5, atol=1e-5)


def test_params_accumulate_in_the_kernel_and_inputs_are_overwritten() -> None:
    norm, executor = centred()
    x, w = leaf(6, 8), leaf(8, seed=1)
    for _ in range(3):
        apply(norm, x, w).y.backward(draw(6, 8, seed=2))
    added = [call[2] for call in executor.calls if call[0] == "g"]
    assert added == [frozenset(), {"dw"}, {"dw"}]
    once = leaf(8, seed=1)
    apply(norm, x.data, once).y.backward(draw(6, 8, seed=2))
    np.testing.assert_allclose(w.grad, 3 * once.grad, rtol=1e-6)


def test_only_what_requires_grad_is_asked_for() -> None:
    norm, executor = centred()
    for x, w, wanted in (
        (leaf(6, 8), draw(8), {"dx"}),
        (draw(6, 8), leaf(8), {"dw"}),
        (leaf(6, 8), leaf(8), {"dx", "dw"}),
    ):
        apply(norm, x, w).y.backward(draw(6, 8, seed=2))
        assert executor.calls[-1][1] & {"dx", "dw"} == wanted


def test_walks_that_share_leaves_take_turns() -> None:
    norm, executor = centred()
    x, w = draw(6, 8), leaf(8)
    apply(norm, x, w).y.sum().backward()
    once = w.grad.copy()  # type: ignore[union-attr]
    executor.seconds = 0.01  # enough for two to read the same sum
    graphs = [apply(norm, x, w).y.sum() for _ in range(8)]
    threads = [threading.Thread(target=graph.backward) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(w.grad, 9 * once, rtol=1e-5)
