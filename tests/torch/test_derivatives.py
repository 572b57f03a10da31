"""Gradients and directional derivatives of every bundled spec against differences, and what has none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import normgen.torch as nt  # noqa: E402
from tests.torch.drawing import CONSTANT, differentiable_variants, example, label, variants  # noqa: E402


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
@pytest.mark.parametrize("variant", differentiable_variants(), ids=label)
def test_gradients_are_those_of_differences(variant):
    case = example(variant, "f64", rows=2, width=4)
    tensors = case.required()
    assert any(tensor.requires_grad for tensor in tensors)
    assert torch.autograd.gradcheck(case.call, tensors, check_forward_ad=True)


@pytest.mark.parametrize("name", ["rmsnorm", "add_rmsnorm", "softmax"])
def test_gradients_and_their_derivatives_come_in_batches(name):
    case = example((name, {}), "f64", rows=2, width=3)
    assert torch.autograd.gradcheck(case.call, case.required(), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(case.call, case.required(), check_batched_grad=True)


@pytest.mark.parametrize("variant", [v for v in variants() if v[0] in CONSTANT], ids=label)
def test_outputs_of_what_has_no_derivative_require_none(variant):
    case = example(variant)
    made = case.function(*case.required(), **case.named)
    assert not any(each.requires_grad for each in made)


def test_quantised_outputs_require_no_gradient_beside_one_that_does():
    x = torch.randn(3, 8, requires_grad=True)
    made = nt.load("rmsnorm_quantized_row")(x)
    assert {name: each.requires_grad for name, each in made._asdict().items()} == {
        "y": True, "scale": False, "q": False,
    }  # fmt: skip


def test_what_rounds_on_purpose_has_the_derivative_of_the_spec():
    """Differences cannot see a straight-through derivative: the reference has the same."""
    import normgen

    text = """norm coarse "Halved, and rounded on the way."
input x[..., D]
param w[D] = 1
output y[..., D] = bf16(x * x) * w
"""
    x, w = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (5,)))
    cotangent = torch.randn(3, 5, dtype=torch.float64)
    got = torch.autograd.grad(nt.load(text)(x, w), (x, w), cotangent)
    want = normgen.load(text).reference.backward(cotangent.numpy(), x.detach().numpy(), w.detach().numpy())
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, torch.from_numpy(theirs))
