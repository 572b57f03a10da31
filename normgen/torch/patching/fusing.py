"""Blocks that add a residual and then normalize the sum: both in one kernel.

A block is known by the source of its forward. Where that has these statements, with whatever names,

    hidden_states = residual + hidden_states
    residual = hidden_states
    hidden_states = self.post_attention_layernorm(hidden_states)

they become one call, and the rest of the forward stays as it is written.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch.nn import Module

from normgen.torch.function import NormFunction
from normgen.torch.loading import load
from normgen.torch.patching.classes import Patched, make_class
from normgen.torch.patching.dropins import Lookalike, compute, eps_of, operands_of
from normgen.torch.patching.rewriting import norms_after_sums, rewritten
from normgen.torch.private import has_hooks

# The sum is rounded to its type before it is normalized, as it is where it stands alone.
_ADDED = """norm {name} "Residual add, then {what} of the sum as it is stored; the sum is an output too."

attr   eps = 1e-6              "added to the mean square"

input  x[..., D]
input  residual[..., D]        "the residual stream"
param  w[D] = {default}                "gain"

save output h[..., D] = x + residual   "the new residual stream"
let    r = cast(h, h)
save   rstd[...] = rsqrt(mean[D](r^2) + eps)
output y[..., D] = {y}
"""

# By the spec of the norm alone: the same behind a sum.
ADDED = {
    "rmsnorm": _ADDED.format(name="added_rmsnorm", what="RMSNorm", default=1, y="r * rstd * w"),
    "rmsnorm_llama": _ADDED.format(
        name="added_rmsnorm_llama", what="Llama's RMSNorm", default=1, y="cast(r * rstd, h) * w"
    ),
    "rmsnorm_zero_centred": _ADDED.format(
        name="added_rmsnorm_zero_centred", what="Gemma's RMSNorm", default=0, y="r * rstd * (1 + w)"
    ),
}


class Fused:
    """What a block with a sum and a norm in one call has beside its forward."""

    _normgen_spec: ClassVar[str]  # of the norm alone
    _normgen_added: ClassVar[NormFunction]

    def _normgen_add_norm(
        self, norm: Any, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum and the norm of the sum: in one kernel, unless the norm was put back, hooks wait for its
        own call, or element types and shapes differ."""
        how = norm.likeness if isinstance(norm, Lookalike) else None
        alike = x.dtype is residual.dtype and x.shape == residual.shape and x.device == residual.device
        fits = how is not None and how.spec == self._normgen_spec and alike and not has_hooks(norm)
        operands = operands_of(norm, how, x) if how is not None and fits else None
        if how is None or operands is None:
            h = residual + x
            return h, norm(h)
        x, *w = operands
        made = compute(self._normgen_added, x, residual, *w, **eps_of(norm, how))
        return made.h, made.y


def fusible(block: Module) -> str:
    """The attribute of a block with the norm that follows a residual add; "" where there is none, or that
    norm was not replaced by one that can be fused."""
    cls: Any = type(block)
    if isinstance(block, Patched) or "forward" in vars(block):
        return ""
    for name in norms_after_sums(cls):
        norm = getattr(block, name, None)
        if isinstance(norm, Patched) and isinstance(norm, Lookalike) and norm.likeness.spec in ADDED:
            return name
    return ""


@cache
def fused(original: type[Module], norm: str, spec: str) -> type[Module]:
    """A class of blocks whose residual add and norm are one call. `norm`: its attribute; `spec`: its own."""
    members = {
        "forward": rewritten(original, norm),
        "_normgen_spec": spec,
        "_normgen_added": load(ADDED[spec]),
    }
    return make_class(original, (Fused, original), (fused, original, norm, spec), members)
