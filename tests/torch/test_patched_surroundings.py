"""Patched models in what trains them: sharding, checkpoints, compilers, gradients of samples."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import EarlyNorm
from tests.torch.test_fusing import Prenorm, agree, slopes

checkpointing = pytest.importorskip("torch.utils.checkpoint")
nn = torch.nn


@pytest.fixture
def blocks():
    return nn.Sequential(Prenorm(), Prenorm(), EarlyNorm())


@pytest.fixture
def mesh(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_sharded_models_are_patched_before_and_after(blocks, mesh):
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    x, later = torch.randn(3, 32), copy.deepcopy(blocks)
    want = slopes(blocks, x)

    def shard(blocks):
        for block in (*blocks, blocks):
            fully_shard(block, mesh=mesh)

    shard(later)
    assert len(nt.patch(blocks, fuse=True).replaced) == len(nt.patch(later, fuse=True).replaced) == 5
    agree(slopes(torch.nn.parallel.DistributedDataParallel(copy.deepcopy(blocks)), x), want)
    shard(blocks)
    agree(slopes(blocks, x), want)
    agree(slopes(later, x), want)
    with pytest.raises(RuntimeError, match=r"0 became a FSDPPrenorm after it was patched"):
        nt.unpatch(blocks)
    nt.unpatch(later)
    agree(slopes(later, x), want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_are_fused(blocks, reentrant):
    x = torch.randn(3, 32)
    want = slopes(blocks, x)
    nt.patch(blocks, fuse=True)

    class Checkpointed(nn.Sequential):
        def forward(self, x):
            for block in self:
                x = checkpointing.checkpoint(block, x, use_reentrant=reentrant)
            return x

    agree(slopes(Checkpointed(*blocks), x), want)


def test_gradients_of_samples(blocks):
    x = torch.randn(4, 32)
    nt.patch(blocks, fuse=True)
    parameters = {name: p.detach() for name, p in blocks.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(blocks, parameters, (x[None],)).sin().sum()

    gradient = torch.func.grad(loss)
    got = torch.vmap(gradient, in_dims=(None, 0))(parameters, x)
    each = [gradient(parameters, one) for one in x]
    agree(got, {name: torch.stack([one[name] for one in each]) for name in got})


def test_a_state_dict_of_either_loads_into_the_other(blocks):
    state = {name: tensor.clone() for name, tensor in blocks.state_dict().items()}
    nt.patch(blocks, fuse=True)
    assert list(blocks.state_dict()) == list(state)
    blocks.load_state_dict({name: 2 * tensor for name, tensor in state.items()}, assign=True)
    nt.unpatch(blocks)
    assert torch.equal(blocks[2].weight, 2 * state["2.weight"])
