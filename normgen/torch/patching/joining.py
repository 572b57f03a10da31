"""Blocks with batch and group norms joined with the activation behind them, and a residual add between.

What is joined is known by the source of a block's forward, and of methods that this calls (`joints.py`), or
as neighbours in a Sequential. `holding.py` has what is called instead.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch.nn import Module

from normgen.torch.patching import holding, joints
from normgen.torch.patching.activations import follower
from normgen.torch.patching.classes import Match, make_class
from normgen.torch.patching.joints import Joint
from normgen.torch.patching.sources import FORWARD, Method, methods_of, rewritten

Pairs = tuple[tuple[str, str], ...]  # names of norms and of their activations


def joinable(block: Module) -> Iterator[Match]:
    """The norms of a block that can be computed with the activation behind them."""
    cls: Any = type(block)
    return _neighbours(block) if _is_sequence(cls) else _fitting(block, _joints(cls))


@cache
def joining(original: type[Module], pairs: Pairs, rounded: bool) -> type[Module]:
    """A class of blocks with these norms and activations joined. `rounded`: whether what stands between is
    rounded to the type of the norm's input, as before."""
    join = holding.join if rounded else holding.join_once
    if _is_sequence(original):
        members = {FORWARD: _forward({name for name, _ in pairs}, join)}
    else:
        called = {joints.HOLD: holding.hold, joints.ADD: holding.add, joints.ADD_TO: holding.add_to}
        members = rewritten(original, lambda method: _join(method, pairs), {**called, joints.JOIN: join})
    return make_class(original, (original,), (joining, original, pairs, rounded), members)


def _join(method: Method, pairs: Pairs) -> bool:
    """Change the joints of these pairs in a method; returns whether it has any."""
    done: set[ast.Call] = set()
    for joint in joints.joints(method):
        norms = {norm for norm, activation in pairs if activation == joint.activation}
        if joint.call not in done and norms & {each.norm for each in joint.producers}:
            done.add(joint.call)
            joints.join(joint, norms)
    return bool(done)


def _forward(norms: set[str], join: Any) -> Callable[..., Any]:
    """The forward of a Sequential. `norms`: those that are joined with what comes next."""

    def forward(self: Any, input: Any) -> Any:
        modules = list(self._modules.items())
        for (name, module), (_, after) in zip(modules, [*modules[1:], ("", None)], strict=True):
            if isinstance(input, holding.Held):
                input = join(module, input)
            else:
                input = holding.hold(module, after, None, input) if name in norms else module(input)
        return input

    return forward


def _is_sequence(cls: type[Module]) -> bool:
    return bool(cls.forward is torch.nn.Sequential.forward)


def _neighbours(block: Module) -> Iterator[Match]:
    for (name, norm), (after, activation) in pairwise(block._modules.items()):
        kind, follows = holding.kind_of(norm), _kind(activation)
        if kind and follows:
            yield Match(name, f"{kind} and {follows}", (name, after))


def _fitting(block: Module, found: tuple[Joint, ...]) -> Iterator[Match]:
    """The joints of a class whose modules are such in this block."""
    done = set()
    for joint in found:
        follows = joint.function or _kind(getattr(block, joint.activation, None))
        kinds = [(each.norm, _kind_held(block, each)) for each in joint.producers if follows]
        if any(kind for _, kind in kinds) and joint.call not in done:
            done.add(joint.call)
            then = f"{', sum' if joint.sum else ''} and {follows}"
            yield from (Match(norm, kind + then, (norm, joint.activation)) for norm, kind in kinds if kind)


def _kind(activation: Any) -> str:
    found = follower(activation)
    return "" if found is None else found.name


def _kind_held(block: Module, producer: joints.Producer) -> str:
    """Which norm is held in a call of this block; "" where none is."""
    source = getattr(block, producer.source, None) if producer.source else None
    fresh = not producer.source or isinstance(source, holding.FRESH)
    return holding.kind_of(getattr(block, producer.norm, None)) if fresh else ""


@cache
def _joints(cls: type[Module]) -> tuple[Joint, ...]:
    return tuple(joint for method in methods_of(cls) for joint in joints.joints(method))
