"""Norms in forward mode: jvp, jacfwd, hessian and dual tensors, nested with what goes backward."""

from __future__ import annotations

import pytest

from tests.torch.norms import functional, nt, same, torch

func, forward_ad = torch.func, torch.autograd.forward_ad
_rms, _soft = nt.load("rmsnorm"), nt.load("softmax")
_groups, _layer = nt.load("groupnorm", groups=2), nt.load("layernorm")


def _plain_layer(x, w):
    """Not PyTorch's own, which takes statistics for constants in the derivative of its derivative."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


NORMS = {
    "rmsnorm": (lambda x, w: _rms(x, w), lambda x, w: functional.rms_norm(x, (6,), w, 1e-6), (2, 6)),
    "layernorm": (lambda x, w: _layer(x, w), _plain_layer, (2, 6)),
    "groupnorm": (lambda x, w: _groups(x, w), lambda x, w: functional.group_norm(x, 2, w), (2, 6, 2)),
    "softmax": (lambda x, w: _soft(x * w), lambda x, w: functional.softmax(x * w, -1), (2, 6)),
}


def _directional(norm, primals, tangents):
    return func.jvp(norm, primals, tangents)[1]


def _scalar(norm):
    return lambda *operands: norm(*operands).sin().sum()


# Functions of a norm, its operands and a direction.
TRANSFORMS = {
    "jvp": func.jvp,
    "jacfwd": lambda norm, o, t: func.jacfwd(norm, (0, 1))(*o),
    "hessian": lambda norm, o, t: func.hessian(_scalar(norm), (0, 1))(*o),
    "vmap of jvp": lambda norm, o, t: func.vmap(lambda x: _directional(norm, o, (x, t[1])))(
        torch.stack([t[0], o[0]])
    ),
    "grad of jvp": lambda norm, o, t: func.grad(lambda *o: _directional(norm, o, t).sin().sum(), (0, 1))(*o),
    "jvp of grad": lambda norm, o, t: func.jvp(func.grad(_scalar(norm), (0, 1)), o, t),
    "jvp of jvp": lambda norm, o, t: func.jvp(lambda *o: _directional(norm, o, t), o, t),
}


def _operands(shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)

    def draw(shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    return (draw(shape), draw((6,))), (draw(shape), draw((6,)))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_forward_mode_has_the_results_of_pytorch(norm, name):
    mine, theirs, shape = NORMS[norm]
    operands, tangents = _operands(shape)
    transform = TRANSFORMS[name]
    same(transform(mine, operands, tangents), transform(theirs, operands, tangents), 2e-4)


def test_forward_mode_is_compiled():
    mine, theirs, shape = NORMS["rmsnorm"]
    operands, tangents = _operands(shape)
    compiled = torch.compile(lambda o, t: func.jvp(mine, o, t), fullgraph=True, backend="aot_eager")
    same(compiled(operands, tangents), func.jvp(theirs, operands, tangents))


def test_dual_tensors_that_need_no_gradient_have_tangents():
    mine, theirs, shape = NORMS["rmsnorm"]
    (x, w), (t, _) = _operands(shape)
    found = []
    for norm in (mine, theirs):
        with forward_ad.dual_level(), torch.no_grad():
            found.append(forward_ad.unpack_dual(norm(forward_ad.make_dual(x, t), w)).tangent)
    same(*found)
