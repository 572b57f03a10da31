"""What each of two processes runs, to be compared with one: norms in DDP and FSDP, and of DTensors.

python -m tests.torch.processes RANK STORE writes to STORE.RANK, as JSON, what went wrong in each check.
"""

from __future__ import annotations

import json
import sys
import traceback
from copy import deepcopy
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

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


def _model_and_batch():
    torch.manual_seed(5)
    return Block(), torch.randn(2 * WORLD, 3, 8)


def _gradients(model, batch):
    model(batch).sin().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _mine(batch):
    return batch.chunk(WORLD)[dist.get_rank()]


def _same(got, want):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def ddp():
    model, batch = _model_and_batch()
    want = _gradients(deepcopy(model), batch)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    _gradients(wrapped, _mine(batch))
    _same({name: parameter.grad for name, parameter in model.named_parameters()}, want)


def fsdp():
    from torch.distributed.fsdp import fully_shard

    model, batch = _model_and_batch()
    want = _gradients(deepcopy(model), batch)
    fully_shard(model, mesh=_mesh())
    found = _gradients(model, _mine(batch))
    _same({name: gradient.full_tensor() for name, gradient in found.items()}, want)


@cache
def _mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (WORLD,))


def _distributed(tensor, *placements):
    from torch.distributed.tensor import distribute_tensor

    shared = distribute_tensor(tensor.detach(), _mesh(), placements)
    return shared.requires_grad_()


def _sharded(name, shapes, dim, kept, **attrs):
    """Cut x along a dimension; `kept`: whether y is cut likewise. Compare results and gradients."""
    from torch.distributed.tensor import Replicate, Shard

    torch.manual_seed(6)
    norm = nt.load(name, **attrs)
    operands = [torch.randn(shape).requires_grad_() for shape in shapes]
    shared = [_distributed(operands[0], Shard(dim)), *(_distributed(o, Replicate()) for o in operands[1:])]
    got, want = norm(*shared), norm(*operands)
    assert got.placements == ((Shard(dim) if kept else Replicate()),), got.placements
    cotangent = torch.randn_like(want)
    found = torch.autograd.grad(got, shared, _distributed(cotangent, *got.placements).detach())
    _same(got.full_tensor(), want)
    _same([each.full_tensor() for each in found], list(torch.autograd.grad(want, operands, cotangent)))


def rest_is_kept():
    for dim in (0, 1):
        _sharded("layernorm", ((4, 2, 8), (8,), (8,)), dim, kept=True)


def batch_is_kept():
    _sharded("groupnorm", ((4, 6, 5), (6,), (6,)), 0, kept=True, groups=3)


def reduced_axes_are_replicated():
    _sharded("layernorm", ((4, 2, 8), (8,), (8,)), 2, kept=False)
    _sharded("groupnorm", ((4, 6, 5), (6,), (6,)), 2, kept=False, groups=3)


def gradients_of_params_are_parts():
    from torch.distributed.tensor import Partial, Replicate, Shard

    ops = nt.load("rmsnorm").ops
    x, w = (_distributed(torch.randn(4, 8), Shard(0)), _distributed(torch.rand(8), Replicate()))
    with torch.no_grad():
        y, rstd = ops.forward(x, w, 1e-6, [True, True])
        dx, dw = ops.backward(y, x, w, rstd, 1e-6, [True, True])
    assert [each.placements[0] for each in (y, rstd, dx, dw)] == [Shard(0)] * 3 + [Partial()], dw.placements


def wanted_results_are_told_apart():
    from torch.distributed.tensor import Replicate, Shard

    forward = nt.load("layernorm").ops.forward
    x, w = (_distributed(torch.randn(4, 8), Shard(0)), _distributed(torch.rand(8), Replicate()))
    with torch.no_grad():
        for mask in ([True, False, False], [True, True, True], [False, True, False]):
            made = forward(x, w, None, 1e-5, mask)
            assert [each is not None for each in made] == mask


def states_are_replicated():
    """What updates states reduces the batch, which is gathered first; what reads them alone keeps it cut."""
    from torch.distributed.tensor import Replicate, Shard

    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(8))
    for training, placement in ((True, Replicate()), (False, Shard(0))):
        norm = nt.load("batchnorm", training=training)
        states = [torch.full((6,), 0.5) for _ in range(2)]
        shared = [_distributed(state, Replicate()).detach() for state in states]
        got, want = norm(_distributed(x, Shard(0)), None, None, *shared), norm(x, None, None, *states)
        assert got.placements == (placement,)
        _same(got.full_tensor(), want)
        _same([state.full_tensor() for state in shared], states)


def compiled():
    from torch.distributed.tensor import Replicate, Shard

    norm = nt.load("rmsnorm")
    x, w = torch.randn(4, 8), torch.rand(8)
    shared = _distributed(x, Shard(0)), _distributed(w, Replicate())
    got = torch.compile(lambda x, w: norm(x, w), fullgraph=True, backend="aot_eager")(*shared)
    assert got.placements == (Shard(0),)
    _same(got.full_tensor(), norm(x, w))


CHECKS = (
    ddp,
    fsdp,
    rest_is_kept,
    batch_is_kept,
    reduced_axes_are_replicated,
    gradients_of_params_are_parts,
    wanted_results_are_told_apart,
    states_are_replicated,
    compiled,
)


def main(rank: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=WORLD)
    faults = {}
    for check in CHECKS:
        try:
            check()
            faults[check.__name__] = ""
        except Exception:
            faults[check.__name__] = traceback.format_exc()
    Path(f"{store}.{rank}").write_text(json.dumps(faults))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
