"""Compiled calls on CPU tensors: `torch.compile` sees the operators of PyTorch that a step is derived as, and
fuses them with their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.torch import private
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.choice import cpu_kernels
from normgen.torch.eager import recorder
from normgen.torch.private import constant
from normgen.torch.steps import Step

_TRACED: dict[str, Callable[..., Any]] = {}  # by the name of a step: what compilers can hold


def announce(step: Step, sort: Callable[..., Any], recorded: Callable[..., bool]) -> None:
    """Let a step be in graphs. `sort`, `recorded`: what its operator is given, in order, and whether PyTorch
    records a call."""
    count = len(step.operands)

    def derivative(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        return step.traced(tensors, numbers, wanted)[: len(step.results)]

    record = recorder(step, step.traced, derivative)

    def traced(*given: Any) -> tuple[Any, ...]:
        if private.has_transforms():
            made = step.operator(*given)
            return made if isinstance(made, tuple) else (made,)
        rest, wanted = sort(step, given)
        tensors, numbers = tuple(rest[:count]), tuple(rest[count:])
        run = record if recorded(tensors) else step.traced
        return run(tensors, numbers, wanted)

    traced.__name__ = traced.__qualname__ = f"{step.name}_traced"
    _TRACED[step.name] = step.in_graph = traced


def is_in_graphs(tensors: Sequence[Any]) -> bool:
    """Whether the compiler sees operators of PyTorch: all are plain CPU tensors, and no kernels run there."""
    if torch.compiler.is_exporting():
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.device.type != "cpu" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return False
    return not cpu_kernels()


@constant
def allow(name: str) -> bool:
    """Have the compiler, which is running, take the function of a step as it is; whether there is one."""
    if name in _TRACED:
        torch.compiler.allow_in_graph(_TRACED[name])
    return name in _TRACED
