"""Tensors whose memory does not hold their values: negatives that are put off, and zeros that are nowhere;
and lazy clones, whose memory is that of others until one of them is written."""

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
        with pytest.raises(TypeError, match="a FakeTensor has no data"):
            norm.forward(fake)
    assert norm.forward(torch.nn.Parameter(x, requires_grad=False)).y.shape == (3, 8)


STATES = """norm two_states "Each result reads what is written."
input  x[B, C]
param  w[C] = 1
state  s[C]: f32
state  t[C]: f32
output y[B, C] = x * w + s
update s = s + sum[B](x)
update t = t * 2
"""
XDY, WST = torch.arange(12.0).view(3, 4), torch.arange(4.0)


def _lazy(tensors):
    """Clones that share memory with what they are of."""
    return [torch._lazy_clone(tensor) for tensor in tensors]


def _is_lazy(*tensors):
    return [torch._C._is_cow_tensor(tensor) for tensor in tensors]


def _arrays(norm):
    return lambda x, w, s, t: norm.norm.forward(x, w, s, t).y


def _planned(norm):
    return lambda *given: norm.norm.plan("forward", *[each.clone() for each in given])(*given).y


WAYS = {
    "a call": lambda norm: norm,
    "a call that is recorded": lambda norm: lambda x, w, s, t: norm(x, w.requires_grad_(), s, t),
    "compiled": lambda norm: torch.compile(norm, backend="aot_eager", fullgraph=True),
    "arrays": _arrays,
    "arrays by name": lambda norm: lambda x, w, s, t: norm.norm.forward(x, w, t=t, s=s).y,
    "a plan": _planned,
}


@pytest.mark.parametrize("way", WAYS)
def test_lazy_clones_are_read_as_such_and_written_as_tensors_of_their_own(way, load):
    norm = load(STATES)
    call = WAYS[way](norm)
    for _ in range(3):
        own = [XDY.clone(), WST.clone(), WST + 1, WST + 2]
        before = [each.clone() for each in own]
        x, w, s, t = lazy = _lazy(own)
        y = call(*lazy)
        torch.testing.assert_close([s, t], [before[2] + XDY.sum(0), before[3] * 2], atol=0, rtol=0)
        torch.testing.assert_close(y.detach(), XDY * WST + before[2], atol=0, rtol=0)
        torch.testing.assert_close(own, before, atol=0, rtol=0)
        assert _is_lazy(x, w, s, t) == [True, True, False, False]


def test_backwards_read_lazy_clones_as_such(load):
    norm = load("layernorm")
    for _ in range(3):
        x, w, b, dy = lazy = _lazy([XDY, WST, WST, XDY])
        found = torch.autograd.grad(norm(*[each.requires_grad_() for each in (x, w, b)]), (x, w, b), dy)
        assert _is_lazy(*lazy) == [True] * 4
        plain = [each.detach().clone().requires_grad_() for each in (x, w, b)]
        want = torch.autograd.grad(functional.layer_norm(plain[0], (4,), *plain[1:]), plain, XDY)
        torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)


def test_results_given_as_lazy_clones_are_written_alone():
    norm = normgen.load("softmax")
    for _ in range(3):
        kept = XDY.clone()
        (out,) = _lazy([kept])
        norm.forward(XDY, out={"y": out})
        assert torch.equal(kept, XDY)
        torch.testing.assert_close(out, XDY.softmax(-1))
