"""Norms as functions of tensors: values, gradients, transforms and compilers, on the CPU."""

from __future__ import annotations

import torch

import normgen.torch as nt

functional = torch.nn.functional


def _same(got, want, tolerance=2e-6):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_a_norm_is_differentiable():
    norm = nt.load("rmsnorm")
    x, w = torch.randn(4, 64, requires_grad=True), torch.rand(64, requires_grad=True)
    got, want = norm(x, w, eps=1e-5), functional.rms_norm(x, (64,), w, 1e-5)
    _same(got, want)
    gradients = (torch.autograd.grad(each.sin().sum(), (x, w)) for each in (got, want))
    for mine, theirs in zip(*gradients, strict=True):
        _same(mine, theirs)


def test_states_are_updated_in_place_and_their_versions_counted():
    norm = nt.load("batchnorm")
    x = torch.randn(4, 6, 5)
    mean, var, their_mean, their_var = torch.zeros(6), torch.ones(6), torch.zeros(6), torch.ones(6)
    got = norm(x, running_mean=mean, running_var=var, momentum=0.1)
    _same(got, functional.batch_norm(x, their_mean, their_var, training=True, momentum=0.1))
    _same(mean, their_mean)
    _same(var, their_var)
    assert mean._version == var._version == 1


def test_several_outputs_are_a_named_tuple_and_saves_are_asked_for():
    norm = nt.load("add_rmsnorm")
    x = torch.randn(3, 8)
    assert norm(x, x)._fields == ("h", "y")
    assert norm.with_saved(x, x)._fields == ("h", "y", "rstd")


def test_float64_is_computed_by_the_spec():
    norm = nt.load("layernorm")
    x, w, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 7), (7,), (7,)))
    assert torch.autograd.gradcheck(norm, (x, w, b))


def test_samples_of_a_vmap_have_gradients_of_their_own():
    norm = nt.load("rmsnorm")
    x, w = torch.randn(3, 2, 8), torch.rand(8)
    gradient = torch.func.grad(lambda w, x: norm(x, w).sin().sum())
    got = torch.vmap(gradient, in_dims=(None, 0))(w, x)
    _same(got, torch.stack([gradient(w, each) for each in x]))
