"""Norms under `torch.func` and in forward mode, eager and compiled: PyTorch's results, in as few calls as can
be."""

from __future__ import annotations

import pytest

from tests.torch.norms import batch, group, nt, rms, same, torch

func, forward_ad = torch.func, torch.autograd.forward_ad
_layer = nt.load("layernorm")


def _grouped(norm):
    return lambda x, w: norm(x.reshape(-1, 4, 2), w).reshape(x.shape)


def _plain_layer(x, w):
    """Not PyTorch's own, which takes statistics for constants in the derivative of its derivative."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


# Ours, PyTorch's, the shape of an x with two dimensions in front that may be batched, the length of a weight.
RMS = nt.load("rmsnorm"), rms, (3, 3, 8), 8
GROUP = _grouped(nt.load("groupnorm", groups=2)), _grouped(group), (3, 3, 3, 4, 2), 4
LAYER = lambda x, w: _layer(x, w), _plain_layer, (3, 3, 8), 8
NORMS = {"rmsnorm": RMS, "groupnorm": GROUP, "layernorm": LAYER}


def _tangent(norm, primals, tangents):
    return func.jvp(norm, primals, tangents)[1]


def _scalar(norm):
    return lambda *operands: norm(*operands).sin().sum()


# Each a function of a norm, x and w.
BACKWARD = {
    "vmap": lambda norm, x, w: func.vmap(norm, (0, None))(x, w),
    "vmap of another dimension": lambda norm, x, w: func.vmap(norm, (1, None), out_dims=1)(x, w),
    "vmap to the last": lambda norm, x, w: func.vmap(norm, (0, 0), out_dims=-1)(x, torch.stack([w, -w, w])),
    "vmap of weights": lambda norm, x, w: func.vmap(norm, (None, 1))(x[0], torch.stack([w, w + 1], 1)),
    "vmap of vmap": lambda norm, x, w: func.vmap(func.vmap(norm, (0, None)), (1, None), out_dims=1)(x, w),
    "jacrev": lambda norm, x, w: func.jacrev(norm, (0, 1))(x[0], w),
    "grad of vmap": lambda norm, x, w: func.grad(_scalar(func.vmap(norm, (0, None))), (0, 1))(x, w),
    "gradients of samples": lambda norm, x, w: func.vmap(func.grad(_scalar(norm), (0, 1)), (0, None))(x, w),
    "vmap of pullbacks": lambda norm, x, w: func.vmap(func.vjp(norm, x[0], w)[1])(x[:, 0].expand_as(x)),
}
FORWARD = {
    "jvp": lambda norm, x, w: func.jvp(norm, (x[0], w), (x[1], w.cos())),
    "jacfwd": lambda norm, x, w: func.jacfwd(norm, (0, 1))(x[0], w),
    "hessian": lambda norm, x, w: func.hessian(_scalar(norm), (0, 1))(x[0, :1], w),
    "vmap of jvp": lambda norm, x, w: func.vmap(lambda t: _tangent(norm, (x[0], w), (t, w.cos())))(x[1:]),
    "grad of jvp": lambda norm, x, w: func.grad(
        _scalar(lambda x, w: _tangent(norm, (x, w), (x.cos(), w.cos()))), (0, 1)
    )(x[0], w),
    "jvp of grad": lambda norm, x, w: func.jvp(func.grad(_scalar(norm), (0, 1)), (x[0], w), (x[1], w.cos())),
    "jvp of jvp": lambda norm, x, w: func.jvp(
        lambda *o: _tangent(norm, o, (x[1], w.cos())), (x[0], w), (x[2], w.sin())
    ),
}
TRANSFORMS = BACKWARD | FORWARD


def _operands(shape=RMS[2], channels=RMS[3]):
    return torch.randn(shape), torch.rand(channels) + 0.5


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_transforms_have_the_results_of_pytorch(norm, name):
    mine, theirs, *shapes = NORMS[norm]
    x, w = _operands(*shapes)
    same(TRANSFORMS[name](mine, x, w), TRANSFORMS[name](theirs, x, w), 2e-4 if name in FORWARD else 1e-5)


@pytest.mark.parametrize("name", [*BACKWARD, "jvp"])
def test_transforms_are_compiled(name):
    transform, (x, w) = TRANSFORMS[name], _operands()
    compiled = torch.compile(lambda x, w: transform(RMS[0], x, w), fullgraph=True, backend="aot_eager")
    same(compiled(x, w), transform(rms, x, w))


@pytest.mark.parametrize("norm", (RMS, GROUP))
def test_a_batch_that_an_axis_takes_is_one_call(norm, in_python, runs):
    mine, _, *shapes = norm
    for name in ("vmap", "vmap of another dimension", "vmap of vmap", "grad of vmap"):
        runs.clear()
        TRANSFORMS[name](mine, *_operands(*shapes))
        assert len(runs) == 1 + (name == "grad of vmap"), name


def test_weights_of_samples_take_a_call_for_each(in_python, runs):
    func.vmap(RMS[0])(torch.randn(3, 8), torch.randn(3, 8))
    assert len(runs) == 3


def test_operators_are_batched_and_differentiated_themselves():
    for name in ("vmap", "grad of vmap", "gradients of samples"):
        transform, operands = TRANSFORMS[name], _operands()
        mine = transform(lambda x, w: RMS[0].ops.forward(x, w, 1e-6, [True, False])[0], *operands)
        same(mine, transform(rms, *operands))


def test_states_of_samples_are_their_own():
    norm = nt.load("batchnorm")
    x, mean, var = torch.randn(3, 4, 6, 5), torch.zeros(3, 6), torch.ones(3, 6)
    got = func.vmap(lambda x, m, v: norm(x, running_mean=m, running_var=v))(x, mean, var)
    for sample, y, m, v in zip(x, got, mean, var, strict=True):
        states = torch.zeros(6), torch.ones(6)
        same(y, batch(sample, None, None, *states))
        same((m, v), states)
    with pytest.raises(RuntimeError, match="running_mean in place, but all samples of vmap share it"):
        func.vmap(lambda x: norm(x, running_mean=mean[0], running_var=var[0]))(x)


def test_dual_tensors_that_need_no_gradient_have_tangents():
    found, (x, w) = [], _operands()
    for norm in RMS[:2]:
        with forward_ad.dual_level(), torch.no_grad():
            found.append(forward_ad.unpack_dual(norm(forward_ad.make_dual(x, x.cos()), w)).tangent)
    same(*found)
