"""A definition for tensors whose channels lie innermost: the same mathematics, other orders of axes.

Expressions know axes by name, so x[B, C, ...] and x[B, ..., C] differ in their declarations alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normgen.ir.program import Definition, Program, Tensor

Dims = tuple[tuple[str, ...], ...]


def has_channels(dims: Dims) -> bool:
    """Whether axes are those of images: [B, C, ...] or [B, C, H, W], where each may be composite."""
    return dims[2:] == (("...",),) or (len(dims) in (4, 5) and ("...",) not in dims)


def channels_last(definition: Definition) -> Definition | None:
    """The definition with every x[B, C, ...] as x[B, ..., C]; None where it reads no such tensor."""
    program = definition.program
    if not any(has_channels(tensor.dims) for tensor in program.operands):
        return None
    opened = definition.opened
    return replace(definition, program=_moved(program), opened=_moved(opened) if opened is not None else None)


def _moved(program: Program) -> Program:
    return replace(
        program,
        name=f"{program.name}_channels_last",
        operands=tuple(_tensor(tensor) for tensor in program.operands),
        results=tuple(replace(result, tensor=_tensor(result.tensor)) for result in program.results),
        bindings=tuple(
            replace(binding, dims=_last(binding.dims)) if binding.dims is not None else binding
            for binding in program.bindings
        ),
    )


def _tensor(tensor: Tensor) -> Tensor:
    return replace(tensor, dims=_last(tensor.dims))


def _last(dims: Dims) -> Dims:
    return (dims[0], *dims[2:], dims[1]) if has_channels(dims) else dims
