"""Norms over the last dimensions: RMSNorm and LayerNorm."""

from __future__ import annotations

import torch

from normgen.torch.loading import function
from normgen.torch.nn.precision import has_kernels, kernel_eps
from normgen.torch.nn.shapes import check_normalized, flat
from normgen.torch.nn.whole import Whole, instead


class RMSNorm(Whole, torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` with normgen's kernels: x * rsqrt(mean(x^2) + eps) * weight.

    Arguments, parameters and state dict are those of `torch.nn.RMSNorm`. The mean runs over the last
    dimensions, those of `normalized_shape`. The module computes in float32, or in float64 if x is float64;
    `eps=None` is the machine epsilon of that type.

    Shape: x is (*, *normalized_shape); the result has the shape and type of x.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            return instead(self, x=x)
        shape = self.normalized_shape
        if 0 in shape or not has_kernels(x):
            return super().forward(x)
        check_normalized(shape, x)
        norm, eps = function("rmsnorm"), kernel_eps(self.eps, x)
        if len(shape) == 1:
            return norm(x, self.weight, eps=eps)
        y = norm(flat(x, shape), flat(self.weight, shape), eps=eps)
        return y.view(x.shape)


class LayerNorm(Whole, torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` with normgen's kernels: (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias.

    Arguments, parameters and state dict are those of `torch.nn.LayerNorm`. Mean and biased variance run
    over the last dimensions, those of `normalized_shape`. The module computes in float32, or in float64 if
    the input is float64.

    Shape: the input is (*, *normalized_shape); the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        shape = self.normalized_shape
        if 0 in shape or not has_kernels(input):
            return super().forward(input)
        check_normalized(shape, input)
        norm = function("layernorm")
        if len(shape) == 1:
            return norm(input, self.weight, self.bias, eps=self.eps)
        tensors = flat(input, shape), flat(self.weight, shape), flat(self.bias, shape)
        y = norm(*tensors, eps=self.eps)
        return y.view(input.shape)
