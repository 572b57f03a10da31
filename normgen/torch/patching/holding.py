"""What a joined block calls: a norm is held until the activation behind it, and computed with that.

Whether the two can be joined is asked at each call, so that hooks, other element types and modules that were
put back have what they had: then each is called by itself, in the order in which it was.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from normgen.torch.autocast import full
from normgen.torch.loading import function
from normgen.torch.nn.batches import normalized
from normgen.torch.nn.channels import grouping
from normgen.torch.nn.precision import JOINED, has_kernels
from normgen.torch.patching.activations import Follower, follower
from normgen.torch.patching.classes import Patched
from normgen.torch.patching.joined import BATCH, GROUP, joined_spec
from normgen.torch.private import has_hooks

_BATCHES = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
# What gives a new tensor, which nothing else changes while a norm of it is held.
FRESH = (torch.nn.modules.conv._ConvNd, torch.nn.Linear)


class Held(NamedTuple):
    """A norm that is to be computed with the activation behind it. `residual`: what is added between, by
    `add`, or None."""

    norm: Any
    x: torch.Tensor
    residual: torch.Tensor | None = None
    add: Callable[[Any, Any], Any] = operator.add


def hold(norm: Any, activation: Any, source: Any, x: Any) -> Any:
    """A norm of `x`, held if it can be joined with an activation. `source`: the module whose result `x` is,
    where it is held for longer than it takes to call the activation; None where it is not."""
    fresh = source is None or isinstance(source, FRESH)
    return Held(norm, x) if fresh and _joins(norm, activation, x) else norm(x)


def add(left: Any, right: Any) -> Any:
    """A sum, held if one of its terms is."""
    if isinstance(right, Held):
        if isinstance(left, Held) or not fits(right.x, left):
            right = right.norm(right.x)
        else:
            return Held(right.norm, right.x, left)
    if isinstance(left, Held):
        return Held(left.norm, left.x, right) if fits(left.x, right) else left.norm(left.x) + right
    return left + right


def add_to(total: Any, other: Any) -> Any:
    """`total += other`, held if the total is."""
    if isinstance(total, Held):
        if fits(total.x, other):
            return Held(total.norm, total.x, other, operator.iadd)
        total = total.norm(total.x)
    total += other
    return total


def join(activation: Any, value: Any, *given: Any, **named: Any) -> Any:
    """An activation, called with what is held before it."""
    return _join(True, activation, value, given, named)


def join_once(activation: Any, value: Any, *given: Any, **named: Any) -> Any:
    """As `join`, with results that are rounded once, at the end."""
    return _join(False, activation, value, given, named)


def _join(rounded: bool, activation: Any, value: Any, given: Any, named: Any) -> Any:
    if not isinstance(value, Held):
        return activation(value, *given, **named)
    found = follower(activation, given, named)
    if found is None:
        y = value.norm(value.x)
        y = y if value.residual is None else value.add(y, value.residual)
        return activation(y, *given, **named)
    return _computed(value, found, rounded)


def _computed(held: Held, found: Follower, rounded: bool) -> torch.Tensor:
    """The norm, the sum and the activation by one spec."""
    norm, x = held.norm, held.x
    others = () if held.residual is None else (held.residual,)
    kind = GROUP if isinstance(norm, torch.nn.GroupNorm) else BATCH
    spec = joined_spec(kind, found.name, held.residual is not None, rounded)
    if kind is BATCH:
        norm._check_input_dim(x)
        return normalized(norm, lambda own: function(spec, training=own), x, *others, **found.numbers)
    joined = grouping(spec, norm, x)
    # Autocast gives group norms float32, and so what follows.
    operands = full(x, *others, norm.weight, norm.bias)
    made: torch.Tensor = joined(*operands, eps=norm.eps, **found.numbers)
    return made


def _joins(norm: Any, activation: Any, x: Any) -> bool:
    """Whether a spec has a norm and an activation in one, and nothing waits for their calls."""
    return (
        bool(kind_of(norm))
        and follower(activation) is not None
        and not is_watched(norm)
        and not (isinstance(activation, Module) and is_watched(activation))
        and isinstance(x, torch.Tensor)
        and has_kernels(x, JOINED)
        and bool(x.numel())
    )


def kind_of(norm: Any) -> str:
    """Which norm it is, `BATCH` or `GROUP`; "" where it is neither, or not a drop-in."""
    if not isinstance(norm, Patched) or not norm.is_drop_in:
        return ""
    return BATCH if isinstance(norm, _BATCHES) else GROUP if isinstance(norm, torch.nn.GroupNorm) else ""


def is_watched(module: Module) -> bool:
    """Whether something sees the calls of a module, or makes them."""
    return "forward" in module.__dict__ or has_hooks(module)


def fits(x: torch.Tensor, residual: Any) -> bool:
    """Whether a kernel can add it to `x`, or to a norm of `x`."""
    return (
        isinstance(residual, torch.Tensor)
        and residual.dtype is x.dtype
        and residual.shape == x.shape
        and residual.device == x.device
    )
