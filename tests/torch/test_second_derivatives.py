"""Derivatives of gradients: by kernels and in float64, for every bundled spec and for generated modules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import normgen.torch as nt  # noqa: E402
from tests.generated import generated  # noqa: E402
from tests.torch.drawing import differentiable_variants, example, label  # noqa: E402


@pytest.mark.parametrize("variant", differentiable_variants(), ids=label)
def test_derivatives_of_gradients_are_those_of_differences(variant):
    case = example(variant, "f64", rows=2, width=4)
    assert torch.autograd.gradgradcheck(case.call, case.required())


@pytest.mark.parametrize("variant", differentiable_variants(), ids=label)
def test_kernels_of_second_derivatives_agree_with_float64(variant):
    case = example(variant, "f32")
    tensors = case.required()
    exact = [t.detach().double().requires_grad_(t.requires_grad) if _open(t) else t for t in tensors]
    for mine, theirs in zip(_second(case, tensors), _second(case, exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-4)


def _open(tensor):
    return tensor.dtype is torch.float32


def _second(case, tensors):
    """The gradients of a number that is made of gradients."""
    wrt = [tensor for tensor in tensors if tensor.requires_grad]
    outputs = case.call(*(tensor.clone() for tensor in tensors))
    first = torch.autograd.grad(sum(each.sin().sum() for each in outputs), wrt, create_graph=True)
    return torch.autograd.grad(sum(each.sin().sum() for each in first), wrt, materialize_grads=True)


def test_a_generated_module_has_every_order_too():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(nt.load(generated("rmsnorm")), (x,))


SAVER = """norm saver "Its backward reads what it saves in place of x."
input x[..., D]
param w[D] = 1
save t[..., D] = tanh(x)
save unread[...] = mean[D](x)
output y[..., D] = t * w + unread
"""


def test_a_save_counts_as_the_function_of_operands_that_it_is():
    function = nt.load(SAVER)
    backward = function._step.derive().step
    assert "x" not in backward.direction.reads
    x, w = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3), (3,)))
    assert torch.autograd.gradgradcheck(function, (x, w))
    got, want = (_curvature(function, x.to(dtype), w.to(dtype)) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def _curvature(function, x, w):
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(function(x, w).sin().sum(), x, create_graph=True)
    return torch.autograd.grad(first.sin().sum(), x)[0]


def test_what_is_left_out_and_gradients_that_nobody_wants_stay_out_of_the_second_derivative():
    function = nt.load("layernorm")
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, b: function(x, b=b), (x, b))


def test_threads_that_ask_at_once_compile_a_derivative_once():
    function = nt.load(SAVER.replace("saver", "saver_of_threads"))
    x, w = torch.randn(2, 3), torch.randn(3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _curvature(function, x, w), range(8)))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("params", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_second_derivatives_have_the_element_types_of_operands(dtype, params):
    norm = nt.load("layernorm")
    exact = [torch.randn(3, 8).to(dtype).double(), torch.rand(8).to(params).double()]
    found = []
    for kinds in ((dtype, params), (torch.float64, torch.float64)):
        given = [each.to(kind).requires_grad_() for each, kind in zip(exact, kinds, strict=True)]
        first = torch.autograd.grad(norm(*given).double().sin().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(sum(each.double().sin().sum() for each in first), given))
    assert [each.dtype for each in found[0]] == [dtype, params]
    for mine, want in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=0.05, atol=0.05)
