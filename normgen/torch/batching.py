"""Steps under `torch.vmap`: one call where `...` takes the batch, else a call per sample.

A spec with `...` says the same of every place along it. A batch is then one more dimension of `...`, if
nothing is reduced over these and all that is batched or wanted has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.ir.nodes import Extent, Reduce, walk
from normgen.launching.layout import REST
from normgen.package.records import TensorRecord
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.steps import Step, Wanted

Call = Callable[[Step, Tensors, Numbers, Wanted], tuple[Any, ...]]


def batched(
    step: Step,
    call: Call,
    size: int,
    dims: Sequence[int | None],
    tensors: Tensors,
    numbers: Numbers,
    wanted: Wanted,
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The results for a batch of `size` calls, and the dimension of each that is the batch. `dims`: that of
    each tensor, None where all calls share it."""
    for name, dim, tensor in zip(step.operands, dims, tensors, strict=True):
        if name in step.updated and tensor is not None and dim is None:
            raise RuntimeError(
                f"{step.name} updates {name}, which all samples of this vmap share: give each its own"
            )
    if _takes_batches(step, dims, wanted):
        return _as_rest(step, call, size, dims, tensors, numbers, wanted)
    made = [call(step, _sample(tensors, dims, i), numbers, wanted) for i in range(size)]
    stacked = [None if each[0] is None else torch.stack(each) for each in zip(*made, strict=True)]
    return tuple(stacked), tuple(None if each is None else 0 for each in stacked)


def _takes_batches(step: Step, dims: Sequence[int | None], wanted: Wanted) -> bool:
    direction = step.direction
    records = [direction.operands[n] for n, dim in zip(step.operands, dims, strict=True) if dim is not None]
    records += [direction.results[name] for name in wanted]
    if any(REST not in record.axes for record in records):
        return False
    program = step.interpreter.program
    roots = [result.expr for result in program.results if result.tensor.name in wanted]
    return not any(
        (isinstance(node, Reduce) and REST in node.over) or (isinstance(node, Extent) and node.axis == REST)
        for node in walk(*roots)
    )


def _as_rest(
    step: Step,
    call: Call,
    size: int,
    dims: Sequence[int | None],
    tensors: Tensors,
    numbers: Numbers,
    wanted: Wanted,
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """The batch as the first dimension of `...`."""
    moved: list[Any] = []
    for name, dim, tensor in zip(step.operands, dims, tensors, strict=True):
        record = step.direction.operands[name]
        if tensor is None or REST not in record.axes:
            moved.append(tensor)
        elif dim is None:
            place = _place(record)
            moved.append(tensor.unsqueeze(place).expand(*tensor.shape[:place], size, *tensor.shape[place:]))
        else:
            moved.append(tensor.movedim(dim, _place(record)))
    made = call(step, tuple(moved), numbers, wanted)
    records = step.direction.results.values()
    places = [None if each is None else _place(r) for each, r in zip(made, records, strict=True)]
    return made, tuple(places)


def _place(record: TensorRecord) -> int:
    """The dimension of an array at which `...` begins."""
    return record.dims.index((REST,))


def _sample(tensors: Tensors, dims: Sequence[int | None], index: int) -> Tensors:
    return tuple(
        tensor if dim is None or tensor is None else tensor.select(dim, index)
        for tensor, dim in zip(tensors, dims, strict=True)
    )
