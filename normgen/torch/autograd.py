"""Steps as differentiable functions of tensors: in eager mode at once, where somebody looks by operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from normgen.torch import operators
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.errors import check_tensors
from normgen.torch.gradients import gradients, keep
from normgen.torch.steps import Recording, Step


def call(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
    """The results of a step, recorded where PyTorch records; None for those that are not wanted."""
    if torch.compiler.is_compiling() or _watched(tensors):
        check_tensors(step.norm.name, step.operands, tensors)
        return operators.call(step, tensors, numbers, wanted)
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                made = recorded(step)(numbers, step.recorded(wanted), *tensors)
                return made if made.__class__ is tuple else (made,)
    return _run(step, tensors, numbers, wanted)


@cache
def recorded(step: Step) -> Any:
    """What records a call of a step: the `apply` of its function, less what that does for transforms and for
    defaults of its arguments, which takes longer than all the rest."""
    return super(torch.autograd.Function, function(step)).apply


@cache
def function(step: Step) -> type[torch.autograd.Function]:
    """The autograd function of a step. Its inputs: numbers, how it is recorded, then tensors."""

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, numbers: Numbers, recording: Recording, *tensors: Any) -> Any:
            computed, returned, constants = recording
            made = _run(step, tensors, numbers, computed)
            keep(step, ctx, tensors, numbers, made)
            if constants:
                ctx.mark_non_differentiable(*[made[place] for place in constants if made[place] is not None])
            return made[0] if returned == 1 else made[:returned]

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            return None, None, *gradients(step, ctx, cotangents, ctx.needs_input_grad[2:], call)

    Recorded.__name__ = Recorded.__qualname__ = step.name
    return Recorded


def _run(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
    try:
        made = step.run(tensors, numbers, wanted)
    except RuntimeError:
        if not any(tensor is not None and _is_batched(tensor) for tensor in tensors):
            raise
        return operators.call(step, tensors, numbers, wanted)
    _written(step, tensors)
    return made


def _is_batched(tensor: torch.Tensor) -> bool:
    """Whether it is a batch of the older vmap, that of `torch.autograd.grad(..., is_grads_batched=True)`."""
    return bool(torch._C._dispatch_keys(tensor).has(torch._C._parse_dispatch_key("Batched")))


def _written(step: Step, tensors: Tensors) -> None:
    """Let PyTorch know which tensors were written."""
    for name in step.updated:
        state = tensors[step.operands.index(name)]
        if state is not None:
            torch.autograd.graph.increment_version(state)


def _watched(tensors: Tensors) -> bool:
    """Whether a transform, a mode or a kind of tensor is there that knows operators and nothing else."""
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return True
    if forward_ad._current_level >= 0:
        return True
    for tensor in tensors:  # noqa: SIM110 a loop takes half the time of `any`
        if type(tensor) not in _PLAIN:
            return True
    return False


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
