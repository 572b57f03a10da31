"""Steps where PyTorch records and nobody looks: a node of autograd calls them, without an operator."""

from __future__ import annotations

from typing import Any

import torch

from normgen.torch import private
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.gradients import gradients, keep
from normgen.torch.steps import Call, Recorder, Step


def recorder(step: Step, run: Recorder, call: Call) -> Recorder:
    """What calls a step and records that: its results, None for those that are not wanted, and what `run`
    returns behind them, which is not differentiated. `call`: what runs the derivative."""

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, numbers: Numbers, wanted: Wanted, *tensors: Any) -> tuple[Any, ...]:
            made = run(tensors, numbers, step.recorded(wanted).computed)
            keep(step, ctx, tensors, numbers, made)
            told, others = zip(step.results, made, strict=False), made[len(step.results) :]
            results = [each if name in wanted.names else None for name, each in told]
            returned = (*results, *others)
            constants = [*(returned[place] for place in step.constants), *others]
            ctx.mark_non_differentiable(*[each for each in constants if each is not None])
            return returned

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            return (
                None,
                None,
                *gradients(step, ctx, cotangents[: len(step.results)], ctx.needs_input_grad[2:], call),
            )

        @staticmethod
        def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
            """What a backward depends on beside tensors, for who traces it."""
            return private.compiled_key(ctx, (step.name, ctx.numbers, getattr(ctx, "types", None)))

    Recorded.__name__ = Recorded.__qualname__ = step.name

    def record(tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        made: tuple[Any, ...] = Recorded.apply(numbers, wanted, *tensors)
        return made

    return record
