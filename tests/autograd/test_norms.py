"""Norms on the tape: any spec, what is kept, what is asked for, and composite graphs against float64."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.autograd import Tensor, apply, no_grad
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


def test_several_outputs_get_their_cotangents_in_one_call() -> None:
    norm = load("add_rmsnorm")
    x, residual, w = leaf(4, 8), leaf(4, 8, seed=1), leaf(8, seed=2)
    h, y = apply(norm, x, residual, w)
    (h * y).sum().backward()
    made = norm.forward(x.data, residual.data, w.data)
    expected = norm.backward(dh=made.y, dy=made.h, w=w.data, h=made.h, rstd=made.rstd)
    for got, want in ((x.grad, expected.dx), (residual.grad, expected.dresidual), (w.grad, expected.dw)):
        assert got is not None and (got == want).all()
    assert x.grad is not residual.grad


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
        assert each.grad is not None and each.grad.shape == each.shape
        for _ in range(4):
            direction = random.standard_normal(each.shape)
            sides = []
            for step in (1e-5, -1e-5):
                moved = list(wide)
                moved[position] = wide[position] + step * direction
                sides.append(value(moved))
            expected = (sides[0] - sides[1]) / 2e-5
            assert float((each.grad * direction).sum()) == pytest.approx(expected, rel=2e-4, abs=2e-4)


def test_a_left_out_param_an_array_and_a_number_are_constants() -> None:
    norm, x = load("dyt"), leaf(4, 8)
    expected = norm.forward(x.data, 0.5, b=draw(8)).y
    for alpha in (0.5, np.float32(0.5), np.array(0.5, f32), Tensor(0.5)):
        x.grad = None
        y = apply(norm, x, alpha, None, b=draw(8)).y
        assert (y.data == expected).all()
        y.sum().backward()
        assert x.grad is not None
    alpha = Tensor(0.5, requires_grad=True)
    apply(norm, x.data, alpha).y.sum().backward()
    assert alpha.grad is not None and alpha.grad.shape == () and alpha.grad.dtype == f32


def test_attrs_go_to_both_directions() -> None:
    norm, x, dy = load("l2norm"), leaf(4, 8), draw(4, 8, seed=1)
    y = apply(norm, x, eps=128.0).y  # longer than any row
    y.backward(dy)
    assert (y.data == x.data / 128).all() and (x.grad == dy / 128).all()


def test_nothing_is_copied_and_nothing_else_kept() -> None:
    norm, x, w = load("softmax"), leaf(4, 8), leaf(8)
    y = apply(norm, x).y
    (call,) = _pulls(y)
    assert call.read == {"y": call.read["y"]} and call.read["y"] is y.data
    scaled = apply(load("rmsnorm"), x, w).y
    (call,) = _pulls(scaled)
    assert call.read["x"] is x.data and call.read["w"] is w.data and set(call.read) == {"x", "w", "rstd"}
    assert call.wanted == ("x", "w")
    (call,) = _pulls(apply(load("rmsnorm"), x, w.data).y)
    assert call.wanted == ("x",)


def _pulls(tensor: Tensor) -> list[Any]:
    place: Any = tensor.place
    return [place.node.pull]


def test_operands_may_be_called_as_methods_of_tuples_are() -> None:
    x, count = leaf(4, 8), leaf(4, 8, seed=1)
    apply(
        load("norm counted\ninput x[..., D]\ninput count[..., D]\noutput y[..., D] = x * count\n"), x, count
    ).y.sum().backward()
    assert (x.grad == count.data).all() and (count.grad == x.data).all()


def test_results_require_grad_if_an_operand_does_and_recording_is_on() -> None:
    norm, x, w = load("rmsnorm"), leaf(4, 8), leaf(8)
    assert apply(norm, x, w.data).y.requires_grad and apply(norm, x.data, w).y.requires_grad
    assert not apply(norm, x.data, w.data).y.requires_grad
    assert not apply(norm, x.detach(), w.detach()).y.requires_grad
    with no_grad():
        assert not apply(norm, x, w).y.requires_grad


def test_a_result_written_over_is_noticed_where_it_is_kept() -> None:
    x = leaf(4, 8)
    y = apply(load("softmax"), x).y
    y.data *= f32(2)
    with pytest.raises(RuntimeError, match="y was changed in place after softmax kept it"):
        y.sum().backward()
    w = leaf(8)
    y = apply(load("rmsnorm"), x, w).y
    y.data *= f32(2)  # is not read
    y.sum().backward()
    y = apply(load("rmsnorm"), x, w).y
    x.data -= f32(1)
    with pytest.raises(RuntimeError, match="x was changed in place after rmsnorm kept it"):
        y.sum().backward()


def test_one_tensor_for_two_operands_gets_both_gradients() -> None:
    norm = load("qk_norm")
    q, w = leaf(4, 16), leaf(8, seed=1)
    for times in (1, 2):
        outputs = apply(norm, q, q, w, w)
        (outputs.qn * draw(4, 16, seed=2) + outputs.kn * draw(4, 16, seed=3)).sum().backward()
        made = norm.forward(q.data, q.data, w.data, w.data)
        known = {"q": q.data, "k": q.data, "wq": w.data, "wk": w.data, **made._asdict()}
        read = {name: known[name] for name in norm.backward_args if name in known}
        expected = norm.backward(dqn=draw(4, 16, seed=2), dkn=draw(4, 16, seed=3), **read)
        np.testing.assert_allclose(q.grad, times * (expected.dq + expected.dk), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w.grad, times * (expected.dwq + expected.dwk), rtol=1e-5, atol=1e-5)


def test_a_computed_param_used_twice_gathers_in_the_kernel_too() -> None:
    norm, w, scale = load("rmsnorm"), leaf(8), leaf(8, seed=1)
    rows = [draw(4, 8, seed=seed) for seed in (2, 3)]
    gain = w * scale
    first, second = (apply(norm, each, gain).y for each in rows)
    (first + second).sum().backward()
    terms = [leaf(8) for _ in rows]
    for each, term in zip(rows, terms, strict=True):
        term.data = gain.data.copy()
        apply(norm, each, term).y.sum().backward()
    total = terms[0].grad + terms[1].grad  # type: ignore[operator]
    np.testing.assert_allclose(w.grad, total * scale.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale.grad, total * w.data, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_the_caller_s_is_added_to_whatever_its_strides() -> None:
    norm, x, w = load("rmsnorm"), draw(4, 8), leaf(8)
    backing = np.zeros((8, 2), f32)
    w.grad = backing[:, 1]
    for _ in range(2):
        apply(norm, x, w).y.sum().backward()
    fresh = leaf(8)
    apply(norm, x, fresh).y.sum().backward()
    np.testing.assert_allclose(backing[:, 1], 2 * fresh.grad, rtol=1e-6)
    assert not backing[:, 0].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: apply(len, x), "expected a norm or a generated module, got builtin_function"),
        (lambda x: apply(load("rmsnorm"), x, out={}), r"out= is for rmsnorm\.forward"),
        (lambda x: apply(load("rmsnorm"), x, save=False), "save= is for"),
        (lambda x: apply(load("rmsnorm")), r"rmsnorm\.forward\(\) needs x"),
        (lambda x: apply(load("rmsnorm"), x, x, x), "takes 2 arrays"),
        (lambda x: apply(load("rmsnorm"), x, epsilon=1), "did you mean eps"),
        (lambda x: apply(load("rmsnorm"), x, eps=Tensor(1.0)), "eps must be a number"),
        (lambda x: apply(load("rmsnorm"), Tensor(np.ones((4, 8)))), "float64"),
        (lambda x: apply(load("rmsnorm"), [1.0]), "expected an array"),
        (lambda x: apply(load(PARTLY), x, leaf(8)), "partly has no gradient by x: give .detach"),
        (lambda x: apply(load(THROUGH), x), "through is differentiated through z, which"),
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


def test_a_generated_module_needs_no_compiler(tmp_path: Path) -> None:
    text = (Path(normgen.__file__).parent.parent / "specs" / "rmsnorm.norm").read_text()
    (tmp_path / "rms.py").write_text(normgen.compile_spec(text))
    code = """
import sys
import numpy as np
import rms
from normgen.autograd import Tensor, apply
x = Tensor(np.ones((2, 8), np.float32), requires_grad=True)
apply(rms, x).y.sum().backward()
assert x.grad.shape == (2, 8)
assert not {"normgen.ir", "normgen.dsl", "normgen.codegen", "lark", "jinja2", "torch"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
