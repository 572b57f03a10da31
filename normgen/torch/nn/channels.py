"""Norms of groups of channels, and over windows of channels: GroupNorm and LocalResponseNorm."""

from __future__ import annotations

from typing import Any

import torch

from normgen.torch.function import NormFunction
from normgen.torch.loading import function
from normgen.torch.nn.precision import has_kernels
from normgen.torch.nn.shapes import check_channels, check_several
from normgen.torch.nn.whole import Whole, instead


class GroupNorm(Whole, torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` with normgen's kernels: (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias.

    Arguments, parameters and state dict are those of `torch.nn.GroupNorm`. Mean and biased variance are those
    of each group of channels in each sample. The module computes in float32, or in float64 if the input is
    float64.

    Shape: the input is (N, num_channels, *); the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        if not has_kernels(input):
            return super().forward(input)
        return grouped("groupnorm", self, input)


class LocalResponseNorm(Whole, torch.nn.LocalResponseNorm):
    """`torch.nn.LocalResponseNorm` with normgen's kernels: x * (k + alpha * mean(x^2))^-beta.

    Arguments are those of `torch.nn.LocalResponseNorm`. The mean runs over `size` neighboring channels;
    missing channels count as 0.

    Shape: the input is (N, C, *) with at least three dimensions; the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        if not has_kernels(input):
            return super().forward(input)
        if input.dim() < 3:
            raise ValueError(f"expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
        if not input.numel():
            return input
        norm = function("local_response_norm", n=self.size)
        return norm(input, alpha=self.alpha, beta=self.beta, k=self.k)


def grouped(spec: str, module: Any, input: torch.Tensor) -> torch.Tensor:
    """A norm of groups of channels, with the attributes of a `GroupNorm`. Refuses what PyTorch refuses."""
    made: torch.Tensor = grouping(spec, module, input)(input, module.weight, module.bias, eps=module.eps)
    return made


def grouping(spec: str, module: Any, input: torch.Tensor) -> NormFunction:
    """A function that normalizes an input by the groups of a `GroupNorm`. Refuses what PyTorch refuses."""
    if input.dim() < 2:
        raise RuntimeError(f"expected at least 2 dimensions for input tensor but received {input.dim()}")
    check_channels(module.num_channels, 1, input)
    in_group = module.num_channels // module.num_groups
    check_several((input.shape[0] * in_group, *input.shape[2:]), "value per channel", input)
    return function(spec, groups=module.num_groups)
