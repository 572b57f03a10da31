"""The classes that `patch` gives to modules, a function for each way (see `patching/__init__.py`)."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, ClassVar

import torch
from torch.nn import Module

from normgen.torch import nn
from normgen.torch.autocast import full
from normgen.torch.function import NormFunction
from normgen.torch.nn.precision import has_kernels
from normgen.torch.patching.classes import make_class
from normgen.torch.patching.functional import INSTEAD
from normgen.torch.patching.lookalikes import Likeness
from normgen.torch.patching.probes import function_of
from normgen.torch.patching.rewriting import functions_called, redirected
from normgen.torch.patching.watching import is_as_watched

# Modules of PyTorch that have a drop-in of the same name, and the spec of each.
SPECS = {
    "RMSNorm": "rmsnorm",
    "LayerNorm": "layernorm",
    "GroupNorm": "groupnorm",
    **{f"BatchNorm{n}d": "batchnorm" for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": "instancenorm" for n in (1, 2, 3)},
    "LocalResponseNorm": "local_response_norm",
    "Softmax": "softmax",
    "Softmax2d": "softmax2d",
    "LogSoftmax": "log_softmax",
}


def base_of(cls: type[Module]) -> type[Module] | None:
    """The module of PyTorch with a drop-in that a class is, or derives from."""
    return next((base for base in cls.__mro__ if _own(base) and base.__name__ in SPECS), None)


def _own(cls: type) -> bool:
    return getattr(torch.nn, cls.__name__, None) is cls


@cache
def drop_in(original: type[Module]) -> type[Module]:
    """A module of PyTorch, or a subclass that overrides nothing of its drop-in, with the methods of that."""
    return make_class(original, (_drop_in(original), original), (drop_in, original), {"is_drop_in": True})


@cache
def within(original: type[Module]) -> type[Module]:
    """A subclass of a module of PyTorch, whose own methods find those of the drop-in where they call
    `super()`."""
    return make_class(original, (original, _drop_in(original)), (within, original))


@cache
def redirecting(original: type[Module]) -> type[Module]:
    """A class whose forward calls norms of `torch.nn.functional`, with kernels in their place. What it does
    on other paths, such as the exchange of a SyncBatchNorm, stays."""
    members = {"forward": redirected(original, {each: made for each, (made, _) in INSTEAD.items()})}
    return make_class(original, (original,), (redirecting, original), members)


@cache
def redirected_to(original: type[Module]) -> tuple[str, ...]:
    """The specs of the norms of `torch.nn.functional` that the forward of a class calls."""
    return tuple(INSTEAD[each][1] for each in functions_called(original, INSTEAD))


def overridden(original: type[Module]) -> tuple[str, ...]:
    """The methods of the drop-in that a subclass of a module of PyTorch has its own of."""
    base: Any = base_of(original)
    return tuple(name for name in _methods(base) if _differs(original, base, name))


def _differs(cls: type, base: type, name: str) -> bool:
    return getattr(cls, name, None) is not getattr(base, name, None)


def wraps_super(original: type[Module]) -> bool:
    """Whether each method that overrides one of the drop-in calls that by `super()`."""
    base: Any = base_of(original)
    above = original.__mro__[: original.__mro__.index(base)]
    own = [vars(cls)[name] for cls in above for name in _methods(base) if name in vars(cls)]
    return all(_calls_super(method) for method in own)


def _calls_super(method: Any) -> bool:
    function = inspect.unwrap(method)
    return inspect.isfunction(function) and {"super", method.__name__} <= {*function.__code__.co_names}


def _drop_in(original: type[Module]) -> type[Module]:
    base: Any = base_of(original)
    found: type[Module] = getattr(nn, base.__name__)
    return found


@cache
def _methods(base: type[Module]) -> tuple[str, ...]:
    """What the drop-in for a module of PyTorch defines."""
    mro = _drop_in(base).__mro__
    own = [vars(cls) for cls in mro[: mro.index(base)]]
    return tuple({name: None for members in own for name in members if inspect.isfunction(members[name])})


class Lookalike(Module):  # type: ignore[misc]
    """The forward of a module that computes what a spec does.

    A call whose element types or dimensions were not found to agree, or with other arguments, runs as before.
    """

    norm: ClassVar[NormFunction]
    likeness: ClassVar[Likeness]

    def forward(self, *given: Any, **named: Any) -> Any:
        how = self.likeness
        operands = operands_of(self, how, given[0]) if len(given) == 1 and not named else None
        if operands is None:
            return super().forward(*given, **named)
        return compute(self.norm, *operands, eps=how.eps)


def operands_of(module: Module, how: Likeness, x: Any) -> tuple[torch.Tensor | None, ...] | None:
    """The operands of the spec: the input and what the module has beside it. None where a call with these
    does not compute what the spec does."""
    if not isinstance(x, torch.Tensor) or x.dim() not in how.ranks or not has_kernels(x):
        return None
    if not is_as_watched(module, how.watched):
        return None
    own = [getattr(module, name) for name in how.attributes if name]
    size = x.shape[how.form.channels]
    if not all(isinstance(each, torch.Tensor) and each.shape == (size,) for each in own):
        return None
    if how.widened:
        x, *own = full(x, *own)
    dtypes = {None if each is None else each.dtype for each in own} or {x.dtype}
    if len(dtypes) > 1 or (x.dtype, *dtypes) not in how.pairs:
        return None
    given = iter(own)
    return (x, *(next(given) if name else None for name in how.attributes))


def compute(norm: NormFunction, *operands: Any, **named: Any) -> Any:
    """The results of a norm with the element types that are given, under autocast too."""
    kind = operands[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return norm(*operands, **named)
    with torch.autocast(kind, enabled=False):
        return norm(*operands, **named)


@cache
def lookalike(original: type[Module], how: Likeness) -> type[Module]:
    """A class of another library with the forward of the spec that it is."""
    members = {"norm": function_of(how.form), "likeness": how}
    return make_class(original, (Lookalike, original), (lookalike, original, how), members)
