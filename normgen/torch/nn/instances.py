"""Instance normalization over inputs of one, two and three dimensions of space, and its lazy variants."""

from __future__ import annotations

from typing import Any

import torch

from normgen.torch.loading import function
from normgen.torch.nn.precision import STATISTICS, has_kernels
from normgen.torch.nn.shapes import check_several
from normgen.torch.nn.statistics import with_statistics
from normgen.torch.nn.texts import INSTANCE_NORM
from normgen.torch.nn.whole import Whole, instead


class _Apply(Whole):
    """What instance normalization does to a batch. Everything else is PyTorch's, the class that follows."""

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        return super().forward(input)  # type: ignore[misc]

    def _apply_instance_norm(self: Any, input: torch.Tensor) -> torch.Tensor:
        mean, var, numbers = self.running_mean, self.running_var, {"eps": self.eps}
        kind = "" if mean is None else STATISTICS
        if not input.numel() or not has_kernels(input, kind):  # without values there are no statistics
            return super()._apply_instance_norm(input)  # type: ignore[misc]
        if not self.training and self.track_running_stats:
            norm = function("batchnorm", training=False)
        else:
            check_several(input.shape[2:], "spatial element", input)
            if mean is None:
                norm = function("instancenorm")
                return norm(input, self.weight, self.bias, **numbers)
            norm = function(INSTANCE_NORM)
            numbers["momentum"] = 0.0 if self.momentum is None else self.momentum
        return with_statistics(norm, (input, self.weight, self.bias), (mean, var), **numbers)


class InstanceNorm1d(_Apply, torch.nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` with normgen's kernels: (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias.

    Arguments, parameters, buffers and state dict are those of `torch.nn.InstanceNorm1d`. Mean and biased
    variance are those of each channel of each sample; in evaluation, the module normalizes by the running
    statistics if it tracks them. It computes in float32, or in float64 if the input is float64.

    Shape: the input is (N, num_features, L) or (num_features, L); the result has its shape and type.
    """


class InstanceNorm2d(_Apply, torch.nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` with normgen's kernels, as `InstanceNorm1d`.

    Shape: the input is (N, num_features, H, W) or (num_features, H, W); the result has its shape and
    type.
    """


class InstanceNorm3d(_Apply, torch.nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` with normgen's kernels, as `InstanceNorm1d`.

    Shape: the input is (N, num_features, D, H, W) or (num_features, D, H, W); the result has its shape
    and type.
    """


class LazyInstanceNorm1d(_Apply, torch.nn.LazyInstanceNorm1d):
    """An `InstanceNorm1d` whose `num_features` is that of its first input."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_Apply, torch.nn.LazyInstanceNorm2d):
    """An `InstanceNorm2d` whose `num_features` is that of its first input."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_Apply, torch.nn.LazyInstanceNorm3d):
    """An `InstanceNorm3d` whose `num_features` is that of its first input."""

    cls_to_become = InstanceNorm3d
