"""What processes check together of batch norms of all batches (`gloo`)."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import normgen.torch as nt
from tests.torch.gloo import DEVICE
from tests.torch.spreading import EXACT, own_run, same


def _model():
    layers = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(4, 2, 3))


def batch_norm_by_all_batches():
    """In DDP, beside batch norm of the whole batch, which one rank of four has none of."""
    model, ranks = _model(), dist.get_world_size()
    mine = nt.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert isinstance(mine[1], nt.nn.SyncBatchNorm) and list(mine.state_dict()) == list(model.state_dict())
    wrapped = DistributedDataParallel(mine)
    x = torch.randn(5, 3, 8, 8)
    for layout in (torch.contiguous_format, torch.channels_last):
        want, given = model(x), own_run(x, 0).contiguous(memory_format=layout)
        got = wrapped(given)
        same(got, own_run(want, 0))
        got.square().sum().backward()
        (want.square().sum() / ranks).backward()
        for one, other in zip(mine.parameters(), model.parameters(), strict=True):
            scale = other.grad.abs().max()
            same(one.grad / scale, other.grad / scale)
            one.grad = other.grad = None
        for one, other in zip(mine.buffers(), model.buffers(), strict=True):
            same(one, other)
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    same(compiled(own_run(x, 0)), own_run(model(x), 0))
    mine.eval(), model.eval()
    same(mine(x), model(x))


def batch_norm_of_other_groups_and_types():
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    x = torch.randn(4, 3, 5, dtype=torch.bfloat16)
    norm, plain = nt.nn.SyncBatchNorm(3, process_group=alone[dist.get_rank()]), torch.nn.BatchNorm1d(3)
    same(norm(x.float()), plain(x.float()))
    norm, plain = nt.nn.SyncBatchNorm(3, momentum=None), nt.nn.BatchNorm1d(3, momentum=None)
    for _ in range(2):
        assert torch.equal(norm(own_run(x, 0)), own_run(plain(x), 0))
    same(norm.running_var, plain.running_var)
    if DEVICE == "cuda":
        return
    norm, plain = nt.nn.SyncBatchNorm(3, dtype=torch.float64), torch.nn.BatchNorm1d(3, dtype=torch.float64)
    same(norm(own_run(x.double(), 0)), own_run(plain(x.double()), 0), EXACT)


BATCHES = (batch_norm_by_all_batches, batch_norm_of_other_groups_and_types)
