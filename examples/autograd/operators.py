"""The operators of tensors, as functions of arrays: a result, and the pull that propagates its gradient.

`wanted` says which operands require a gradient; the terms of the others may be None or anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from normgen import arrays
from normgen.arrays.views import Shape

from .arithmetic import Arithmetic, arithmetic
from .tape import Array, Pull

Wanted = tuple[bool, ...]


class Operation(NamedTuple):
    """A result with its pull. `kept`: the positions of the operands whose memory the pull will read;
    `alias`: the result may share memory with the first operand."""

    array: Array
    pull: Pull
    kept: tuple[int, ...] = ()
    alias: bool = False


def add(a: Array, b: Array | float, wanted: Wanted) -> Operation:
    if is_number(b):
        return Operation(_float32("+", a).shift(a, b), lambda cotangents, _: cotangents)
    library = _pair("+", a, b)

    def pull(cotangents: Sequence[Any], _: Any) -> Sequence[Any]:
        (dy,) = cotangents
        return dy, library.copy(dy) if all(wanted) else dy

    return Operation(library.add(a, b), pull)


def subtract(a: Array, b: Array | float, wanted: Wanted) -> Operation:
    if is_number(b):
        return add(a, -b, wanted)
    library = _pair("-", a, b)

    def pull(cotangents: Sequence[Any], _: Any) -> Sequence[Any]:
        (dy,) = cotangents
        return dy, library.scale(dy, -1) if wanted[1] else None

    return Operation(library.subtract(a, b), pull)


def multiply(a: Array, b: Array | float, wanted: Wanted) -> Operation:
    if is_number(b):
        scale = _float32("*", a).scale
        return Operation(scale(a, b), lambda cotangents, _: (scale(cotangents[0], b),))
    library = _pair("*", a, b)

    def pull(cotangents: Sequence[Any], _: Any) -> Sequence[Any]:
        (dy,) = cotangents
        return (
            library.multiply(dy, b) if wanted[0] else None,
            library.multiply(dy, a) if wanted[1] else None,
        )

    return Operation(library.multiply(a, b), pull, _factors(wanted))


def matmul(a: Array, b: Array, wanted: Wanted) -> Operation:
    """a[m, k] @ b[k, n] of NumPy arrays."""
    for side in (a, b):
        if not isinstance(side, np.ndarray):
            raise TypeError(
                f"@ supports NumPy arrays, not {type(side).__name__}: multiply matrices on a GPU with "
                "another library"
            )
        _float32("@", side)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"@ needs shapes (m, k) and (k, n), not {a.shape} and {b.shape}")

    def pull(cotangents: Sequence[Any], _: Any) -> Sequence[Any]:
        (dy,) = cotangents
        return dy @ b.T if wanted[0] else None, a.T @ dy if wanted[1] else None

    return Operation(a @ b, pull, _factors(wanted))


def total(a: Array, wanted: Wanted) -> Operation:
    """The sum of all elements, 0-d."""
    library = _float32("sum", a)
    spread, shape = library.spread, tuple(a.shape)
    # A small array stands for `a`, which need not live until the backward.
    made = library.total(a)
    return Operation(made, lambda cotangents, _: (spread(made, shape, cotangents[0]),))


def reshape(a: Array, wanted: Wanted, shape: Shape) -> Operation:
    """The same elements in another shape; one length may be -1."""
    move = arithmetic(a, "reshape").reshape
    before = tuple(a.shape)
    target = _resolved(shape, before)
    return Operation(move(a, target), lambda cotangents, _: (move(cotangents[0], before),), alias=True)


def is_number(value: object) -> bool:
    """Whether an operand is a plain number, which is not an array and has no gradient."""
    return isinstance(value, (int, float, np.floating, np.integer)) and not isinstance(value, bool)


def _factors(wanted: Wanted) -> tuple[int, ...]:
    """Which factors of a product are read for the gradients of the others."""
    return tuple(position for position in (0, 1) if wanted[1 - position])


def _resolved(shape: Shape, before: Shape) -> Shape:
    count = prod(before)
    if shape.count(-1) == 1:
        rest = -prod(shape)
        shape = tuple(count // rest if rest and size == -1 else size for size in shape)
    if min(shape, default=0) < 0 or prod(shape) != count:
        raise ValueError(f"cannot reshape {before} to {shape}: {before} has {count} elements")
    return shape


def _float32(name: str, *operands: Array) -> Arithmetic:
    """The arithmetic of f32 arrays, or a TypeError."""
    library = arithmetic(operands[0], name)
    for array in operands:
        if array.dtype != np.float32:
            raise TypeError(f"{name} supports float32, not {array.dtype}: cast with .astype(numpy.float32)")
    return library


def _pair(name: str, a: Array, b: Array) -> Arithmetic:
    """The arithmetic of two f32 arrays of one shape and device, or an error that says what differs."""
    library = arithmetic(a, name)
    if library is not arithmetic(b, name) or arrays.view(a).device != arrays.view(b).device:
        raise TypeError(f"{name} of {type(a).__name__} and {type(b).__name__}: move both to one device")
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(
            f"{name} needs equal shapes, not {tuple(a.shape)} and {tuple(b.shape)}: it does not broadcast"
        )
    return _float32(name, a, b)
