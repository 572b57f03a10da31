"""What a step returns for operands without data: shapes, element types and strides are the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from normgen.arrays.torch import TORCH
from normgen.arrays.views import View
from normgen.launching.launch import HOST
from normgen.launching.layout import Lengths, shape_of, solve
from normgen.package.direction import Direction
from normgen.runtime.calls.binding import check_dtypes, check_reductions
from normgen.torch.calls import Wanted
from normgen.torch.derived import dtype_of, element_types
from normgen.torch.dtypes import NAMES, TYPES
from normgen.torch.errors import check_kinds
from normgen.torch.layouts import empty_last, results_last


def imagined(
    direction: Direction, names: Sequence[str], tensors: Sequence[Any], wanted: Wanted
) -> tuple[torch.Tensor | None, ...]:
    """Results in order, None for those that are not wanted, then new states. `names`: of the operands.
    RuntimeError where they do not go together, in the words of a call of tensors with data."""
    check_kinds(names, tensors)
    given = {name: each for name, each in zip(names, tensors, strict=True) if each is not None}
    shapes = [(direction.operands[name], tuple(tensor.shape)) for name, tensor in given.items()]
    try:
        if all(tensor.dtype is not torch.float64 for tensor in given.values()):
            check_types(direction, given)
        lengths = solve(shapes, direction.axes)
        check_reductions(direction, _known(lengths))
    except (TypeError, ValueError) as error:
        raise RuntimeError(str(error)) from error
    dtypes = element_types({name: tensor.dtype for name, tensor in given.items()}, wanted)
    like = next(iter(given.values()))
    last = results_last(direction, tensors)
    made: list[torch.Tensor | None] = []
    for name, record in direction.results.items():
        shape, dtype = shape_of(record, lengths), TYPES[dtype_of(direction, name, dtypes)]
        if name not in wanted.names:
            made.append(None)
        else:
            made.append(
                empty_last(like, shape, dtype) if name in last else like.new_empty(shape, dtype=dtype)
            )
    states = [given.get(name) for name in names if name in direction.updated]
    return (*made, *(state if state is None else torch.empty_like(state) for state in states))


def check_types(direction: Direction, given: Mapping[str, torch.Tensor]) -> None:
    """Refuse operands of other element types than the spec says."""
    check_dtypes(direction, {name: _view(each) for name, each in given.items()})


def _view(tensor: torch.Tensor) -> View:
    """What is known of a tensor without memory."""
    return View(0, NAMES[tensor.dtype], tuple(tensor.shape), (), False, HOST, TORCH, tensor)


def _known(lengths: Lengths) -> Lengths:
    """Lengths without symbols: a tracer takes these for some number that is not 0."""
    numbers = {axis: length if isinstance(length, int) else 1 for axis, length in lengths.axes.items()}
    return Lengths(numbers, lengths.rest)
