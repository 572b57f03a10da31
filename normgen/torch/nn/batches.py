"""Batch normalization over inputs of one, two and three dimensions of space, and its lazy variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from normgen.torch.function import NormFunction
from normgen.torch.loading import function
from normgen.torch.nn.precision import STATISTICS, has_kernels
from normgen.torch.nn.shapes import check_channels, check_several
from normgen.torch.nn.statistics import with_statistics
from normgen.torch.nn.whole import Whole, instead


class Forward(Whole):
    """The forward of batch normalization. Everything else is PyTorch's, the class that follows this one."""

    def _norm(self, training: bool) -> NormFunction:
        """What normalizes an input, by its own statistics in training."""
        return function("batchnorm", training=training)

    def _without_kernels(self, input: torch.Tensor) -> torch.Tensor:
        """What PyTorch makes of an input."""
        return super().forward(input)  # type: ignore[misc]

    def _is_alone(self) -> bool:
        """Whether this input is all that its statistics are made of."""
        return True

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        self._check_input_dim(input)
        if not self._has_kernels(input):
            return self._without_kernels(input)
        return normalized(self, self._norm, input)

    def _has_kernels(self, input: torch.Tensor) -> bool:
        """Whether kernels normalize an input. Without values there are no statistics."""
        return bool(input.numel()) and has_kernels(input, STATISTICS)


def normalized(
    module: Any,
    norm: Callable[[bool], NormFunction],
    input: torch.Tensor,
    *others: torch.Tensor,
    **attrs: float,
) -> torch.Tensor:
    """What a norm makes of an input by the parameters and the running statistics of a module, which follow.

    `norm`: by whether it normalizes by the statistics of the input. `others`, `attrs`: its inputs
    and attrs beside those of batch normalization. Refuses what PyTorch refuses.
    """
    tracked = module.training and module.track_running_stats
    read = tracked or not module.training
    states = (module.running_mean, module.running_var) if read else (None, None)
    training = module.training or (states[0] is None and states[1] is None)
    _check(module, input, training, module._is_alone())
    numbers = {"momentum": _momentum(module, tracked), "eps": module.eps, **attrs}
    operands = (input, *others, module.weight, module.bias)
    made: torch.Tensor = with_statistics(norm(training), operands, states, **numbers)
    return made


def _check(module: Any, input: torch.Tensor, training: bool, alone: bool) -> None:
    check_channels(module.num_features, 1, input)
    if training:
        if alone:
            check_several((input.shape[0], *input.shape[2:]), "value per channel", input)
        if module.eps <= 0:
            raise ValueError(f"eps must be positive during training, but got {module.eps}")
    elif module.eps < 0:
        raise ValueError(f"eps must be non-negative, but got {module.eps}")


def _momentum(module: Any, tracked: bool) -> float:
    """The share of this batch in the running statistics. Batches that are tracked are counted."""
    counted = module.num_batches_tracked if tracked else None
    if counted is not None:
        counted.add_(1)
        if module.momentum is None:  # running statistics are averages of all batches
            return float(_share(counted))
    return 0.0 if module.momentum is None else float(module.momentum)


# The share of one batch among so many: for compilers a number too, where operators take no symbols.
_share: Any = torch.compiler.disable(lambda counted: 1.0 / float(counted))


class BatchNorm1d(Forward, torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` with normgen's kernels: (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias.

    Arguments, parameters, buffers and state dict are those of `torch.nn.BatchNorm1d`. In training, mean and
    biased variance are those of the batch, and the running statistics are updated; in evaluation, the module
    normalizes by the running statistics if it has any. It computes in float32, or in float64 if the input is
    float64.

    Shape: the input is (N, num_features) or (N, num_features, L); the result has its shape and type.
    """


class BatchNorm2d(Forward, torch.nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` with normgen's kernels, as `BatchNorm1d`.

    Shape: the input is (N, num_features, H, W); the result has its shape and type.
    """


class BatchNorm3d(Forward, torch.nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` with normgen's kernels, as `BatchNorm1d`.

    Shape: the input is (N, num_features, D, H, W); the result has its shape and type.
    """


class LazyBatchNorm1d(Forward, torch.nn.LazyBatchNorm1d):
    """A `BatchNorm1d` whose `num_features` is that of its first input."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(Forward, torch.nn.LazyBatchNorm2d):
    """A `BatchNorm2d` whose `num_features` is that of its first input."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(Forward, torch.nn.LazyBatchNorm3d):
    """A `BatchNorm3d` whose `num_features` is that of its first input."""

    cls_to_become = BatchNorm3d
