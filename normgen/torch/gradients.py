"""What a recorded step keeps for its gradients, and how these are made of it, wherever it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normgen.torch.calls import Numbers, Tensors
from normgen.torch.steps import Call, Step


def keep(step: Step, ctx: Any, tensors: Tensors, numbers: Numbers, made: Sequence[Any]) -> None:
    """Keep what the derivative of a call reads. `made`: its results; new states may follow."""
    ctx.set_materialize_grads(False)
    ctx.numbers = numbers
    pull = step.pull
    if pull is not None:
        ctx.types = pull.types(tensors)
        known = (*tensors, *made)
        ctx.save_for_backward(*[known[place] for place in pull.kept])


def gradients(
    step: Step, ctx: Any, cotangents: Sequence[Any], needed: tuple[bool, ...], call: Call
) -> tuple[Any, ...]:
    """The gradient of each operand that needs one, None for the others. `call`: what runs a step."""
    pull = step.pull
    if pull is None:
        raise RuntimeError(f"{step.name} has no derivative: no result of it can be differentiated")
    for place in pull.cotangents:
        if cotangents[place] is not None:
            break
    else:
        return (None,) * len(step.operands)
    kept = ctx.saved_tensors
    tensors = tuple([cotangents[place] if given else kept[place] for given, place in pull.taken])
    wanted, places = pull.choose(needed, ctx.types)
    made = call(pull.step, tensors, ctx.numbers, wanted)
    return tuple([None if place is None else made[place] for place in places])


def tangents(
    step: Step, known: Sequence[Any], numbers: Numbers, given: Sequence[Any], call: Call
) -> tuple[Any, ...]:
    """The directional derivative of each result, None where it is zero. `known`: operands, then results;
    `given`: the direction by operand, None where it is zero.

    What the derivative makes of cotangents is linear in them: its own derivative by these is what is asked.
    """
    pull = step.pull
    above = None if pull is None else pull.step.pull
    if pull is None or above is None:
        raise RuntimeError(f"{step.name} has no second derivative, which forward-mode AD requires")
    by_result = dict(zip(pull.sources, given, strict=True))
    directions = [by_result.get(name) for name in pull.step.results]
    if all(directions[place] is None for place in above.cotangents):
        return (None,) * len(step.results)
    made = known[len(step.operands) :]
    zeros = [None if result is None else torch.zeros_like(result) for result in made]
    kept = [known[place] for place in pull.kept]
    operands = [zeros[place] if cotangent else kept[place] for cotangent, place in pull.taken]
    held = [operands[place] for place in above.kept]
    tensors = tuple([directions[place] if direction else held[place] for direction, place in above.taken])
    differentiated = [cotangent and made[place] is not None for cotangent, place in pull.taken]
    wanted, places = above.choose(tuple(differentiated), above.types(operands))
    computed = call(above.step, tensors, numbers, wanted)
    found: list[Any] = [None] * len(step.results)
    for (_, result), place in zip(pull.taken, places, strict=True):
        if place is not None:
            found[result] = computed[place]
    return tuple(found)
