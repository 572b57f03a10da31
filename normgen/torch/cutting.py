"""Calls of derived programs piece by piece along an axis, whose values then stay in a core's cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from normgen.ir.nodes import Expr, Extent, Mul, Reduce, walk
from normgen.ir.program import Program, Tensor
from normgen.torch.printing import Text, axes_of

# Elements of a piece for each thread of PyTorch, and at most: a few values of float32 fit a core's cache.
_PIECE, _MOST = 1 << 19, 1 << 21


class _Memory(threading.local):
    """What a thread computes in, call after call: to return memory to the system and to take it again costs
    more than to compute."""

    def __init__(self) -> None:
        self.held: dict[torch.dtype, torch.Tensor] = {}

    def buffers(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
        size = prod(shape)
        held = self.held.get(dtype)
        if held is None or held.numel() < count * size:
            held = self.held[dtype] = torch.empty(count * size, dtype=dtype)
        return list(held[: count * size].view(count, *shape))


_MEMORY = _Memory()


class _Place(NamedTuple):
    """A tensor that is cut: the lengths of its axes, and the place of the axis among these. None where it has
    none: a result is then a sum over all pieces."""

    shape: tuple[int, ...]
    axis: int | None

    def piece(self, tensor: torch.Tensor, start: int, count: int) -> torch.Tensor:
        if self.axis is None or count == self.shape[self.axis]:
            return tensor
        return tensor.narrow(self.axis, start, count)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a call is cut along an axis. `pieces`: of each where it begins, and the lengths of all axes."""

    axis: int
    pieces: tuple[tuple[int, tuple[int, ...]], ...]
    operands: tuple[_Place, ...]
    stored: tuple[_Place, ...]

    def run(
        self,
        step: Callable[..., list[torch.Tensor]],
        text: Text,
        dtype: torch.dtype,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[float],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Fill in the results of a call. `dtype`: that of values."""
        whole = [t.reshape(place.shape) for t, place in zip(tensors, self.operands, strict=True)]
        parts = [t.view(place.shape) for t, place in zip(results, self.stored, strict=True)]
        sums: dict[int, torch.Tensor] = {}
        for start, sizes in self.pieces:
            count = sizes[self.axis]
            shape = tuple([size if is_wide else 1 for size, is_wide in zip(sizes, text.wide, strict=True)])
            pieces = [place.piece(t, start, count) for t, place in zip(whole, self.operands, strict=True)]
            into = [place.piece(t, start, count) for t, place in zip(parts, self.stored, strict=True)]
            buffers = _MEMORY.buffers(text.buffers, shape, dtype)
            for n, buffer in enumerate(text.stored):
                fits = (into[n].dtype, into[n].shape) == (dtype, shape)
                if buffer is not None and fits and self.stored[n].axis is not None:
                    buffers[buffer] = into[n]
            for n, value in enumerate(step(*pieces, *numbers, *sizes, *buffers)):
                if self.stored[n].axis is None:
                    sums[n] = sums[n].add_(value) if n in sums else value.clone()
                elif value is not into[n]:
                    into[n].copy_(value.reshape(into[n].shape))
        for n, value in sums.items():
            parts[n].copy_(value.reshape(parts[n].shape))


def cut_of(program: Program, given: Sequence[str], stored: Sequence[str], sizes: Sequence[int]) -> Cut | None:
    """How a call is cut that is given these operands, and stores these results and states; None where it
    cannot be."""
    axes = axes_of(program)
    lengths = dict(zip(axes, sizes, strict=True))
    piece = min(_PIECE * torch.get_num_threads(), _MOST)
    tensors = [*program.operands, *(result.tensor for result in program.results)]
    most = max((prod(lengths[axis] for axis in tensor.order) for tensor in tensors), default=0)
    if not most:
        return None
    operands = {tensor.name: tensor for tensor in program.operands}
    roots = [(r.expr, r.tensor) for r in program.results if r.tensor.name in stored]
    roots += [(u.expr, operands[u.state]) for u in program.updates if u.state in stored]
    for place, axis in enumerate(axes):
        length = lengths[axis]
        step = min(piece * length // most, length)
        if step and all(_is_cut(expr, tensor, axis) for expr, tensor in roots):
            starts = range(0, length, step)
            return Cut(
                place,
                tuple((n, (*sizes[:place], min(step, length - n), *sizes[place + 1 :])) for n in starts),
                tuple(_place(operands[name], axis, lengths) for name in given),
                tuple(_place(tensor, axis, lengths) for _, tensor in roots),
            )
    return None


def _place(tensor: Tensor, axis: str, lengths: Mapping[str, int]) -> _Place:
    order = tensor.order
    return _Place(tuple(lengths[each] for each in order), order.index(axis) if axis in order else None)


def _is_cut(expr: Expr, tensor: Tensor, axis: str) -> bool:
    """Whether pieces along an axis give pieces of a result, or terms of a sum that it is."""
    if axis not in tensor.axes:
        sums = [expr] if isinstance(expr, Reduce) else []
        if isinstance(expr, Mul):
            sums = [e for e, power in expr.factors if isinstance(e, Reduce) and axis in e.over and power == 1]
            if any(_has(e, axis) for e, _ in expr.factors if e not in sums):
                return False
        if len(sums) != 1 or not isinstance(sums[0], Reduce):
            return False
        (total,) = sums
        return total.op == "sum" and axis in total.over and not _is_joined(total.arg, axis)
    return not _is_joined(expr, axis)


def _has(expr: Expr, axis: str) -> bool:
    return any(axis in node.axes for node in walk(expr)) or _is_joined(expr, axis)


def _is_joined(expr: Expr, axis: str) -> bool:
    """Whether an element along an axis depends on others along it, or on how many there are."""
    for node in walk(expr):
        if isinstance(node, Extent) and node.axis == axis:
            return True
        if isinstance(node, Reduce) and (axis in node.over or axis in {each for each, *_ in node.window}):
            return True
    return False
