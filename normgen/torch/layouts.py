"""Tensors whose channels lie innermost: what is like them then lies so too, by kernels made for that order.

PyTorch's batch norm and group norm have it so. It is settled by the first operand that has channels, those
of the forward before cotangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normgen.ir.channels_last import has_channels
from normgen.package.direction import Direction
from normgen.torch.calls import Tensors

_IMAGES = (4, 5)  # dimensions of tensors for which PyTorch has such a format


def results_last(direction: Direction, tensors: Sequence[Any]) -> frozenset[str]:
    """The results whose channels lie innermost. `tensors`: the operands that a direction reads, in order."""
    given = zip(direction.reads, tensors, strict=False)
    images = [
        (direction.operands[name].role == "cotangent", tensor)
        for name, tensor in given
        if tensor is not None and has_channels(direction.operands[name].dims)
    ]
    if not images or not channels_last(min(images, key=lambda image: image[0])[1]):
        return frozenset()
    return frozenset(name for name, record in direction.results.items() if has_channels(record.dims))


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor of images has its channels innermost, dense or not."""
    if tensor.dim() not in _IMAGES or tensor.is_contiguous():
        return False
    least = 1
    for axis in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if tensor.stride(axis) < least:
            return False
        least = tensor.stride(axis) * max(tensor.shape[axis], 1)
    return bool(tensor.stride(1) == 1)


def empty_last(like: torch.Tensor, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """A new tensor of this shape whose channels lie innermost."""
    batch, channels, *places = shape
    return _first(like.new_empty((batch, *places, channels), dtype=dtype))


def laid_last(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor whose channels lie innermost."""
    return empty_last(tensor, tensor.shape, tensor.dtype).copy_(tensor)


def innermost(tensors: Tensors, direction: Direction) -> Tensors:
    """The operands of a direction with their channels as the last axis."""
    return tuple(
        tensor.movedim(1, -1)
        if tensor is not None and has_channels(direction.operands[name].dims)
        else tensor
        for name, tensor in zip(direction.reads, tensors, strict=True)
    )


def _first(tensor: torch.Tensor) -> torch.Tensor:
    # Detached, or autograd would take it for a view, and refuse what changes it in place.
    return tensor.movedim(-1, 1).detach()
