"""Norms whose axes are sharded over processes: tensor parallel, batch norm, a vocabulary, partial sums.

    torchrun --nproc-per-node 2 examples/ranks.py           # on CPUs, by gloo
    torchrun --nproc-per-node 2 examples/ranks.py --cuda    # a GPU for each process, by NCCL
    python examples/ranks.py                                # in one process

Each process has its shards. It prints the largest difference from the results of one process with all data.
"""

from __future__ import annotations

import argparse
import os

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel
except ImportError as missing:
    raise SystemExit(f"this example needs PyTorch: pip install torch ({missing})") from None

import normgen.torch as nt

# Cross entropy with soft targets, over a vocabulary: one exchange in the forward, none in the backward.
CROSS_ENTROPY = """norm soft_cross_entropy
input  logits[..., V]
input  target[..., V]
save   top[...]   = stop(max[V](logits))
save   total[...] = sum[V](exp(logits - top))
output loss[...]  = -sum[V](target * (logits - top - log(total)))
grad   loss wrt logits
"""


def own(tensor: Tensor, dim: int = -1) -> Tensor:
    """This process's shard of a tensor."""
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def tensor_parallel_rmsnorm(device: torch.device) -> float:
    """Hidden units are sharded, as after a column-parallel linear layer: one float per row is exchanged."""
    rms = nt.load("rmsnorm", shard={"D": dist.group.WORLD})
    x, w = torch.randn(64, 512, device=device), torch.rand(512, device=device)
    mine, gain = own(x).requires_grad_(), own(w).requires_grad_()
    y = rms(mine, gain)
    y.square().sum().backward()
    return far(y, own(nt.load("rmsnorm")(x, w)))


def rmsnorm_of_dtensors(device: torch.device) -> float:
    """The same with DTensors: modules and functions read their placements, and nothing is gathered."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    norm = nt.nn.RMSNorm(512, device=device)
    x = torch.randn(64, 512, device=device)
    want = norm(x)
    norm.weight = torch.nn.Parameter(distribute_tensor(norm.weight.detach(), mesh, [Shard(0)]))
    return far(norm(distribute_tensor(x, mesh, [Shard(1)])).to_local(), own(want))


def batch_norm_of_all_batches(device: torch.device) -> float:
    """`SyncBatchNorm`: statistics over the batches of all processes, in DistributedDataParallel."""
    layers = torch.nn.Conv2d(3, 16, 3, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.randn(8, 3, 16, 16, device=device)
    want = own(model(x), 0)
    synced = DistributedDataParallel(nt.nn.SyncBatchNorm.convert_sync_batchnorm(model))
    y = synced(own(x, 0))
    y.square().mean().backward()
    return far(y, want)


def vocabulary_parallel_loss(device: torch.device) -> float:
    """Each process has a part of the vocabulary: the largest logit and a sum are exchanged."""
    loss = nt.load(CROSS_ENTROPY, shard={"V": dist.group.WORLD})
    logits, target = torch.randn(32, 1000, device=device), torch.randn(32, 1000, device=device).softmax(-1)
    mine = own(logits).requires_grad_()
    found = loss(mine, own(target))
    found.mean().backward()
    return far(found, torch.nn.functional.cross_entropy(logits, target, reduction="none"))


def norm_of_a_sum(device: torch.device) -> float:
    """After a row-parallel linear layer: add all partial sums and the residual, normalize."""
    norm = nt.load("add_rmsnorm", partial={"x": dist.group.WORLD})
    parts = torch.randn(dist.get_world_size(), 16, 512, device=device)
    residual, w = torch.randn(16, 512, device=device), torch.rand(512, device=device)
    _, y = norm(parts[dist.get_rank()], residual, w)
    return far(y, nt.load("add_rmsnorm")(parts.sum(0), residual, w).y)


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference."""
    return float((got.detach() - want.detach()).abs().max())


ROWS = tensor_parallel_rmsnorm, rmsnorm_of_dtensors, vocabulary_parallel_loss, norm_of_a_sum
EXAMPLES = (*ROWS, batch_norm_of_all_batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true", help="a GPU for each process")
    cuda = parser.parse_args().cuda
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    for example in EXAMPLES:
        torch.manual_seed(0)  # every process draws the same whole tensors and takes its shards of them
        print(f"rank {dist.get_rank()}: {example.__name__}: off by {example(device):.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
