"""Batch normalization by the statistics of all processes of a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from normgen.torch.function import NormFunction
from normgen.torch.nn.batches import Forward
from normgen.torch.nn.precision import takes
from normgen.torch.private import constant
from normgen.torch.ranks.loading import spread_over


class SyncBatchNorm(Forward, torch.nn.modules.batchnorm._BatchNorm):
    """`torch.nn.SyncBatchNorm` with normgen's kernels: batch normalization whose training statistics are
    those of the whole batch, over all processes of `process_group`.

    Arguments, parameters, buffers and state dict are those of `torch.nn.SyncBatchNorm`; the module computes
    as `BatchNorm1d` does. Batches may differ in size or be empty, and tensors may be on the CPU. Each process
    has the gradients of weight and bias of its own batch: `DistributedDataParallel` averages them. In
    evaluation, and with one process, nothing is exchanged. This is not a subclass of
    `torch.nn.SyncBatchNorm`, because `DistributedDataParallel` does not support that class on the CPU.

    Shape: the input is (N, num_features, ...); the result has its shape and type.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        """`options`: further options of this release of PyTorch, such as `bias`."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, **options
        )
        self.process_group = process_group

    def _check_input_dim(self, input: torch.Tensor) -> None:
        torch.nn.SyncBatchNorm._check_input_dim(self, input)

    def _check_non_zero_input_channels(self, input: torch.Tensor) -> None:
        torch.nn.SyncBatchNorm._check_non_zero_input_channels(self, input)

    def _without_kernels(self, input: torch.Tensor) -> torch.Tensor:
        # PyTorch's SyncBatchNorm does not support CPU tensors, even from one process.
        own = torch.nn.modules.batchnorm._BatchNorm if self._is_alone() else torch.nn.SyncBatchNorm
        return own.forward(self, input)

    def _has_kernels(self, input: torch.Tensor) -> bool:
        # PyTorch's own takes no CPU tensors from several processes.
        return super()._has_kernels(input) if self._is_alone() else takes(input)

    def _norm(self, training: bool) -> NormFunction:
        if self._is_alone():
            return super()._norm(training)
        return spread_over("batchnorm", "B", self.process_group, training=training)

    def _is_alone(self) -> bool:
        return not (self.training and _others(self.process_group))

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: Any = None) -> torch.nn.Module:
        """Replace every batch norm of PyTorch or normgen in a model by a `SyncBatchNorm` with the same
        parameters, buffers and mode. `process_group`: all processes by default."""
        made = module
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            made = cls._converted(module, process_group)
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made

    @classmethod
    def _converted(cls, module: Any, process_group: Any) -> SyncBatchNorm:
        options = (module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
        made = cls(module.num_features, *options, device="meta")
        made.weight, made.bias = module.weight, module.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(module, name))
        if hasattr(module, "qconfig"):
            made.qconfig = module.qconfig
        made.train(module.training)
        return made


@constant
def _others(group: Any) -> bool:
    """Whether there are processes beside this one."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1)
