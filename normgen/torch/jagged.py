"""Jagged nested tensors along `...`: a call takes the rows of all their parts, which lie side by side."""

from __future__ import annotations

from typing import Any

import torch

from normgen.launching.layout import REST
from normgen.package.records import TensorRecord
from normgen.torch.calls import Tensors
from normgen.torch.private import ragged_dimension
from normgen.torch.steps import Step


def is_jagged(tensor: Any) -> bool:
    """Whether it is a nested tensor in PyTorch's jagged layout."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout is torch.jagged


def values(step: Step, tensors: Tensors) -> Tensors:
    """The operands with their rows side by side. NotImplementedError where no dimension takes these, and
    RuntimeError where the parts of one operand are not as long as those of another."""
    first = next(name for name, each in zip(step.operands, tensors, strict=True) if is_jagged(each))
    like = tensors[step.operands.index(first)]
    made = []
    for name, each in zip(step.operands, tensors, strict=True):
        record = step.direction.operands[name]
        if each is not None and REST in record.axes and not is_jagged(each):
            raise RuntimeError(
                f"{first} is a jagged tensor but {name} is not: pass a jagged tensor with the same offsets"
            )
        if is_jagged(each):
            _check(name, each, record)
            if each.shape[:2] != like.shape[:2]:
                raise RuntimeError(
                    f"{name} and {first} have different offsets: create {name} with the offsets of {first}"
                )
            each = each.values()
        made.append(each)
    return tuple(made)


def wrapped(step: Step, tensors: Tensors, made: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a call with such rows, as jagged tensors of the same parts where they have `...`."""
    offsets = next(each for each in tensors if is_jagged(each)).offsets()
    return tuple(
        result
        if result is None or REST not in record.axes
        else torch.nested.nested_tensor_from_jagged(result, offsets=offsets)
        for result, record in zip(made, step.direction.results.values(), strict=False)
    )


def _check(name: str, tensor: Any, record: TensorRecord) -> None:
    inside = (
        record.dims[:1] == ((REST,),) and tensor.dim() > len(record.dims) and ragged_dimension(tensor) == 1
    )
    if not inside or tensor.lengths() is not None:
        raise NotImplementedError(
            f"{name} is a jagged tensor, which kernels support only without gaps and if the first dimension "
            "of `...` is the ragged one: pass its parts one by one"
        )
