"""Tensors whose memory does not hold their values: negatives that are put off, and zeros that are nowhere."""

from __future__ import annotations

import pytest

import normgen
from tests.torch.norms import functional, nt, torch

SHAPES = {"x": (3, 8), "w": (8,), "b": (8,), "dy": (3, 8)}
MAKERS = {
    "negative": lambda values: torch._neg_view(-values),
    "zeros": lambda values: torch._efficientzerotensor(values.shape, dtype=values.dtype),
    "negative zeros": lambda values: torch._neg_view(torch._efficientzerotensor(values.shape).to(values)),
    "conjugate": lambda values: torch.complex(values.float(), -values.float()).conj().imag.to(values.dtype),
}


def _outcome(function, dy, **operands):
    """The result and all gradients."""
    given = {name: tensor.detach().requires_grad_() for name, tensor in operands.items()}
    y = function(*given.values())
    return y, *torch.autograd.grad(y, tuple(given.values()), dy)


def _layer(x, w, b):
    return functional.layer_norm(x, (8,), w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("place", SHAPES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_values_of_a_tensor_count_and_not_its_memory(make, place, dtype, load):
    norm = load("layernorm")
    plain = {name: torch.randn(shape).to(dtype) for name, shape in SHAPES.items()}
    lazy = {**plain, place: make(plain[place])}
    solid = {**lazy, place: torch.zeros_like(plain[place]) + lazy[place]}
    for given in (solid, lazy, solid, lazy):  # calls of both are known the second time
        want, got = _outcome(_layer, **solid), _outcome(norm, **given)
        tolerance = 1e-12 if dtype is torch.float64 else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got, want, atol=10 * tolerance, rtol=10 * tolerance)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_imaginary_parts_of_conjugates(dtype):
    x = torch.view_as_complex(torch.randn(3, 8, 2)).to(dtype).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(nt.load("softmax")(x), functional.softmax(x, -1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("make", [MAKERS["negative"], MAKERS["zeros"]])
def test_states_that_cannot_be_written_are_refused(make):
    norm, mean = nt.load("batchnorm"), make(torch.zeros(8))
    with pytest.raises(RuntimeError, match=r"^state running_mean is updated in place, but its memory"):
        norm(torch.randn(3, 8), running_mean=mean, running_var=torch.ones(8))


def test_norms_of_arrays_refuse_them():
    norm = normgen.load("rmsnorm")
    x = torch.randn(3, 8)
    for given in (x, torch._neg_view(x), torch._efficientzerotensor((3, 8))):
        if given is x:
            assert norm.forward(given).y.isfinite().all()  # the short way knows this call
            continue
        with pytest.raises(TypeError, match="its memory does not hold its values"):
            norm.forward(given)


def test_norms_of_arrays_refuse_tensors_without_memory():
    """Fake ones among them, whose addresses are none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    norm, x = normgen.load("softmax"), torch.randn(3, 8)
    for _ in range(2):  # the second time by the short way
        norm.forward(x)
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(x)
        with pytest.raises(TypeError, match="a FakeTensor has no values in memory"):
            norm.forward(fake)
    assert norm.forward(torch.nn.Parameter(x, requires_grad=False)).y.shape == (3, 8)
