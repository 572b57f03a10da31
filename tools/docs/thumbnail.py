"""Small pictures of norms: a tensor as a grid, with the elements that share a statistic highlighted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

from normgen.ir.nodes import Reduce, reductions
from normgen.ir.program import Definition, Tensor

CELL, GAP, LEFT, TOP = 9, 3, 26, 14
SHARED, OTHER = "#4f6df5", "#9aa0a6"
# Cells of an axis: down the side, alone along the top, one of several there, one of a pair.
_ROWS, _ALONE, _SEVERAL, _PAIR = 3, 9, 3, 2


def thumbnail(definition: Definition) -> str:
    """The first input with most axes, and what its widest sum adds up."""
    inputs = (each for each in definition.program.operands if each.role == "input")
    tensor = max(inputs, key=lambda each: len(each.order))
    reach = _reach(definition, tensor)
    rows, *columns = tensor.dims if len(tensor.dims) > 1 else ((), *tensor.dims)
    across = tuple(axis for dim in columns for axis in dim)
    sizes = _sizes(rows, columns)
    cells, x = "", LEFT
    for at, place in enumerate(product(*(range(sizes[axis]) for axis in across))):
        x += GAP if at and place[-1] == 0 and len(place) > 1 else 0
        for y, row in enumerate(product(*(range(sizes[axis]) for axis in rows))):
            index = dict(zip((*rows, *across), (*row, *place), strict=True))
            shared = all(index[axis] <= last for axis, last in reach.items())
            cells += (
                f'<rect x="{x}" y="{TOP + CELL * y}" width="{CELL - 1}" height="{CELL - 1}" '
                f'fill="{SHARED if shared else OTHER}" fill-opacity="{1 if shared else 0.3}"/>'
            )
        x += CELL
    height = TOP + CELL * prod(sizes[axis] for axis in rows)
    labels = _label(LEFT, TOP - 4, "start", " × ".join(map(" ".join, columns)))
    if rows:
        labels += _label(LEFT - 4, (TOP + height) // 2 + 3, "end", " ".join(rows))
    look = 'aria-hidden="true" style="font:10px system-ui,sans-serif;max-width:none"'
    size = f'width="{x}" height="{height}" viewBox="0 0 {x} {height}"'
    return f'<svg {look} {size} xmlns="http://www.w3.org/2000/svg">{labels}{cells}</svg>'


def _sizes(rows: tuple[str, ...], columns: list[tuple[str, ...]]) -> Mapping[str, int]:
    """How many cells stand for each axis."""
    alone = len(columns) == 1 and len(columns[0]) == 1
    sizes = dict.fromkeys(rows, _ROWS if len(rows) == 1 else _PAIR)
    for number, dim in enumerate(columns):
        narrow = len(dim) > 1 or number < len(columns) - 2
        sizes |= dict.fromkeys(dim, _ALONE if alone else _PAIR if narrow else _SEVERAL)
    return sizes


def _reach(definition: Definition, tensor: Tensor) -> Mapping[str, int]:
    """The last cell of one statistic on each axis that it does not have as a whole."""
    exprs = [each.expr for each in (*definition.program.results, *definition.program.updates)]
    found = max(
        reductions(*exprs),
        key=lambda each: (each.op == "sum", len(_axes(each) & tensor.axes)),  # a maximum may be that of FP8
        default=None,
    )
    whole = found.over if found is not None else frozenset()
    windows = {axis for axis, _, _ in found.window or ()} if found is not None else set()
    return {axis: 1 if axis in windows else 0 for axis in tensor.axes - whole}


def _axes(reduction: Reduce) -> frozenset[str]:
    return reduction.over | {axis for axis, _, _ in reduction.window or ()}


def _label(x: int, y: int, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" fill-opacity=".7">{text}</text>'
