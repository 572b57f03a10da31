"""Checks of shapes with PyTorch's own exceptions, and dimensions made one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch


def check_normalized(shape: tuple[int, ...], x: torch.Tensor) -> None:
    """RuntimeError unless the last dimensions of `x` are `shape`, which has one or more."""
    if not shape:
        raise RuntimeError("expected normalized_shape to have at least one dimension, but got ()")
    if x.shape[-len(shape) :] != shape:
        wanted = ", ".join(map(str, ("*", *shape)))
        raise RuntimeError(
            f"given normalized_shape={list(shape)}, expected input of shape [{wanted}], "
            f"but got input of size {list(x.shape)}"
        )


def check_channels(channels: int, dim: int, x: torch.Tensor) -> None:
    """RuntimeError unless `x` has as many channels along `dim`."""
    if x.shape[dim] != channels:
        raise RuntimeError(
            f"expected {channels} channels in dimension {dim} of the input, "
            f"but got input of size {list(x.shape)}"
        )


def check_several(values: Sequence[int], what: str, x: torch.Tensor) -> None:
    """ValueError if statistics would be taken of a single value. `values`: lengths whose product counts."""
    if prod(values) == 1:
        raise ValueError(f"expected more than 1 {what} when training, got input size {list(x.shape)}")


def flat(tensor: Any, shape: Sequence[int]) -> Any:
    """A tensor with its last dimensions, which are `shape`, as one. None stays None."""
    return tensor if tensor is None or len(shape) == 1 else tensor.flatten(-len(shape))
