"""Norms of `torch.nn.functional` with normgen's kernels: what a forward that is rewritten calls instead.

They take what PyTorch's take, and leave to these what kernels do not take and what is to be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch.nn import functional

from normgen.torch.loading import function
from normgen.torch.nn.precision import has_kernels, kernel_eps
from normgen.torch.nn.shapes import flat
from normgen.torch.nn.statistics import with_statistics


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    states = running_mean, running_var
    known = running_mean is not None and running_var is not None
    sound = eps > 0 and (prod((input.shape[0], *input.shape[2:])) > 1 if training else known)
    if not input.numel() or not has_kernels(input) or not sound:
        return functional.batch_norm(input, *states, weight, bias, training, momentum, eps)
    norm = function("batchnorm", training=bool(training))
    return with_statistics(norm, input, weight, bias, states, momentum=float(momentum), eps=eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    values = prod((input.shape[0] * input.shape[1] // num_groups, *input.shape[2:])) if input.dim() > 1 else 0
    if not input.numel() or not has_kernels(input) or values < 2 or input.shape[1] % num_groups:
        return functional.group_norm(input, num_groups, weight, bias, eps)
    return function("groupnorm", groups=num_groups)(input, weight, bias, eps=eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = tuple(normalized_shape)
    if not _fits(input, shape):
        return functional.layer_norm(input, shape, weight, bias, eps)
    tensors = (flat(each, shape) for each in (input, weight, bias))
    return function("layernorm")(*tensors, eps=eps).view(input.shape)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    shape = tuple(normalized_shape)
    if not _fits(input, shape):
        return functional.rms_norm(input, shape, weight, eps)
    y = function("rmsnorm")(flat(input, shape), flat(weight, shape), eps=kernel_eps(eps, input))
    return y.view(input.shape)


def _fits(input: Tensor, shape: tuple[int, ...]) -> bool:
    known = bool(shape) and 0 not in shape and tuple(input.shape[-len(shape) :]) == shape
    return known and has_kernels(input)


# What stands for each function of PyTorch, and its spec.
INSTEAD: dict[Any, tuple[Callable[..., Any], str]] = {
    functional.batch_norm: (batch_norm, "batchnorm"),
    functional.group_norm: (group_norm, "groupnorm"),
    functional.layer_norm: (layer_norm, "layernorm"),
    functional.rms_norm: (rms_norm, "rmsnorm"),
}
