"""What a step returns for operands without data: shapes, element types and strides are the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normgen.launching.layout import shape_of, solve
from normgen.package.direction import Direction
from normgen.torch.calls import Wanted
from normgen.torch.dtypes import TYPES
from normgen.torch.errors import check_kinds
from normgen.torch.float64 import dtype_of, element_types
from normgen.torch.layouts import empty_last, results_last


def imagined(
    direction: Direction, names: Sequence[str], tensors: Sequence[Any], wanted: Wanted
) -> tuple[torch.Tensor | None, ...]:
    """Results in order, None for those that are not wanted, then new states. `names`: of the operands.
    RuntimeError where they do not go together."""
    check_kinds(names, tensors)
    given = {name: each for name, each in zip(names, tensors, strict=True) if each is not None}
    shapes = [(direction.operands[name], tuple(tensor.shape)) for name, tensor in given.items()]
    try:
        lengths = solve(shapes, direction.axes)
    except ValueError as error:
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
