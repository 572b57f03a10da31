"""Softmax, its logarithm, and softmax over channels."""

from __future__ import annotations

import warnings

import torch

from normgen.torch.autocast import full
from normgen.torch.loading import function
from normgen.torch.nn.precision import has_kernels
from normgen.torch.nn.texts import LOG_SOFTMAX, SOFTMAX
from normgen.torch.nn.whole import Whole, instead


class Softmax(Whole, torch.nn.Softmax):
    """`torch.nn.Softmax` with normgen's kernels: exp(x) / sum(exp(x)) along `dim`.

    Arguments are those of `torch.nn.Softmax`. A contiguous input is not copied for any `dim`. The module
    computes in float32, or in float64 if the input is float64.

    Shape: the input is (*); the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        if not has_kernels(input):
            return super().forward(input)
        return _along(self.dim, input, "softmax", SOFTMAX)


class LogSoftmax(Whole, torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` with normgen's kernels: x - log(sum(exp(x))) along `dim`.

    Arguments are those of `torch.nn.LogSoftmax`. A contiguous input is not copied for any `dim`. The module
    computes in float32, or in float64 if the input is float64.

    Shape: the input is (*); the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        if not has_kernels(input):
            return super().forward(input)
        return _along(self.dim, input, "log_softmax", LOG_SOFTMAX)


class Softmax2d(Whole, torch.nn.Softmax2d):
    """`torch.nn.Softmax2d` with normgen's kernels: softmax over the channels at every pixel.

    Shape: the input is (N, C, H, W) or (C, H, W); the result has its shape and type.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            return instead(self, input=input)
        if not has_kernels(input):
            return super().forward(input)
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return _along(-3, input, "softmax", SOFTMAX)


def _along(dim: int | None, x: torch.Tensor, last: str, second: str) -> torch.Tensor:
    """A norm of `x` along `dim`. `last`, `second`: its spec over the last dimension, and over the second with
    any number of others behind it."""
    place = _place(_implicit(x) if dim is None else dim, x)
    (x,) = full(x)
    if not x.dim():
        return function(last)(x.unsqueeze(0)).squeeze(0)
    if not x.shape[place]:
        return x.clone()
    if place == x.dim() - 1:
        return function(last)(x)
    before = x.shape[:place]
    if len(before) == 1:
        return function(second)(x)
    batches = x.flatten(0, place - 1) if place else x.unsqueeze(0)
    return function(second)(batches).view(x.shape)


def _place(dim: int, x: torch.Tensor) -> int:
    """`dim` counted from the first; a scalar counts as one dimension. IndexError where there is none."""
    dims = x.dim() or 1
    if not -dims <= dim < dims:
        raise IndexError(
            f"dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})"
        )
    return dim % dims


def _implicit(x: torch.Tensor) -> int:
    """The dimension that PyTorch takes where none is said."""
    warnings.warn("implicit dimension choice for softmax is deprecated: pass dim", stacklevel=4)
    return 0 if x.dim() in (0, 1, 3) else 1
