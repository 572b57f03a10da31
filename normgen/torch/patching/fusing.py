"""Blocks that add a residual and then normalize the sum: both in one kernel.

A block is known by the source of its forward, in which `rewriting.py` finds sums and norms of them. Whether
the two are one call is asked each time, so that hooks, other element types and modules that were put back
have what they had.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from normgen.torch.autocast import full, widened
from normgen.torch.loading import function, load
from normgen.torch.nn.precision import has_kernels, kernel_eps
from normgen.torch.nn.shapes import flat
from normgen.torch.patching import rewriting
from normgen.torch.patching.classes import Match, Patched, make_class
from normgen.torch.patching.dropins import Lookalike, compute, operands_of
from normgen.torch.patching.holding import fits, is_watched
from normgen.torch.patching.report import Left
from normgen.torch.patching.sources import FORWARD, rewritten
from normgen.torch.private import constant

# Norms of rows, which a sum may come before, and the modules of PyTorch among them.
ROWS = (
    "rmsnorm",
    "rmsnorm_llama",
    "rmsnorm_zero_centred",
    "rmsnorm_eps_outside",
    "layernorm",
    "layernorm_zero_centred",
)
_MODULES = ((torch.nn.RMSNorm, "rmsnorm"), (torch.nn.LayerNorm, "layernorm"))

# The sum is rounded to its type before it is normalized, as it is where it stands alone.
_SUM = """input  left[..., D]
input  right[..., D]
save output h[..., D] = left + right
let    x = cast(h, h)
"""


@constant
def added(spec: str) -> str:
    """The spec of a sum and a norm of rows: that of the norm, whose input is the sum."""
    return _added(spec)


@cache
def _added(spec: str) -> str:
    text: str = load(spec).norm.package.spec
    text = text.replace(f"norm {spec} ", f"norm added_{spec} ", 1)
    return text.replace("input  x[..., D]\n", _SUM, 1).replace(", x)", ", h)")


def add_norm(left: Any, right: Any, norm: Any) -> tuple[Any, list[Any]]:
    """A sum and, in a list, the norm of it."""
    taken = isinstance(left, torch.Tensor) and has_kernels(left) and fits(left, right)
    row = _row(norm, left) if taken else None
    if row is None or is_watched(norm):
        h = left + right
        return h, [norm(h)]
    terms = [flat(each, row.shape) for each in (left, right)]
    h, y = compute(function(added(row.spec)), *terms, *row.own, eps=row.eps)
    return (h, [y]) if len(row.shape) == 1 else (h.view(left.shape), [y.view(left.shape)])


def norm_of_sum(left: Any, right: Any, norm: Any) -> Any:
    """The norm of a sum."""
    return add_norm(left, right, norm)[1].pop()


class _Row(NamedTuple):
    """How a module normalizes an input: by which spec, over which last dimensions, with what beside it."""

    spec: str
    shape: tuple[int, ...]
    own: tuple[torch.Tensor | None, ...]
    eps: float


def _row(norm: Any, x: torch.Tensor) -> _Row | None:
    """None where a module does something else with an input, or casts it first."""
    spec = spec_of(norm)
    if spec not in ROWS:
        return None
    if isinstance(norm, Lookalike):
        operands = operands_of(norm, norm.likeness, x)
        same = operands is not None and operands[0] is x
        return _Row(spec, x.shape[-1:], operands[1:], norm.likeness.eps) if operands and same else None
    shape = norm.normalized_shape
    if not shape or 0 in shape or x.shape[-len(shape) :] != shape or (widened(spec) and full(x)[0] is not x):
        return None
    own = (norm.weight, norm.bias) if spec == "layernorm" else (norm.weight,)
    return _Row(spec, shape, tuple([flat(each, shape) for each in own]), kernel_eps(norm.eps, x))


def spec_of(norm: Any) -> str:
    """The spec that a module was replaced by; "" where it was not, or keeps a forward of its own."""
    if isinstance(norm, Lookalike):
        return norm.likeness.spec
    is_drop_in = isinstance(norm, Patched) and norm.is_drop_in
    return next((spec for cls, spec in _MODULES if is_drop_in and isinstance(norm, cls)), "")


def fusible(block: Module) -> Iterator[Match]:
    """The norms of a block that can be computed with the sum before them."""
    cls: Any = type(block)
    for name in dict.fromkeys(name for name, fault in rewriting.sums(cls) if not fault):
        if (spec := spec_of(getattr(block, name, None))) in ROWS:
            yield Match(name, f"sum and {spec}", name)


def unfused(model: Module, left: Container[Module]) -> tuple[Left, ...]:
    """The norms of a model that follow a sum and stay apart from it, each with the reason. `left`: norms that
    were not replaced."""
    found: list[Left] = []
    for name, block in model.named_modules():
        try:
            reasons = () if isinstance(block, Patched) else tuple(_reasons(block, left))
        except Exception:  # what a class is made of may raise whatever it likes
            continue
        found += [Left(name, type(block).__name__, f"{norm}: {reason}") for norm, reason in reasons]
    return tuple(found)


def _reasons(block: Module, left: Container[Module]) -> Iterator[tuple[str, str]]:
    cls: Any = type(block)
    if FORWARD in vars(block) or not rewriting.is_readable(cls):
        for name, norm in block.named_children():
            if spec_of(norm) in ROWS:
                yield name, rewriting.UNREADABLE
        return
    for name, fault in rewriting.sums(cls):
        norm = block._modules.get(name)
        if norm in left:
            yield name, "it is left unchanged"
        elif isinstance(norm, Patched) and spec_of(norm) not in ROWS:
            yield name, "no kernel adds before such a norm"
        elif isinstance(norm, Patched) and fault:
            yield name, fault


@cache
def fused(original: type[Module], norms: tuple[str, ...]) -> type[Module]:
    """A class of blocks whose norms of these names are computed with the sum before."""
    called = {rewriting.ADD_NORM: add_norm, rewriting.NORM_OF_SUM: norm_of_sum}
    members = rewritten(original, lambda method: rewriting.unite(method, norms), called)
    return make_class(original, (original,), (fused, original, norms), members)
