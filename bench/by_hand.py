"""Norms whose last axis is spread over the default group, as they are written by hand with PyTorch.

Two ways: gather the whole tensor and normalize it on every rank, or exchange the statistics of rows and apply
them. Runs are of equal length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

RMS_EPS, LAYER_EPS = 1e-6, 1e-5  # normgen's defaults


def own(tensor: Tensor, dim: int = -1) -> Tensor:
    """This rank's run, a view."""
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Tensor, parts: bool) -> Tensor:
        ctx.parts = parts
        found = run.new_empty(dist.get_world_size() * run.numel())
        dist.all_gather_into_tensor(found, run.reshape(-1))
        return torch.cat(found.view(-1, *run.shape).unbind(), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if not ctx.parts:
            return own(gradient).contiguous(), None
        runs = torch.stack(gradient.chunk(dist.get_world_size(), -1))
        made = torch.empty_like(runs[0])
        dist.reduce_scatter_tensor(made.view(-1), runs.view(-1))
        return made, None


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, parts: bool) -> Tensor:
        ctx.parts = parts
        return _sum(part.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (_sum(gradient.clone()) if ctx.parts else gradient), None


def gathered(run: Tensor, parts: bool) -> Tensor:
    """The runs of all ranks along the last axis. `parts`: the gradient by it is a part on each rank, and not
    the same on all."""
    return _Gathered.apply(run, parts)


def added(part: Tensor, parts: bool) -> Tensor:
    """The sum over ranks; `parts` as in `gathered`."""
    return _Added.apply(part, parts)


def _sum(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    """PyTorch's, of whole rows."""
    return functional.rms_norm(x, (x.shape[-1],), w, RMS_EPS)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """PyTorch's, of whole rows."""
    return functional.layer_norm(x, (x.shape[-1],), w, b, LAYER_EPS)


def rms_norm_by_statistics(x: Tensor, w: Tensor) -> Tensor:
    """Of this rank's run: a float per row is exchanged."""
    wide, length = x.float(), x.shape[-1] * dist.get_world_size()
    total = added(wide.square().sum(-1, keepdim=True), parts=True)
    return (wide * torch.rsqrt(total / length + RMS_EPS) * w).to(x.dtype)


def layer_norm_by_statistics(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Of this rank's run: two floats per row are exchanged. A large mean costs it accuracy."""
    wide, length = x.float(), x.shape[-1] * dist.get_world_size()
    sums = torch.stack((wide.sum(-1, keepdim=True), wide.square().sum(-1, keepdim=True)))
    mean, square = added(sums, parts=True) / length
    return ((wide - mean) * torch.rsqrt(square - mean.square() + LAYER_EPS) * w + b).to(x.dtype)


class _Loss(torch.autograd.Function):
    """Two exchanges forward, none backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        shifted, wide = logits.float() - _top(logits), target.float()
        powers = shifted.exp()
        sums = (powers.sum(-1), (wide * shifted).sum(-1), wide.sum(-1))
        total, hit, mass = _sum(torch.stack(sums))
        ctx.save_for_backward(powers / total[..., None], target, mass)
        return mass * total.log() - hit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shares, target, mass = ctx.saved_tensors
        made = (shares * mass[..., None] - target) * gradient[..., None]
        return made.to(target.dtype), None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        powers = (x.float() - _top(x)).exp()
        made = (powers / _sum(powers.sum(-1, keepdim=True))).to(x.dtype)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (made,) = ctx.saved_tensors
        wide = gradient.float()
        return (made * (wide - _sum((wide * made).sum(-1, keepdim=True)))).to(made.dtype)


def _top(x: Tensor) -> Tensor:
    """The largest of each row over all ranks."""
    top = x.amax(-1, keepdim=True).float()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    return top


def cross_entropy_by_statistics(logits: Tensor, target: Tensor) -> Tensor:
    """Per row, of this rank's run of a vocabulary; targets are soft. float32."""
    return _Loss.apply(logits, target)


def softmax_by_statistics(x: Tensor) -> Tensor:
    """Of this rank's run of a vocabulary."""
    return _Softmax.apply(x)
