"""Functions of tensors in C++ (`cpp/`), for calls that were made before: with a node of autograd."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from normgen.torch import native, private
from normgen.torch.calls import Wanted, mask
from normgen.torch.gradients import gradients
from normgen.torch.local import LocalStep
from normgen.torch.native import filled
from normgen.torch.signature import Signature
from normgen.torch.steps import Call, Step

# (*operands, **floats) -> what a function returns; None where Python is to make the call.
Fast = Callable[..., Any]


def function(step: LocalStep, signature: Signature, widened: bool, together: Any, call: Call) -> Fast | None:
    """A step in C++; None where there is no extension, or the step takes a number that has no default.

    `widened`: autocast changes its operands; `together`: what makes of several outputs what is returned;
    `call`: what runs a step where the extension does not.
    """
    node, least = native.EXTENSION.loaded, signature.least
    if node is None or least is None:
        return None
    pull = step.pull
    recorded = step.recorded(Wanted(step.outputs))
    backward = None if pull is None else pull.step
    assert backward is None or isinstance(backward, LocalStep)
    taken: tuple[tuple[bool, int], ...] = ()
    places: tuple[int, ...] = (-1,) * len(step.operands)
    if pull is not None:
        taken = tuple((given, place) for given, place in pull.taken[: len(pull.step.direction.reads)])
        names = pull.step.results
        places = tuple(-1 if name is None else names.index(name) for name in pull.sources)

    def slowly(kept: Any, numbers: Any, cotangents: Any, needed: Any, types: Any) -> tuple[Any, ...]:
        context = SimpleNamespace(saved_tensors=kept, numbers=numbers, types=types)
        return gradients(step, context, cotangents, needed, call)

    made = filled(
        node.Function(),
        name=step.name,
        least_operands=least,
        is_state=[step.direction.operands[name].role == "state" for name in step.operands],
        is_updated=[name in step.updated for name in step.operands],
        attrs=[sys.intern(attr.name) for attr in step.attrs],
        defaults=signature.defaults,
        widened=widened,
        plain=mask(step.results, step.outputs),
        recorded=mask(step.results, recorded.computed.names),
        differentiable=[place not in recorded.constants for place in range(recorded.returned)],
        calls=step.calls.fast(node),
        backward=None if backward is None else backward.calls.fast(node),
        kept=[] if pull is None else pull.kept,
        typed=[] if pull is None else pull.typed,
        taken=taken,
        gradients=places,
        slow=slowly,
        together=together,
    )
    found: Fast = made.callable()
    return found


def register(step: Step, name: str, compute: Callable[..., Any], record: Callable[..., Any] | None) -> None:
    """Have the known calls of an operator, which nobody can call yet, made in the extension if it is built.

    `compute`, `record`: what the operator does below autograd, and there: of dispatch keys, then all that it
    is given. No `record` where PyTorch has its own.
    """
    node = native.EXTENSION.ask(build=False)
    if node is None or not isinstance(step, LocalStep):
        return
    made = filled(
        node.Operator(),
        operands=len(step.operands),
        read=len(step.direction.reads),
        numbers=len(step.attrs),
        states=[place for place, each in enumerate(step.operands) if each in step.updated],
        typed=[step.results.index(result) for result in step.typed],
        calls=step.calls.fast(node),
    )
    by_number = private.KEYS_BY_NUMBER
    recorded = None
    if record is not None and by_number is not None:

        def recorded(keys: int, *given: Any) -> Any:
            return record(by_number(keys), *given)

    node.register_known_calls(name, made, compute, recorded)
