"""Patched models in what trains them: sharding, checkpoints, compilers, gradients of samples."""

from __future__ import annotations

import pytest

from tests.torch.test_fusing import Prenorm, nn, nt, torch
from tests.torch.test_lookalikes import EarlyNorm

checkpointing = pytest.importorskip("torch.utils.checkpoint")


def _agree(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-4)


def _slopes(model, x):
    model.zero_grad()
    y = model(x)
    y.sin().sum().backward()
    gradients = [
        p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()
    ]
    return [y.detach(), *(gradient.clone() for gradient in gradients)]


@pytest.fixture
def blocks():
    torch.manual_seed(0)
    return nn.Sequential(Prenorm(), Prenorm(), EarlyNorm())


@pytest.fixture
def mesh(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("order", ["patch first", "shard first"])
def test_sharded_models_are_patched(blocks, mesh, order):
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    x = torch.randn(3, 32)
    want = _slopes(blocks, x)

    def shard():
        for block in (*blocks, blocks):
            fully_shard(block, mesh=mesh)

    if order == "shard first":
        shard()
    report = nt.patch(blocks, fuse=True)
    assert len(report.replaced) == 5
    if order == "patch first":
        shard()
    _agree(_slopes(blocks, x), want)
    if order == "patch first":
        with pytest.raises(RuntimeError, match=r"0 became a FSDPPrenorm after it was patched"):
            nt.unpatch(blocks)
    else:
        nt.unpatch(blocks)
        _agree(_slopes(blocks, x), want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_are_fused(blocks, reentrant):
    x = torch.randn(3, 32, requires_grad=True)
    want = _slopes(blocks, x)
    nt.patch(blocks, fuse=True)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = checkpointing.checkpoint(block, x, use_reentrant=reentrant)
            return x

    _agree(_slopes(Checkpointed(), x), want)


def test_parallel_copies_share_what_was_patched(blocks, mesh):
    x = torch.randn(3, 32)
    want = _slopes(blocks, x)
    parallel = torch.nn.parallel.DistributedDataParallel(blocks)
    assert len(nt.patch(parallel, fuse=True).fused) == 2
    _agree(_slopes(parallel, x), want)


def test_gradients_of_samples(blocks):
    x = torch.randn(4, 32)
    nt.patch(blocks, fuse=True)
    parameters = {name: p.detach() for name, p in blocks.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(blocks, parameters, (x[None],)).sin().sum()

    gradient = torch.func.grad(loss)
    got = torch.vmap(gradient, in_dims=(None, 0))(parameters, x)
    for name, each in got.items():
        _agree([each], [torch.stack([gradient(parameters, one)[name] for one in x])])


def test_a_state_dict_of_either_loads_into_the_other(blocks):
    state = {name: tensor.clone() for name, tensor in blocks.state_dict().items()}
    nt.patch(blocks, fuse=True)
    assert list(blocks.state_dict()) == list(state)
    blocks.load_state_dict({name: 2 * tensor for name, tensor in state.items()}, assign=True)
    nt.unpatch(blocks)
    assert torch.equal(blocks[2].weight, 2 * state["2.weight"])
