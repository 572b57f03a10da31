"""Norms under `torch.func`, in eager mode and compiled: PyTorch's results, in as few calls as can be."""

from __future__ import annotations

import pytest

from normgen.torch.steps import Step
from tests.torch.norms import functional, nt, same, torch

func = torch.func
_rms, _groups = nt.load("rmsnorm"), nt.load("groupnorm", groups=2)


def _their_rms(x, w):
    return functional.rms_norm(x, (8,), w, 1e-6)


def _group(x, w):
    return _groups(x.reshape(-1, 4, 2), w).reshape(x.shape)


def _their_group(x, w):
    return functional.group_norm(x.reshape(-1, 4, 2), 2, w).reshape(x.shape)


# Each a function of a norm, an x with two dimensions in front that may be batched, and weights.
TRANSFORMS = {
    "vmap": lambda norm, x, w: func.vmap(norm, (0, None))(x, w),
    "vmap of another dimension": lambda norm, x, w: func.vmap(norm, (1, None), out_dims=1)(x, w),
    "vmap to the last": lambda norm, x, w: func.vmap(norm, (0, 0), out_dims=-1)(x, torch.stack([w, -w, w])),
    "vmap of weights": lambda norm, x, w: func.vmap(norm, (None, 1))(x[0], torch.stack([w, w + 1], 1)),
    "vmap of vmap": lambda norm, x, w: func.vmap(func.vmap(norm, (0, None)), (1, None), out_dims=1)(x, w),
    "grad": lambda norm, x, w: func.grad(lambda x, w: norm(x, w).sin().sum(), (0, 1))(x[0], w),
    "vjp": lambda norm, x, w: func.vjp(norm, x[0], w)[1](x[0].cos()),
    "jacrev": lambda norm, x, w: func.jacrev(norm, (0, 1))(x[0], w),
    "grad of vmap": lambda norm, x, w: func.grad(
        lambda x, w: func.vmap(norm, (0, None))(x, w).sin().sum(), (0, 1)
    )(x, w),
    "gradients of samples": lambda norm, x, w: func.vmap(
        func.grad(lambda w, x: norm(x, w).sin().sum(), (0, 1)), (None, 0)
    )(w, x),
    "vmap of pullbacks": lambda norm, x, w: func.vmap(func.vjp(norm, x[0], w)[1])(x[:, 0].expand_as(x)),
}
NORMS = {
    "rmsnorm": (_rms, _their_rms, (3, 3, 8), 8),
    "groupnorm": (_group, _their_group, (3, 3, 3, 4, 2), 4),
}


@pytest.fixture
def calls(monkeypatch):
    """The names of the steps that run."""
    names = []
    run = Step.run

    def noted(self, *arguments):
        names.append(self.name)
        return run(self, *arguments)

    monkeypatch.setattr(Step, "run", noted)
    return names


def _operands(shape, channels):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(shape, generator=generator), torch.rand(channels, generator=generator) + 0.5


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_transforms_have_the_results_of_pytorch(norm, name):
    mine, theirs, shape, channels = NORMS[norm]
    x, w = _operands(shape, channels)
    same(TRANSFORMS[name](mine, x, w), TRANSFORMS[name](theirs, x, w))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_compiled(name):
    torch._dynamo.reset()
    transform, (x, w) = TRANSFORMS[name], _operands((3, 3, 8), 8)
    compiled = torch.compile(lambda x, w: transform(_rms, x, w), fullgraph=True, backend="aot_eager")
    same(compiled(x, w), transform(_their_rms, x, w))


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_that_an_axis_takes_is_one_call(norm, calls):
    mine, _, shape, channels = NORMS[norm]
    x, w = _operands(shape, channels)
    for name in ("vmap", "vmap of another dimension", "vmap of vmap"):
        TRANSFORMS[name](mine, x, w)
        assert len(calls) == 1, name
        calls.clear()
    TRANSFORMS["grad of vmap"](mine, x, w)
    assert len(calls) == 2


def test_weights_of_samples_take_a_call_for_each(calls):
    x, w = _operands((3, 8), 24)
    func.vmap(_rms)(x, w.reshape(3, 8))
    assert len(calls) == 3


def test_operators_are_batched_and_differentiated_themselves():
    operator = nt.load("rmsnorm").ops.forward
    x, w = _operands((3, 2, 8), 8)

    def norm(x, w):
        return operator(x, w, 1e-6, [True, False])[0]

    for name in ("vmap", "grad of vmap", "gradients of samples"):
        same(TRANSFORMS[name](norm, x, w), TRANSFORMS[name](_their_rms, x, w))


def test_states_of_samples_are_their_own():
    norm = nt.load("batchnorm")
    x, mean, var = torch.randn(3, 4, 6, 5), torch.zeros(3, 6), torch.ones(3, 6)
    got = func.vmap(lambda x, m, v: norm(x, running_mean=m, running_var=v))(x, mean, var)
    for sample, y, m, v in zip(x, got, mean, var, strict=True):
        want_mean, want_var = torch.zeros(6), torch.ones(6)
        same(y, functional.batch_norm(sample, want_mean, want_var, training=True))
        same((m, v), (want_mean, want_var))


def test_samples_do_not_share_a_state():
    norm = nt.load("batchnorm")
    mean, var = torch.zeros(6), torch.ones(6)
    with pytest.raises(RuntimeError, match="running_mean, which all samples of this vmap share"):
        func.vmap(lambda x: norm(x, running_mean=mean, running_var=var))(torch.randn(3, 4, 6, 5))
