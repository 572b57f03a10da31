"""Shapes of the params and states of a spec, from lengths by axis."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from normgen.ir.program import Program, Tensor
from normgen.launching.layout import REST
from normgen.package.records import dims_text

Sizes = Mapping[str, "int | tuple[int, ...]"]


def shapes(program: Program, tensors: list[Tensor], sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor. `sizes`: the length of an axis by its name, of a split dimension as the spec
    writes it, `(G C)`, and of `...` a tuple. ValueError where one is missing or names nothing."""
    given: dict[str, int | tuple[int, ...]] = {a.name: a.extent for a in program.axes if a.extent is not None}
    _check(program, tensors, sizes, set(given))
    given.update(sizes)
    return {tensor.name: _shape(program, tensor, given) for tensor in tensors}


def _check(program: Program, tensors: list[Tensor], sizes: Sizes, fixed: set[str]) -> None:
    known = {name for tensor in tensors for dim in tensor.dims for name in (*dim, dims_text((dim,)))}
    for name in sizes:
        if name in fixed:
            raise ValueError(f"the length of {name} is fixed by {program.name}: leave it out of sizes")
        if name not in known:
            there = ", ".join(dict.fromkeys(dims_text((dim,)) for t in tensors for dim in t.dims)) or "none"
            raise ValueError(
                f"{program.name} has no param or state along {name!r}; their dimensions: {there}"
            )


def _shape(program: Program, tensor: Tensor, sizes: Sizes) -> tuple[int, ...]:
    shape: list[int] = []
    for dim in tensor.dims:
        text = dims_text((dim,))
        known = [sizes[axis] for axis in dim if axis in sizes]
        whole = sizes.get(text)
        if whole is None and len(known) < len(dim):
            example = (64,) if dim == (REST,) else 64
            raise ValueError(
                f"{program.name} needs the length of {text} for {tensor.name}[{dims_text(tensor.dims)}]: "
                f"pass sizes={{{text!r}: {example}}}"
            )
        length = prod(known) if whole is None else whole
        shape += length if isinstance(length, tuple) else (length,)
    return tuple(shape)
