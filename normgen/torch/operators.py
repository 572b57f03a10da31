"""Steps as operators of PyTorch, `torch.ops.normgen.*`: what compilers, exports, transforms and policies see.

An operator writes nothing that it is given: the new value of a state is a result, which the caller of the
operator copies back. It has a fixed number of results; one that is not wanted is None, as in PyTorch's own
backwards.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from normgen.launching.layout import shape_of, solve
from normgen.torch.dtypes import NAMES, TYPES
from normgen.torch.float64 import dtype_of
from normgen.torch.gradients import gradients, keep
from normgen.torch.steps import Step

NAMESPACE = "normgen"


def attach(step: Step) -> None:
    """Give a step its operator: (operands, attrs, which results are wanted) -> results, then new states."""
    if step.operator is None:
        step.operator = _register(step)


def _register(step: Step) -> Any:
    register = torch.library.Library(NAMESPACE, "FRAGMENT")
    _LIBRARIES.append(register)
    name, count = step.name, len(step.operands)
    results = ", ".join(["Tensor"] * (len(step.results) + len(step.updated)))
    register.define(f"{name}({_parameters(step)}) -> ({results})", tags=(torch.Tag.pt2_compliant_tag,))

    def compute(*given: Any) -> Any:
        *rest, mask = given
        tensors = list(rest[:count])
        states = [place for place, each in enumerate(step.operands) if each in step.updated]
        for place in states:
            tensors[place] = None if tensors[place] is None else tensors[place].clone()
        made = step.run(tuple(tensors), tuple(rest[count:]), step.masked(mask))
        return _single((*made, *(tensors[place] for place in states)))

    def imagine(*given: Any) -> Any:
        *rest, mask = given
        return _single(imagined(step, rest[:count], step.masked(mask)))

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        made = output if isinstance(output, tuple) else (output,)
        keep(step, ctx, inputs[:count], tuple(inputs[count:-1]), made)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        found = gradients(step, ctx, cotangents[: len(step.results)], ctx.needs_input_grad[:count], call)
        return (*found, *[None] * (len(step.attrs) + 1))

    register.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", imagine, lib=register)
    torch.library.register_autograd(
        f"{NAMESPACE}::{name}", backward, setup_context=setup_context, lib=register
    )
    return getattr(getattr(torch.ops, NAMESPACE), name).default


_LIBRARIES: list[torch.library.Library] = []  # operators live as long as what has registered them


def call(step: Step, tensors: Any, numbers: tuple[float, ...], wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """The results of a step by its operator. States are written."""
    made = step.operator(*tensors, *numbers, [name in wanted for name in step.results])
    if not isinstance(made, tuple):
        return (made,)
    for name, new in zip(step.updated, made[len(step.results) :], strict=True):
        state = tensors[step.operands.index(name)]
        if state is not None:
            state.copy_(new)
    return made[: len(step.results)]


def imagined(step: Step, tensors: Any, wanted: tuple[str, ...]) -> tuple[torch.Tensor | None, ...]:
    """What an operator returns, without its values: shapes, element types and strides are the real ones."""
    direction = step.direction
    given = {name: each for name, each in zip(step.operands, tensors, strict=True) if each is not None}
    shapes = [(direction.operands[name], tuple(tensor.shape)) for name, tensor in given.items()]
    lengths = solve(shapes, direction.axes)
    dtypes = {name: NAMES[tensor.dtype] for name, tensor in given.items()}
    like = next(iter(given.values()))
    made = [
        like.new_empty(shape_of(record, lengths), dtype=TYPES[dtype_of(direction, name, dtypes)])
        if name in wanted
        else None
        for name, record in direction.results.items()
    ]
    states = [given.get(name) for name in step.updated]
    return (*made, *(state if state is None else torch.empty_like(state) for state in states))


def _parameters(step: Step) -> str:
    """The parameters in the language of PyTorch's schemas."""
    parts = []
    for index, name in enumerate(step.operands):
        optional = "" if name in step.direction.required else "?"
        parts.append(f"Tensor{optional} {_word(name, index)}")
    parts += [f"float {_word(attr.name, len(parts))}" for attr in step.attrs]
    return ", ".join([*parts, "bool[] wanted"])


_TAKEN = frozenset(("wanted", "self", "out", "None", "True", "False", "lambda", "from", "in", "is", "global"))


def _word(name: str, index: int) -> str:
    """A name that the schema's language takes."""
    return (
        name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in _TAKEN else f"operand_{index}"
    )


def _single(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results
