"""What is wrong with the tensors of a call, as exceptions of the types that PyTorch's own functions raise.

RuntimeError for shapes, element types and devices that do not go together, NotImplementedError (a
RuntimeError) for a kind of tensor that no kernel takes, TypeError for arguments, ValueError for numbers out
of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from normgen.package.direction import Direction
from normgen.package.records import AttrRecord
from normgen.runtime.calls.arguments import number
from normgen.torch.dtypes import NAMES

_DEVICES = ("cpu", "cuda", "meta")  # on the last no kernel runs, and none is needed


def check_tensors(norm: str, names: Sequence[str], operands: Sequence[Any]) -> None:
    """Refuse what is no tensor."""
    for name, operand in zip(names, operands, strict=True):
        if operand is not None and not isinstance(operand, torch.Tensor):
            raise TypeError(f"{norm}() takes tensors, but {name} is of type {type(operand).__name__}")


def check_kinds(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Refuse tensors that are no strided ones of floating point, or not all on one device."""
    given = [(name, tensor) for name, tensor in zip(names, tensors, strict=False) if tensor is not None]
    for name, tensor in given:
        if tensor.is_nested or tensor.layout is not torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            way = "its parts one by one" if tensor.is_nested else f"{name}.to_dense()"
            raise NotImplementedError(f"{name} is a {kind} tensor, which kernels do not support: pass {way}")
        if tensor.dtype not in NAMES:
            raise NotImplementedError(
                f"{name} is {tensor.dtype}, which kernels do not support: cast it, for instance with "
                f"{name}.to(torch.float32)"
            )
    for name, tensor in given[1:]:
        first, at = given[0]
        if tensor.device != at.device:
            raise RuntimeError(
                f"{first} is on {at.device} but {name} is on {tensor.device}: move them to one device"
            )


def check_run(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Refuse tensors that nothing can be computed of: of the wrong kind, or on a device without kernels."""
    check_kinds(names, tensors)
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is not None and tensor.device.type not in _DEVICES:
            raise NotImplementedError(
                f"{name} is on {tensor.device}, but kernels run on the CPU and on CUDA devices: move it"
            )


def check_host(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse tensors of a call in float64 that are not on the CPU."""
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise RuntimeError(
                f"{name} is on {tensor.device}, but float64 is supported on the CPU only: cast the float64 "
                f"operands to torch.float32, or move all operands to the CPU"
            )


def check_numbers(attrs: Sequence[AttrRecord], numbers: Sequence[Any]) -> None:
    """Refuse numbers that the spec does."""
    for attr, value in zip(attrs, numbers, strict=True):
        if value is None:
            raise TypeError(f"{attr.name} has no default: pass it")
        number(attr, value)


def explained(
    direction: Direction,
    attrs: Sequence[AttrRecord],
    tensors: Sequence[Any],
    numbers: Sequence[Any],
    error: Exception,
) -> Exception:
    """What to raise where a call with these tensors raised `error`."""
    try:
        for name, tensor in zip(direction.reads, tensors, strict=False):
            if tensor is None and name in direction.required:
                raise TypeError(f"{direction.norm}() needs {name}")
        check_numbers(attrs, numbers)
        check_run(direction.reads, tensors)
    except (TypeError, ValueError, RuntimeError) as found:
        return found
    return error if isinstance(error, RuntimeError) else RuntimeError(str(error))
