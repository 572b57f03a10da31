"""Steps as operators of PyTorch, `torch.ops.normgen.*`: what compilers, exports, transforms and policies see.

An operator writes nothing that it is given: the new value of a state is a result, which the caller of the
operator copies back. It has a fixed number of results; one that is not wanted is None, as in PyTorch's own
backwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.torch import graphs, node, private
from normgen.torch.batching import batched, check_states
from normgen.torch.calls import Wanted
from normgen.torch.gradients import gradients, keep, tangents
from normgen.torch.local import LocalStep
from normgen.torch.sharding import announce, settle
from normgen.torch.steps import Step

NAMESPACE = "normgen"
# Arguments of an operator, as PyTorch counts them, and results of a step, which are bits of a word.
_MOST = 64


def attach(step: Step) -> None:
    """Give a step its operator: (operands, attrs, which results are wanted) -> results, then new states.
    RuntimeError where it has more of these than an operator can have."""
    if step.operator is None:
        _check_count(step)
        step.operator = _register(step)
        announce(step)
        if isinstance(step, LocalStep):
            graphs.announce(step, _sorted, recorded)


def _check_count(step: Step) -> None:
    count, results = len(step.operands) + len(step.attrs) + 1 + len(step.typed), len(step.results)
    if max(count, results) > _MOST:
        raise RuntimeError(
            f"{step.name} would have {count} arguments and {results} results, but an operator of PyTorch has "
            f"at most {_MOST} of each: stack similar tensors of {step.norm} into one, or call normgen.load's "
            f"norm without autograd"
        )


def _register(step: Step) -> Any:
    register = torch.library.Library(NAMESPACE, "FRAGMENT")
    _LIBRARIES.append(register)
    name, count = step.name, len(step.operands)
    register.define(
        f"{name}({_parameters(step)}) -> ({_returned(step)})", tags=(torch.Tag.pt2_compliant_tag,)
    )
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default

    def compute(*given: Any) -> Any:
        rest, wanted = _sorted(step, given)
        tensors = list(rest[:count])
        states = [place for place, each in enumerate(step.operands) if each in step.updated]
        for place in states:
            tensors[place] = None if tensors[place] is None else tensors[place].clone()
        made = step.run(tuple(tensors), tuple(rest[count:]), wanted)
        return _single((*made, *(tensors[place] for place in states)))

    def imagine(*given: Any) -> Any:
        rest, wanted = _sorted(step, given)
        return _single(step.imagined(rest[:count], wanted))

    def batch(info: Any, dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        def run(sample: Sequence[Any]) -> tuple[Any, ...]:
            return _several(operator(*sample, *given[count:]))

        _, wanted = _sorted(step, given)
        tensors = given[:count]
        check_states(step, dims[:count], tensors)
        made, places = batched(step, run, info.batch_size, dims[:count], tensors, wanted)
        return _single(made), _single(places)

    record = None if private.LEVELS is None else _recording(step, operator, private.LEVELS)
    node.register(step, f"{NAMESPACE}::{name}", compute, record)
    register.impl(name, compute, "CompositeExplicitAutograd")
    if record is not None:
        register.impl(name, record, "Autograd", with_keyset=True)
    else:
        _record_plainly(step, f"{NAMESPACE}::{name}", register)
    torch.library.register_fake(f"{NAMESPACE}::{name}", imagine, lib=register)
    torch.library.register_vmap(f"{NAMESPACE}::{name}", batch, lib=register)
    step.registered(operator, register)
    return operator


def _recording(step: Step, operator: Any, levels: private.Levels) -> Callable[..., Any]:
    """The operator where PyTorch records, at one level of `torch.func`'s transforms as built-in ones do."""
    count = len(step.operands)

    class Recorded(levels.function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, keyset: Any, *given: Any) -> Any:
            rest, wanted = _sorted(step, given)
            computed = step.recorded(wanted).computed
            with torch.enable_grad(), levels.tangents(True):  # for transforms around this one
                made = _several(levels.below(operator, keyset, (*rest, *_asked(step, computed))))
            keep(step, ctx, tuple(rest[:count]), tuple(rest[count:]), made)
            constants = (*(made[place] for place in step.constants), *made[len(step.results) :])
            ctx.mark_non_differentiable(*[each for each in constants if each is not None])
            ctx.asked = mask = [name in wanted.names for name in step.results]
            ctx.save_for_forward(*rest[:count], *made[: len(step.results)])
            asked = [*mask, *[True] * len(step.updated)]
            return _single(tuple([each if ask else None for each, ask in zip(made, asked, strict=True)]))

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            return (None, *_gradients(step, ctx, cotangents, ctx.needs_input_grad[1:]))

        @staticmethod
        def jvp(ctx: Any, _: Any, *given: Any) -> Any:
            known = [t if t is None else private.unpack_dual(t)[0] for t in ctx.saved_tensors]
            with torch.enable_grad(), levels.tangents(True):
                found = tangents(step, known, ctx.numbers, given[:count], call)
            made = [each if ask else None for each, ask in zip(found, ctx.asked, strict=True)]
            return _single((*made, *[None] * len(step.updated)))

        @staticmethod
        def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
            """What a backward depends on beside tensors, for who traces it."""
            return private.compiled_key(ctx, (ctx.numbers, tuple(ctx.asked), getattr(ctx, "types", None)))

    def record(keyset: Any, *given: Any) -> Any:
        settle()
        forward = levels.in_forward_mode()
        if recorded(given[:count]) or (forward and any(map(_has_tangent, given[:count]))):
            with levels.recording():
                return Recorded.apply(keyset, *given)
        return levels.below(operator, keyset, given)

    Recorded.__name__ = Recorded.__qualname__ = step.name
    return record


