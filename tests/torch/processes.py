"""What each of two processes checks beside one (`gloo`): norms in DDP and FSDP, and of DTensors."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import torch
import torch.distributed as dist

import normgen
import normgen.torch as nt

WORLD = 2


class Block(torch.nn.Module):
    """A projection, a norm with a weight of its own, and another projection."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 16))
        self.norm = nt.load("rmsnorm")

    def forward(self, x):
        return self.second(self.norm(self.first(x), self.weight))


def _trained(wrap):
    """Gradients of a wrapped model by a share of a batch, beside those of one process."""
    torch.manual_seed(5)
    model, batch = Block(), torch.randn(2 * WORLD, 3, 8)
    plain = deepcopy(model)
    wrapped = wrap(model)
    for each, given in ((plain, batch), (wrapped, batch.chunk(WORLD)[dist.get_rank()])):
        each(given).sin().mean().backward()
    for found, want in zip(model.parameters(), plain.parameters(), strict=True):
        _same(getattr(found.grad, "full_tensor", lambda grad=found.grad: grad)(), want.grad)


def _same(got, want):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def ddp():
    _trained(torch.nn.parallel.DistributedDataParallel)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    _trained(lambda model: fully_shard(model, mesh=_mesh()))


@cache
def _mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (WORLD,))


def _shared(tensor, dim=None):
    """A tensor cut along a dimension, or replicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Replicate() if dim is None else Shard(dim)
    return distribute_tensor(tensor.detach(), _mesh(), (placement,))


def _dims(*tensors):
    """Along which dimension each is cut, None for those that are replicated."""
    return [getattr(each.placements[0], "dim", None) for each in tensors]


# No sum over a part of D is linear in what follows, and the length of ... is not that of a part of it.
SHARES = """norm shares
input  x[..., D]
let    e = exp(x)
output y[..., D] = e / sum[D](e) / size[...]
"""
# A norm, its attrs, the shapes of its operands; dimensions of x along which y is cut as x is, and one along
# which it is gathered.
CUT = (
    ("layernorm", {}, ((4, 2, 8), (8,), (8,)), (0, 1, 2), ()),
    ("groupnorm", {"groups": 3}, ((4, 6, 5), (6,), (6,)), (0, 1, 2), ()),
    ("groupnorm", {"groups": 2}, ((4, 6, 5), (6,), (6,)), (0, 1, 2), ()),
    ("batchnorm", {}, ((4, 6, 5), (6,), (6,)), (0, 1, 2), ()),
    ("instancenorm", {}, ((4, 6, 5), (6,), (6,)), (0, 1, 2), ()),
    ("softmax", {}, ((4, 2, 8),), (0, 1, 2), ()),
    ("local_response_norm", {}, ((4, 6, 5),), (0, 2), (1,)),
    (SHARES, {}, ((4, 2, 8),), (0, 1, 2), ()),
)


def what_a_norm_keeps_or_can_reduce_stays_cut():
    for name, attrs, shapes, kept, gathered in CUT:
        norm, operands = nt.load(name, **attrs), [torch.randn(shape).requires_grad_() for shape in shapes]
        for dim in (*kept, *gathered):
            shared = [_shared(each, None if place else dim) for place, each in enumerate(operands)]
            got, want = norm(*(each.requires_grad_() for each in shared)), norm(*operands)
            assert _dims(got) == [dim if dim in kept else None], (name, dim)
            cotangent = torch.randn_like(want)
            found = torch.autograd.grad(got, shared, _shared(cotangent, *_dims(got)))
            _same(got.full_tensor(), want)
            expected = torch.autograd.grad(want, operands, cotangent)
            _same([each.full_tensor() for each in found], list(expected))


def gradients_of_params_are_parts():
    ops, (x, w) = nt.load("rmsnorm").ops, (_shared(torch.randn(4, 8), 0), _shared(torch.rand(8)))
    with torch.no_grad():
        y, rstd = ops.forward(x, w, 1e-6, [True, True])
        dx, dw = ops.backward(y, x, w, rstd, 1e-6, [True, True])
    assert _dims(y, rstd, dx) == [0, 0, 0] and dw.placements[0].is_partial()


def wanted_results_are_told_apart():
    forward = nt.load("layernorm").ops.forward
    x, w = _shared(torch.randn(4, 8), 0), _shared(torch.rand(8))
    with torch.no_grad():
        for mask in ([True, False, False], [True, True, True], [False, True, False]):
            made = forward(x, w, None, 1e-5, mask)
            assert [each is not None for each in made] == mask


def states_are_replicated():
    """They are whole on every rank, of which each has a run of the batch."""
    x = torch.randn(4, 6, 5)
    for training in (True, False):
        norm, states = nt.load("batchnorm", training=training), [torch.full((6,), 0.5) for _ in range(2)]
        shared = [_shared(state) for state in states]
        got, want = norm(_shared(x, 0), None, None, *shared), norm(x, None, None, *states)
        assert _dims(got) == [0]
        _same([each.full_tensor() for each in (got, *shared)], [want, *states])


def compiled():
    norm, x, w = nt.load("rmsnorm"), torch.randn(4, 8), torch.rand(8)
    compiled = torch.compile(lambda x, w: norm(x, w), fullgraph=True, backend="aot_eager")
    got = compiled(_shared(x, 0), _shared(w))
    assert _dims(got) == [0]
    _same(got.full_tensor(), norm(x, w))


class Gloo:
    """The processes as ranks of a norm of NumPy arrays."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, array):
        found = [torch.empty_like(torch.from_numpy(array)) for _ in range(self.size)]
        dist.all_gather(found, torch.from_numpy(array))
        return torch.stack(found).numpy()


def axes_are_spread_over_processes():
    """Both directions, with runs of different lengths; and what ranks say that make different calls."""
    norm, plain, ranks = normgen.load("layernorm", shard={"D": Gloo()}), normgen.load("layernorm"), Gloo()
    x, w, dy = (torch.randn(shape).numpy() for shape in ((3, 20), (20,), (3, 20)))
    run = slice(0, 13) if ranks.rank == 0 else slice(13, 20)
    made = norm.forward(x[:, run], w[run], None)
    wanted = plain.reference.forward(x, w)
    np.testing.assert_allclose(made.y, wanted.y[:, run], atol=1e-5)
    got = norm.backward(dy=dy[:, run], x=x[:, run], w=w[run], mu=made.mu, rstd=made.rstd, wrt=("x", "w"))
    want = plain.reference.backward(dy=dy, x=x, w=w, mu=wanted.mu, rstd=wanted.rstd)
    np.testing.assert_allclose(got.dx, want.dx[:, run], atol=1e-5)
    np.testing.assert_allclose(got.dw, want.dw[run], atol=1e-5)
    try:
        norm.forward(x[: 2 + ranks.rank, run], w[run], None)
    except ValueError as fault:
        assert str(fault).startswith("rank 1 has 3 rows, rank 0 has 2 rows")
    else:
        raise AssertionError("ranks have different rows, and nothing was said")


CHECKS = (
    axes_are_spread_over_processes,
    ddp,
    fsdp,
    what_a_norm_keeps_or_can_reduce_stays_cut,
    gradients_of_params_are_parts,
    wanted_results_are_told_apart,
    states_are_replicated,
    compiled,
)
