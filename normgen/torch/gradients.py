"""What a recorded step keeps for its gradients, and how these are made of it, wherever it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from normgen.torch.steps import Numbers, Step, Tensors, Wanted

Call = Callable[[Step, Tensors, Numbers, Wanted], tuple[Any, ...]]


def keep(step: Step, ctx: Any, tensors: Tensors, numbers: Numbers, made: Sequence[Any]) -> None:
    """Keep what the derivative of a call reads. `made`: its results; new states may follow."""
    ctx.set_materialize_grads(False)
    ctx.numbers = numbers
    outputs = len(step.outputs)
    ctx.mark_non_differentiable(*[each for each in made[outputs:] if each is not None])
    derivative = step.derive()
    if derivative is not None:
        known = dict(zip(step.operands, tensors, strict=True))
        known.update(zip(step.results, made, strict=False))
        ctx.save_for_backward(*[known[name] for kind, name in derivative.operands if kind != "cotangent"])


def gradients(
    step: Step, ctx: Any, cotangents: Sequence[Any], needed: Sequence[bool], call: Call
) -> tuple[Any, ...]:
    """The gradient of each operand that needs one, None for the others. `call`: what runs a step."""
    derivative = step.derive()
    if derivative is None:
        raise RuntimeError(f"{step.name} has no derivative: no result of it can be differentiated")
    given = dict(zip(step.results, cotangents, strict=True))
    read = [given[name] for kind, name in derivative.operands if kind == "cotangent"]
    if all(cotangent is None for cotangent in read):
        return (None,) * len(step.operands)
    kept = iter(ctx.saved_tensors)
    tensors = [given[name] if kind == "cotangent" else next(kept) for kind, name in derivative.operands]
    sources = [
        derivative.gradients.get(name, "") if need else ""
        for name, need in zip(step.operands, needed, strict=True)
    ]
    wanted = tuple([name for name in derivative.step.results if name in sources])
    made = call(derivative.step, tensors, ctx.numbers, wanted)
    found = dict(zip(derivative.step.results, made, strict=True))
    return tuple([found.get(name) for name in sources])
