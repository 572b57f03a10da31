"""LayerNorm whose gain and bias are given with each call, as in diffusion transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normgen.torch.loading import function
from normgen.torch.nn.shapes import check_normalized, flat
from normgen.torch.nn.whole import Whole, are_tensors, instead


class AdaLayerNorm(Whole, torch.nn.Module):
    """LayerNorm, then scale and shift of each sequence, in one kernel, as in DiT (arXiv:2212.09748).

    The result is `layer_norm(x) * (1 + scale) + shift`. The module has no parameters: scale and shift depend
    on the condition.

    Args:

    - normalized_shape: the last dimensions, which are normalized.
    - eps: added to the variance.

    Shape: x is (N, *, *normalized_shape); the result has the shape and type of x. shift and scale are
    (N, *normalized_shape), the same at all positions of a sequence.
    """

    def __init__(self, normalized_shape: int | Sequence[int], eps: float = 1e-6) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape = shape
        self.eps = eps

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if not are_tensors(x, shift, scale):
            return instead(self, x=x, shift=shift, scale=scale)
        shape = self.normalized_shape
        check_normalized(shape, x)
        for name, given in (("shift", shift), ("scale", scale)):
            if tuple(given.shape) != (*x.shape[:1], *shape):
                raise RuntimeError(
                    f"{name} must have shape {[*x.shape[:1], *shape]} for x of shape {list(x.shape)}, "
                    f"but has {list(given.shape)}"
                )
        return _modulated(flat(x, shape), flat(shift, shape), flat(scale, shape), self.eps).view(x.shape)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"


def _modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor, eps: float) -> Any:
    """`x` is [B, ..., D], `shift` and `scale` are [B, D]."""
    sequence = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    return function("adaln_modulate")(sequence, shift, scale, eps=eps)
