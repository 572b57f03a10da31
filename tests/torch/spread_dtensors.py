"""What processes check together of DTensors that are cut along axes that norms reduce (`gloo`)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import normgen.torch as nt
from normgen.torch import private
from tests.torch.gloo import DEVICE
from tests.torch.spread_peer_memory import by_words
from tests.torch.spreading import same


def mesh_of_two():
    ranks = dist.get_world_size()
    return init_device_mesh(DEVICE, (ranks // 2, 2), mesh_dim_names=("data", "tensor"))


def _placed(tensor, mesh, *places):
    return distribute_tensor(tensor.detach(), mesh, places).requires_grad_(tensor.requires_grad)


def _dtensors(name, mesh, given, places, want_places, **attrs):
    """A norm of DTensors, beside that of whole tensors: results, gradients and where they are."""
    norm = nt.load(name, **attrs)
    whole = [each.clone().requires_grad_() for each in given]
    mine = [_placed(each, mesh, *place) for each, place in zip(whole, places, strict=True)]
    want = norm(*whole)
    with CommDebugMode() as seen:
        got = norm(*mine)
    assert not seen.get_total_counts(), seen.get_comm_counts()
    assert isinstance(got, DTensor) and tuple(got.placements) == want_places, (name, got.placements)
    same(got.full_tensor(), want)
    cotangent = torch.randn_like(want)
    found = torch.autograd.grad(got, mine, _placed(cotangent, mesh, *want_places))
    expected = torch.autograd.grad(want, whole, cotangent)
    for one, other in zip(found, expected, strict=True):
        same(one.full_tensor(), other)
    return found


def dtensors_are_not_gathered():
    mesh, whole = mesh_of_two(), Replicate()
    x, w = torch.randn(4, 3, 9), torch.rand(9)
    gathered = Gathered()
    rows = (Shard(0), Shard(2))
    with gathered:
        _, dw = _dtensors("rmsnorm", mesh, (x, w), (rows, (whole, Shard(0))), rows)
        assert isinstance(dw.placements[0], Partial) and dw.placements[1] == Shard(0)
        _dtensors("layernorm", mesh, (x, w, w - 1), (rows, *[(whole, Shard(0))] * 2), rows)
        _dtensors("softmax", mesh, (x,), (rows,), rows)
        images = torch.randn(4, 6, 8, 5)
        cut = (Shard(0), Shard(2))  # stripes of each image
        _, dw, _ = _dtensors(
            "groupnorm", mesh, (images, w[:6], w[:6]), (cut, (whole, whole), (whole, whole)), cut, groups=3
        )
        assert all(isinstance(place, Partial) for place in dw.placements)
        _dtensors(
            "batchnorm",
            mesh,
            (images, w[:6], w[:6]),
            ((whole, Shard(0)), *[(whole, whole)] * 2),
            (whole, Shard(0)),
        )
    assert gathered.most <= 400 and (gathered.most or by_words())
    heads = nt.load("qk_norm", head_dim=3)
    q, k = torch.randn(4, 12), torch.randn(4, 6)
    mine = [_placed(each, mesh, Shard(0), Shard(1)) for each in (q, k)]
    with CommDebugMode() as seen:
        got = heads(*mine)
    assert not seen.get_total_counts()
    for one, other in zip(got, heads(q, k), strict=True):
        assert tuple(one.placements) == (Shard(0), Shard(1))
        same(one.full_tensor(), other)


# Of s no rank of the batch has a part of the gradient, and all have the whole.
APART = """norm apart
input  x[B, D]
input  s[D]
input  g[E]
output y[B, D] = x * rsqrt(mean[D](x^2)) * sum[E](g)
output z[D] = 2 * s
"""


def gradients_of_dtensors_are_parts_where_they_are_sums():
    mesh, norm, whole = mesh_of_two(), nt.load(APART), Replicate()
    x, s, g = torch.randn(4, 9), torch.randn(9), torch.randn(3)
    mine = [
        _placed(x, mesh, Shard(0), Shard(1)),
        _placed(s, mesh, whole, Shard(0)),
        _placed(g, mesh, whole, whole),
    ]
    mine, theirs = (
        [each.requires_grad_() for each in mine],
        [each.clone().requires_grad_() for each in (x, s, g)],
    )
    got, want = norm(*mine), norm(*theirs)
    found = torch.autograd.grad((got.y.sin().sum() + got.z.sin().sum()), mine)
    expected = torch.autograd.grad((want.y.sin().sum() + want.z.sin().sum()), theirs)
    for one, other in zip(found, expected, strict=True):
        same(one.full_tensor(), other)
    assert found[1].placements[0] == whole and found[2].placements[1].is_partial()


class Gathered:
    """The most numbers that an exchange of a norm gave to this rank."""

    def __enter__(self):
        self.most, self._kept = 0, private.all_gather

        def gather(into, tensor, group):
            self.most = max(self.most, into.numel())
            self._kept(into, tensor, group)

        private.all_gather = gather
        return self

    def __exit__(self, *_):
        private.all_gather = self._kept


def dtensors_lie_as_their_shards():
    """Images whose channels lie innermost stay so, in what every rank has and in what a DTensor says."""
    mesh, norm = mesh_of_two(), nt.load("batchnorm")
    images = torch.randn(4, 6, 8, 5).contiguous(memory_format=torch.channels_last)
    own = images.chunk(2)[mesh.get_local_rank("tensor")]
    got = norm(
        DTensor.from_local(own, mesh, (Replicate(), Shard(0)), shape=images.shape, stride=images.stride())
    )
    assert got.to_local().is_contiguous(memory_format=torch.channels_last) and got.stride() == images.stride()
    same(got.full_tensor(), norm(images))


def dtensors_are_compiled():
    mesh = mesh_of_two()
    x, w = torch.randn(4, 9), torch.rand(9)
    mine = _placed(x, mesh, Shard(0), Shard(1)), _placed(w, mesh, Replicate(), Shard(0))
    norm = nt.load("rmsnorm")
    got = torch.compile(lambda x, w: norm(x, w), fullgraph=True, backend="aot_eager")(*mine)
    assert tuple(got.placements) == (Shard(0), Shard(1))
    same(got.full_tensor(), norm(x, w))


def modules_take_dtensors():
    mesh, module = mesh_of_two(), nt.nn.RMSNorm(9)
    x = torch.randn(4, 9)
    want = module(x)
    module.weight = torch.nn.Parameter(_placed(module.weight, mesh, Replicate(), Shard(0)))
    got = module(_placed(x, mesh, Shard(0), Shard(1)))
    assert tuple(got.placements) == (Shard(0), Shard(1))
    same(got.full_tensor(), want)
    try:
        nt.load("rmsnorm", shard={"D": None})(got)
    except TypeError as fault:
        assert ".to_local()" in str(fault)
    else:
        raise AssertionError("a norm of ranks took a DTensor")
