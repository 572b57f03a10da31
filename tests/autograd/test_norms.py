"""Norms on the tape: any spec, what is kept, what is asked for, and composite graphs against float64."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normgen
from examples.autograd import Tensor, apply, no_grad
from tests.autograd.drawing import draw, leaf, load
from tests.threads import at_once

pytestmark = pytest.mark.kernels

f32 = np.float32
PARTLY = """norm partly
input  x[..., D]
param  w[D] = 1
save   top[...] = max[D](x)
output y[..., D] = (x - top) * w
grad   y wrt w
"""
THROUGH = """norm through
input  x[..., D]
save   rstd[...] = rsqrt(mean[D](x^2) + 1)
let    z[..., D] = x * rstd
output q[..., D]: f8e4m3 = z
grad   z wrt x
"""


def composite(call: Callable[..., Any], x: Any, residual: Any, w: Any, v: Any, g: Any, b: Any, t: Any) -> Any:
    """Two layers of everything: w and x are used more than once."""
    first = call("rmsnorm", x, w, eps=1e-5).y
    h, second = call("add_rmsnorm", first, residual, w, eps=1e-4)[:2]
    third = call("layernorm", second * first + x, g, b).y
    shares = call("softmax", third.reshape(6, 8)).y
    return (shares @ v * t).sum() + (call("layernorm", h, g).y * residual).sum() * 0.5


def test_a_composite_graph_against_differences_in_float64() -> None:
    shapes = ((2, 3, 8), (2, 3, 8), (8,), (8, 4), (8,), (8,), (6, 4))
    leaves = [leaf(*shape, seed=i) for i, shape in enumerate(shapes)]
    loss = composite(lambda name, *given, **more: apply(load(name), *given, **more), *leaves)
    loss.backward()

    def value(arrays: list[Any]) -> float:
        return float(
            composite(lambda name, *given, **more: load(name).reference.forward(*given, **more), *arrays)
        )

    wide = [each.data.astype(np.float64) for each in leaves]
    assert loss.item() == pytest.approx(value(wide), rel=1e-5)
    random = np.random.default_rng(5)
    for position, each in enumerate(leaves):
        before, after = wide[:position], wide[position + 1 :]
        assert each.grad is not None and each.grad.shape == each.shape
        for _ in range(4):
            direction = random.standard_normal(each.shape)
            sides = [value([*before, wide[position] + step * direction, *after]) for step in (1e-5, -1e-5)]
            expected = (sides[0] - sides[1]) / 2e-5
            assert float((each.grad * direction).sum()) == pytest.approx(expected, rel=2e-4, abs=2e-4)


def test_a_left_out_param_an_array_and_a_number_are_constants() -> None:
    norm, x = load("dyt"), leaf(4, 8)
    expected = norm.forward(x.data, 0.5, b=draw(8)).y
    for alpha in (0.5, np.float32(0.5), np.array(0.5, f32), Tensor(0.5)):
        y = apply(norm, x, alpha, None, b=draw(8)).y
        assert (y.data == expected).all() and y.requires_grad
    alpha = Tensor(0.5, requires_grad=True)
    apply(norm, x.data, alpha).y.sum().backward()
    assert alpha.grad is not None and alpha.grad.shape == () and alpha.grad.dtype == f32


def test_attrs_go_to_both_directions() -> None:
    norm, x, dy = load("l2norm"), leaf(4, 8), draw(4, 8, seed=1)
    y = apply(norm, x, eps=128.0).y  # longer than any row
    y.backward(dy)
    assert (y.data == x.data / 128).all() and (x.grad == dy / 128).all()


def test_nothing_is_copied_and_nothing_else_kept() -> None:
    norm, x, w = load("rmsnorm"), leaf(4, 8), leaf(8)
    y = apply(load("softmax"), x).y
    call = _pull(y)
    assert call.read.keys() == {"y"} and call.read["y"] is y.data
    call = _pull(apply(norm, x, w).y)
    assert call.read["x"] is x.data and call.read["w"] is w.data and set(call.read) == {"x", "w", "rstd"}
    assert call.wanted == ("x", "w")
    assert _pull(apply(norm, x, w.data).y).wanted == ("x",)
    assert _pull(apply(norm, x.data, w).y).wanted == ("w",)
    assert not apply(norm, x.data, w.detach()).y.requires_grad
    with no_grad():
        assert not apply(norm, x, w).y.requires_grad


def _pull(tensor: Tensor) -> Any:
    place: Any = tensor.place
    return place.node.pull


def test_operands_may_be_called_as_methods_of_tuples_are() -> None:
    norm, x, count = load("norm counted\ninput count[D]\noutput y[D] = 2 * count\n"), leaf(8), leaf(8)
    apply(norm, count).y.backward(x.data)
    assert (count.grad == 2 * x.data).all()


def test_a_result_written_over_is_noticed_where_it_is_kept() -> None:
    x = leaf(4, 8)
    y = apply(load("softmax"), x).y
    y.data *= f32(2)
    with pytest.raises(RuntimeError, match="y was changed in place after softmax saved it"):
        y.sum().backward()
    w = leaf(8)
    y = apply(load("rmsnorm"), x, w).y
    y.data *= f32(2)  # is not read
    y.sum().backward()
    y = apply(load("rmsnorm"), x, w).y
    x.data -= f32(1)
    with pytest.raises(RuntimeError, match="x was changed in place after rmsnorm saved it"):
        y.sum().backward()


def test_one_tensor_for_two_operands_gets_both_gradients() -> None:
    norm, q, w = load("qk_norm"), leaf(4, 16), leaf(8, seed=1)
    apart = [leaf(4, 16), leaf(4, 16), leaf(8, seed=1), leaf(8, seed=1)]
    for _ in range(2):  # what was there is added to
        for each in ((q, q, w, w), apart):
            outputs = apply(norm, *each)
            (outputs.qn * draw(4, 16, seed=2) + outputs.kn * draw(4, 16, seed=3)).sum().backward()
        one, two, three, four = (each.grad for each in apart)
        np.testing.assert_allclose(q.grad, one + two, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w.grad, three + four, rtol=1e-5, atol=1e-5)


def test_a_computed_param_used_twice_gathers_in_the_kernel_too() -> None:
    norm, w, scale = load("rmsnorm"), leaf(8), leaf(8, seed=1)
    gain, total = w * scale, np.zeros(8, f32)
    rows = [draw(4, 8, seed=seed) for seed in (2, 3)]
    first, second = (apply(norm, each, gain).y for each in rows)
    (first + second).sum().backward()
    for each in rows:
        term = Tensor(gain.data.copy(), requires_grad=True)
        apply(norm, each, term).y.sum().backward()
        total += term.grad
    np.testing.assert_allclose(w.grad, total * scale.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale.grad, total * w.data, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_the_caller_s_is_added_to_whatever_its_strides() -> None:
    norm, x, w, fresh = load("rmsnorm"), draw(4, 8), leaf(8), leaf(8)
    backing = np.zeros((8, 2), f32)
    w.grad = backing[:, 1]
    for each in (w, w, fresh):
        apply(norm, x, each).y.sum().backward()
    np.testing.assert_allclose(backing[:, 1], 2 * fresh.grad, rtol=1e-6)
    assert not backing[:, 0].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: apply(len, x), "expected a norm or a generated module, got builtin_function"),
        (lambda x: apply(load("rmsnorm"), x, out={}), r"does not take out=.*call rmsnorm\.forward"),
        (lambda x: apply(load("rmsnorm"), x, save=False), "does not take save="),
        (lambda x: apply(load("rmsnorm")), r"rmsnorm\.forward\(\) needs x"),
        (lambda x: apply(load("rmsnorm"), x, x, x), "takes at most 2 arrays"),
        (lambda x: apply(load("rmsnorm"), x, epsilon=1), "did you mean eps"),
        (lambda x: apply(load("rmsnorm"), x, eps=Tensor(1.0)), "eps must be a number"),
        (lambda x: apply(load("rmsnorm"), Tensor(np.ones((4, 8)))), "float64"),
        (lambda x: apply(load("rmsnorm"), [1.0]), "expected an array"),
        (lambda x: apply(load(PARTLY), x, leaf(8)), "partly has no gradient with respect to x: pass .detach"),
        (lambda x: apply(load(THROUGH), x), "gradients of through flow through z, which"),
    ],
)
def test_refusals(make: Callable[[Tensor], Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make(leaf(4, 8))


def test_threads_lose_no_gradient_and_no_grad_is_each_one_s_own() -> None:
    norm, w = load("rmsnorm"), leaf(8)
    x = draw(4, 8)
    apply(norm, x, w).y.sum().backward()
    once, w.grad = w.grad, None
    barrier = threading.Barrier(4)

    def record() -> None:
        barrier.wait()
        for _ in range(20):
            y = apply(norm, x, w).y
            assert y.requires_grad
            (y.sum() + (w * w).sum() * 0.0).backward()

    def record_nothing() -> None:
        with no_grad():
            barrier.wait()
            assert not apply(norm, x, w).y.requires_grad

    at_once(*[record] * 3, record_nothing)
    np.testing.assert_allclose(w.grad, 60 * once, rtol=1e-4)


def test_a_generated_module_that_is_in_the_cache_needs_no_compiler(tmp_path: Path) -> None:
    root = Path(normgen.__file__).parent.parent
    text = (root / "specs" / "rmsnorm.norm").read_text()
    (tmp_path / "rms.py").write_text(normgen.compile_spec(text))
    code = """
import sys
import numpy as np
import rms
from examples.autograd import Tensor, apply
x = Tensor(np.ones((2, 8), np.float32), requires_grad=True)
apply(rms, x).y.sum().backward()
assert x.grad.shape == (2, 8)
assert not {"normgen.ir", "normgen.dsl", "normgen.codegen", "lark", "jinja2", "torch"} & set(sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    for each in (code.partition("assert not")[0], code):
        command = [sys.executable, "-c", each]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