def _record_plainly(step: Step, name: str, register: torch.library.Library) -> None:
    """Record an operator that is asked for all that its derivative takes."""
    count = len(step.operands)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(step, ctx, inputs[:count], inputs[count : count + len(step.attrs)], _several(output))

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        needed: tuple[bool, ...] = ctx.needs_input_grad
        return _gradients(step, ctx, cotangents, needed)

    torch.library.register_autograd(name, backward, setup_context=setup, lib=register)


def _gradients(
    step: Step, ctx: Any, cotangents: tuple[Any, ...], needed: tuple[bool, ...]
) -> tuple[Any, ...]:
    """Of all that an operator is given."""
    found = gradients(step, ctx, cotangents[: len(step.results)], needed[: len(step.operands)], call)
    return (*found, *[None] * (len(needed) - len(step.operands)))


def recorded(tensors: Sequence[Any]) -> bool:
    """Whether PyTorch records what is done with these."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _has_tangent(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and private.unpack_dual(tensor)[1] is not None


_LIBRARIES: list[torch.library.Library] = []  # operators live as long as what has registered them


def call(step: Step, tensors: Any, numbers: tuple[float, ...], wanted: Wanted) -> tuple[Any, ...]:
    """The results of a step by its operator. States are written."""
    if private.LEVELS is None and recorded(tensors):
        wanted = step.recorded(wanted).computed
    if not torch.compiler.is_compiling() and has_batch(tensors):
        return _samples(step, tensors, numbers, wanted)
    operator = step.operator
    if torch.compiler.is_compiling() and graphs.is_in_graphs(tensors) and graphs.allow(step.name):
        operator = step.in_graph
    made = _several(operator(*tensors, *numbers, *_asked(step, wanted)))
    for name, new in zip(step.updated, made[len(step.results) :], strict=True):
        state = tensors[step.operands.index(name)]
        if state is not None:
            state.copy_(new)
    return made[: len(step.results)]


def has_batch(tensors: Sequence[Any]) -> bool:
    """Whether one of these is a batch of the older vmap, which takes no operators that may return None."""
    return any(isinstance(each, torch.Tensor) and private.is_batch(each) for each in tensors)


def _samples(step: Step, tensors: Any, numbers: tuple[float, ...], wanted: Wanted) -> tuple[Any, ...]:
    """The results for a batch of the older vmap."""
    dims = [0 if each is not None and private.is_batch(each) else None for each in tensors]
    plain = tuple(private.of_batch(t) if dim == 0 else t for t, dim in zip(tensors, dims, strict=True))
    check_states(step, dims, plain)
    size = plain[dims.index(0)].shape[0]
    made, places = batched(step, lambda one: call(step, one, numbers, wanted), size, dims, plain, wanted)
    return tuple(t if at is None else private.as_batch(t, at) for t, at in zip(made, places, strict=True))


def _asked(step: Step, wanted: Wanted) -> tuple[Any, ...]:
    """What is wanted, as an operator takes it."""
    told = dict(wanted.types)
    return ([name in wanted.names for name in step.results], *map(told.get, step.typed.values()))


def _sorted(step: Step, given: Sequence[Any]) -> tuple[tuple[Any, ...], Wanted]:
    """What an operator was given: operands and numbers; what is wanted."""
    count = len(step.operands) + len(step.attrs)
    mask, *types = given[count:]
    return tuple(given[:count]), step.masked(mask, types)


def _parameters(step: Step) -> str:
    """The parameters in the language of PyTorch's schemas."""
    parts = []
    for index, name in enumerate(step.operands):
        optional = "" if name in step.direction.required else "?"
        parts.append(f"Tensor{optional} {_word(name, index)}")
    parts += [f"float {_word(attr.name, len(parts))}" for attr in step.attrs]
    parts.append("bool[] wanted")
    parts += [f"ScalarType? {_word(f'{name}_type', len(parts))}=None" for name in step.typed]
    return ", ".join(parts)


def _returned(step: Step) -> str:
    """What it returns: outputs, and what may be left out. PyTorch's DTensors take an operator whose first
    result is optional for one that returns no tensors."""
    records = step.direction.results.values()
    kinds = ["Tensor" if record.role == "output" else "Tensor?" for record in records]
    return ", ".join(["Tensor", *kinds[1:], *["Tensor?"] * len(step.updated)])


_TAKEN = frozenset(("wanted", "self", "out", "None", "True", "False", "lambda", "from", "in", "is", "global"))


def _word(name: str, index: int) -> str:
    """A name that the schema's language takes."""
    return (
        name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name not in _TAKEN else f"operand_{index}"
    )


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _single(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results
