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
from normgen.torch.nn.precision import STATISTICS, has_kernels, kernel_eps
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
    if not _has_kernels(input, STATISTICS) or not _is_sound(input, states, training, eps):
        return functional.batch_norm(input, *states, weight, bias, training, momentum, eps)
    norm = function("batchnorm", training=bool(training))
    return with_statistics(norm, (input, weight, bias), states, momentum=float(momentum), eps=eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not _has_kernels(input) or not _is_grouped(input, num_groups):
        return functional.group_norm(input, num_groups, weight, bias, eps)
    return function("groupnorm", groups=num_groups)(input, weight, bias, eps=eps)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not _has_kernels(input) or not _ends_in(input, normalized_shape):
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    shape = tuple(normalized_shape)
    tensors = (flat(each, shape) for each in (input, weight, bias))
    return function("layernorm")(*tensors, eps=eps).view(input.shape)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    if not _has_kernels(input) or not _ends_in(input, normalized_shape):
        return functional.rms_norm(input, normalized_shape, weight, eps)
    shape = tuple(normalized_shape)
    y = function("rmsnorm")(flat(input, shape), flat(weight, shape), eps=kernel_eps(eps, input))
    return y.view(input.shape)


def _has_kernels(input: Any, kind: str = "") -> bool:
    """Whether kernels take it. What is no tensor, such as the proxies of `torch.fx`, PyTorch knows."""
    return isinstance(input, Tensor) and has_kernels(input, kind)


def _is_sound(input: Tensor, states: Sequence[Tensor | None], training: bool, eps: float) -> bool:
    """Whether batch norm has the statistics that it divides by."""
    if input.dim() < 2 or not input.numel() or eps <= 0:
        return False
    if training:
        values: int = prod((input.shape[0], *input.shape[2:]))
        return values > 1
    return all(state is not None for state in states)


def _is_grouped(input: Tensor, groups: int) -> bool:
    """Whether the channels are groups, of more values than one."""
    if input.dim() < 2 or input.shape[1] % groups or not input.numel():
        return False
    values: int = prod((input.shape[0] * input.shape[1] // groups, *input.shape[2:]))
    return values > 1


def _ends_in(input: Tensor, shape: Sequence[int]) -> bool:
    """Whether the last dimensions are these, which have elements."""
    return bool(shape) and 0 not in shape and tuple(input.shape[-len(shape) :]) == tuple(shape)


# What stands for each function of PyTorch, and its spec.
INSTEAD: dict[Any, tuple[Callable[..., Any], str]] = {
    functional.batch_norm: (batch_norm, "batchnorm"),
    functional.group_norm: (group_norm, "groupnorm"),
    functional.layer_norm: (layer_norm, "layernorm"),
    functional.rms_norm: (rms_norm, "rmsnorm"),
}
