"""Steps as differentiable functions of tensors: in eager mode at once, where somebody looks by operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from normgen.torch import operators
from normgen.torch.batching import batched
from normgen.torch.gradients import gradients, keep
from normgen.torch.steps import Numbers, Step, Tensors, Wanted


def call(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
    """The results of a step, recorded where PyTorch records; None for those that are not wanted."""
    transformed = torch._C._are_functorch_transforms_active()
    recording = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if recording or transformed:
        wanted = tuple([name for name in step.results if name in wanted or name in step.kept])
    if transformed:
        return recorded(step).apply(numbers, wanted, *tensors)  # type: ignore[no-any-return]
    if torch.compiler.is_compiling() or _watched(tensors):
        return operators.call(step, tensors, numbers, wanted)
    if recording:
        return recorded(step).apply(numbers, wanted, *tensors)  # type: ignore[no-any-return]
    return _compute(step, tensors, numbers, wanted)


@cache
def recorded(step: Step) -> type[torch.autograd.Function]:
    """The autograd function of a step. Its inputs: numbers, wanted results, then tensors."""

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(numbers: Numbers, wanted: Wanted, *tensors: Any) -> tuple[Any, ...]:
            return _compute(step, tensors, numbers, wanted)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
            numbers, _, *tensors = inputs
            keep(step, ctx, tensors, numbers, output)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            return None, None, *gradients(step, ctx, cotangents, ctx.needs_input_grad[2:], call)

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], numbers: Numbers, wanted: Wanted, *tensors: Any) -> Any:
            return batched(step, call, info.batch_size, dims[2:], tensors, numbers, wanted)

    Recorded.__name__ = Recorded.__qualname__ = step.name
    return Recorded


def _compute(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
    """The results of a step, of which nothing is recorded."""
    if _watched(tensors):
        return operators.call(step, tensors, numbers, wanted)
    made = step.run(tensors, numbers, wanted)
    _written(step, tensors)
    return made


def _written(step: Step, tensors: Tensors) -> None:
    """Let PyTorch know which tensors were written."""
    for name in step.updated:
        state = tensors[step.operands.index(name)]
        if state is not None:
            torch.autograd.graph.increment_version(state)


def _watched(tensors: Tensors) -> bool:
    """Whether a mode or a kind of tensor is there that sees operators and nothing else."""
    if torch._C._len_torch_dispatch_stack():
        return True
    return any(t is not None and type(t) not in _PLAIN for t in tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
