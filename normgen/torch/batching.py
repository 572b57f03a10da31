"""Steps under `torch.vmap`: one call where an axis takes the batch, else a call per sample.

A spec says the same of every place along an axis that nothing is reduced over. A batch is then more of that
axis, if all that is batched or wanted has it: one more dimension of `...`, or another axis made longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.launching.layout import REST, dimension_of
from normgen.torch.calls import Tensors, Wanted
from normgen.torch.steps import Step

Dims = Sequence["int | None"]


def batched(
    step: Step, run: Callable[[Tensors], Any], size: int, dims: Dims, tensors: Tensors, wanted: Wanted
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The results for a batch of `size` calls, and the dimension of each that is the batch.

    `run`: from the tensors of one call to its results, which new states may follow. `dims`: the batch's
    dimension of each tensor, None where all calls share it.
    """
    axis = _batch_axis(step, dims, tensors, wanted)
    if axis is not None:
        return _along(step, axis, run, size, dims, tensors)
    made = [run(_sample(tensors, dims, i)) for i in range(size)]
    stacked = [None if each[0] is None else torch.stack(each) for each in zip(*made, strict=True)]
    return tuple(stacked), tuple(None if each is None else 0 for each in stacked)


def check_states(step: Step, dims: Dims, tensors: Tensors) -> None:
    """Refuse a batch whose samples would all write the same state."""
    for name, dim, tensor in zip(step.operands, dims, tensors, strict=True):
        if name in step.updated and tensor is not None and dim is None:
            raise RuntimeError(
                f"{step.name} updates {name} in place, but all samples of vmap share it: map over {name} too"
            )


def _batch_axis(step: Step, dims: Dims, tensors: Tensors, wanted: Wanted) -> str | None:
    """The axis that takes the batch, `...` before others; None where there is none."""
    from normgen.ir.nodes import Extent, Reduce, walk

    direction = step.direction
    operands = dict(zip(step.operands, tensors, strict=True))
    if any(operands[name] is not None for name in step.updated):
        return None
    records = [direction.operands[n] for n, dim in zip(step.operands, dims, strict=True) if dim is not None]
    records += [direction.results[name] for name in wanted.names]
    alone = [{group[0] for group in record.dims if len(group) == 1} for record in records]
    known = set.intersection(*alone) if alone else set()
    known -= {axis.name for axis in direction.axes if axis.extent is not None}
    if not known:
        return None
    program = step.program
    known &= {axis.name for axis in program.axes}  # (none that is two axes to the program)
    for node in walk(*(result.expr for result in program.results if result.tensor.name in wanted.names)):
        if isinstance(node, Reduce):
            known -= node.over | {axis for axis, _, _ in node.window}
        elif isinstance(node, Extent):
            known.discard(node.axis)
    return min(known, key=lambda axis: (axis != REST, axis), default=None)


def _along(
    step: Step, axis: str, run: Callable[[Tensors], Any], size: int, dims: Dims, tensors: Tensors
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The batch as the first dimension of `...`, or as the outer part of another axis."""
    moved: list[Any] = []
    for name, dim, tensor in zip(step.operands, dims, tensors, strict=True):
        record = step.direction.operands[name]
        if tensor is None or axis not in record.axes:
            moved.append(tensor)
            continue
        place = dimension_of(record, axis, tensor.dim() - (dim is not None))
        if dim is None:
            shape = (*tensor.shape[:place], size, *tensor.shape[place:])
            tensor = tensor.unsqueeze(place).expand(shape)
        else:
            tensor = tensor.movedim(dim, place)
        moved.append(tensor if axis == REST else tensor.flatten(place, place + 1))
    found = run(tuple(moved))
    made: list[Any] = [None] * len(found)
    places: list[int | None] = [None] * len(found)
    for index, record in enumerate(step.direction.results.values()):
        result = found[index]
        if result is not None:
            places[index] = place = dimension_of(record, axis, result.dim() - (axis == REST))
            shape = (size, result.shape[place] // size)
            made[index] = result if axis == REST else result.unflatten(place, shape)
    return tuple(made), tuple(places)


def _sample(tensors: Tensors, dims: Dims, index: int) -> Tensors:
    return tuple(
        tensor if dim is None or tensor is None else tensor.select(dim, index)
        for tensor, dim in zip(tensors, dims, strict=True)
    )
