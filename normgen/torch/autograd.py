"""Steps as differentiable functions of tensors: by operators where PyTorch records or somebody looks, at once
where not."""

from __future__ import annotations

from typing import Any

import torch

from normgen.torch import operators, private, sharding
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.errors import check_kinds, check_tensors
from normgen.torch.jagged import is_jagged, values, wrapped
from normgen.torch.steps import Step


def call(step: Step, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
    """The results of a step, recorded where PyTorch records; None for those that are not wanted."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            f"torch.jit.trace cannot trace {step.norm}(), because it supports only PyTorch's own operators: "
            f"use torch.export, or PyTorch's modules, patched or not"
        )
    if torch.compiler.is_compiling() or watched(tensors):
        check_tensors(step.norm, step.operands, tensors)
        if any(map(is_jagged, tensors)):
            return wrapped(step, tensors, call(step, values(step, tensors), numbers, wanted))
        shards = sharding.plan_of(step, tensors, wanted)
        if shards is not None:
            made = call(shards.step, shards.locals(tensors), numbers, wanted)
            joined: tuple[Any, ...] = shards.joined(made, tensors)
            return joined
        return operators.call(step, tensors, numbers, wanted)
    if operators.recorded(tensors):
        check_kinds(step.operands, tensors)  # PyTorch would say that it lacks an operator
        record = step.recorder(tensors, call)
        if record is None or operators.has_batch(tensors):
            return operators.call(step, tensors, numbers, wanted)
        made = record(tensors, numbers, wanted)
        _written(step, tensors)
        return made
    try:
        made = step.run(tensors, numbers, wanted)
    except RuntimeError:
        if not operators.has_batch(tensors):
            raise
        return operators.call(step, tensors, numbers, wanted)
    _written(step, tensors)
    return made


def _written(step: Step, tensors: Tensors) -> None:
    """Let PyTorch know which tensors were written."""
    for name in step.updated:
        state = tensors[step.operands.index(name)]
        if state is not None:
            torch.autograd.graph.increment_version(state)


def watched(tensors: Tensors) -> bool:
    """Whether a transform, a mode or a kind of tensor is there that knows operators and nothing else."""
    if private.watched() or private.has_tangents():
        return True
    for tensor in tensors:  # noqa: SIM110 a loop takes half the time of `any`
        if type(tensor) not in _PLAIN:
            return True
    return False


_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
