"""Norms as modules: drop-ins for PyTorch's norms, modules that PyTorch does not have, and modules of specs.

    import normgen.torch as nt

    norm = nt.nn.RMSNorm(4096, device="cuda")

A drop-in is a subclass of the PyTorch module that it replaces, with another forward. PyTorch's forward still
runs where kernels are not faster, as on a CPU, where they do not support the input, such as float64 on a GPU,
and in `torch.jit.trace`.
"""

from __future__ import annotations

from normgen.torch.nn.adaptive import AdaLayerNorm
from normgen.torch.nn.batches import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    LazyBatchNorm1d,
    LazyBatchNorm2d,
    LazyBatchNorm3d,
)
from normgen.torch.nn.channels import GroupNorm, LocalResponseNorm
from normgen.torch.nn.fused import AddRMSNorm, GatedRMSNorm, GroupNormSiLU
from normgen.torch.nn.heads import QKNorm
from normgen.torch.nn.instances import (
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LazyInstanceNorm1d,
    LazyInstanceNorm2d,
    LazyInstanceNorm3d,
)
from normgen.torch.nn.rows import LayerNorm, RMSNorm
from normgen.torch.nn.softmaxes import LogSoftmax, Softmax, Softmax2d
from normgen.torch.nn.spec import SpecModule, from_spec
from normgen.torch.nn.sync import SyncBatchNorm

__all__ = [
    "AdaLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GatedRMSNorm",
    "GroupNorm",
    "GroupNormSiLU",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LocalResponseNorm",
    "LogSoftmax",
    "QKNorm",
    "RMSNorm",
    "Softmax",
    "Softmax2d",
    "SpecModule",
    "SyncBatchNorm",
    "from_spec",
]
