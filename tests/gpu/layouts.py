"""How tensors may lie in memory. What lies between their elements is NaN, so that who reads it shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch

from normgen.verify import memory

Shape = tuple[int, ...]
DENSE = "dense"


def packed(shape: Shape, order: tuple[int, ...] | None = None, gaps: int = 0) -> Shape:
    """Strides of dimensions that follow one another in memory in this order, the last one innermost, with
    `gaps` elements after each run of that."""
    order = order if order is not None else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step = step * max(shape[axis], 1) + (gaps if place == 0 and len(shape) > 1 else 0)
    return tuple(strides)


def _channels_last(shape: Shape) -> Shape:
    axes = tuple(range(len(shape)))
    return packed(shape, (*axes[:1], *axes[2:], *axes[1:2]))


def _expanded(shape: Shape) -> Shape:
    return (0, *packed(shape[1:])) if shape else ()


def _at_pitch(pitch: str, shape: Shape) -> Shape:
    return memory.layout(shape, pitch=pitch).strides


# Strides of a shape, and by how many elements the first one lies off an aligned address.
LAYOUTS: dict[str, tuple[Callable[[Shape], Shape], int]] = {
    DENSE: (packed, 0),
    "off by one": (packed, 1),
    "off by two": (packed, 2),
    "off by four": (packed, 4),
    **{pitch: (partial(_at_pitch, pitch), 0) for pitch in memory.PITCHES if pitch},
    "padded by eight": (lambda shape: packed(shape, gaps=8), 0),
    "channels last": (_channels_last, 0),
    "channels last, off": (_channels_last, 1),
    "reversed": (lambda shape: packed(shape, tuple(reversed(range(len(shape))))), 0),
    "every other": (lambda shape: tuple(2 * stride for stride in packed(shape)), 0),
    "expanded": (_expanded, 0),
    "negated": (packed, 0),
}
# Those in which every element has memory of its own, which holds its value.
OWN = tuple(name for name in LAYOUTS if name not in ("expanded", "negated"))


def laid(values: Any, shape: Shape, dtype: Any, device: Any, layout: str) -> tuple[Any, Any]:
    """A tensor with these values that lies so, behind all of the memory that it lies in."""
    strides_of, offset = LAYOUTS[layout]
    strides = strides_of(shape)
    last = (
        sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if prod(shape)
        else 0
    )
    base = torch.full((offset + last + 2,), float("nan"), device=device).to(dtype)
    view = base.as_strided(shape, strides, offset)
    drawn = torch.from_numpy(values).reshape(shape).to(device)
    if layout == "expanded" and shape and shape[0]:
        base.as_strided(shape[1:], strides[1:], offset).copy_(drawn[0])
    elif layout == "negated" and dtype.itemsize > 1:
        view.copy_(-drawn)
        view = torch._neg_view(view)  # as the imaginary part of a conjugate is
    else:
        view.copy_(drawn)
    return base, view
