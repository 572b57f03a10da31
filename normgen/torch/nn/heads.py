"""Norms of the heads of attention."""

from __future__ import annotations

from typing import Any

import torch

from normgen.torch.loading import function
from normgen.torch.nn.precision import kernel_eps
from normgen.torch.nn.whole import Whole, are_tensors, instead


class QKNorm(Whole, torch.nn.Module):
    """RMSNorm of each head of queries and keys, both in one kernel (arXiv:2010.04245).

    Args:

    - head_dim: the elements of a head, which are normalized together.
    - eps: added to the mean square. None is the machine epsilon of the type that it is computed in.
    - elementwise_affine: whether there are `q_weight` and `k_weight`, of head_dim elements, initially 1.
    - device, dtype: of the parameters.

    Shape: q is (*, heads * head_dim) and k (*, key_heads * head_dim), or q (*, heads, head_dim) and
    k (*, key_heads, head_dim). The result is a named tuple of qn and kn, with the shapes and types of q
    and k.

    >>> norm = nt.nn.QKNorm(128)
    >>> q, k = norm(q, k)
    """

    def __init__(
        self,
        head_dim: int,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name in ("q_weight", "k_weight"):
            weight = torch.nn.Parameter(torch.empty(head_dim, device=device, dtype=dtype))
            self.register_parameter(name, weight if elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both weights to 1."""
        if self.elementwise_affine:
            torch.nn.init.ones_(self.q_weight)
            torch.nn.init.ones_(self.k_weight)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        if not are_tensors(q, k):
            return instead(self, q=q, k=k)
        norm, eps = function("qk_norm", head_dim=self.head_dim), kernel_eps(self.eps, q)
        rows = [self._rows(each, q.shape[:-1] != k.shape[:-1]) for each in (q, k)]
        made = norm(*rows, self.q_weight, self.k_weight, eps=eps)
        return type(made)._make([each.view(like.shape) for each, like in zip(made, (q, k), strict=True)])

    def _rows(self, x: torch.Tensor, apart: bool) -> torch.Tensor:
        """`x` with its heads side by side in the last dimension. `apart`: whether they number differently in
        q and k."""
        if apart and x.dim() > 1 and x.shape[-1] == self.head_dim:
            return x.flatten(-2)
        if x.shape[-1] % self.head_dim:
            raise RuntimeError(
                f"head_dim={self.head_dim} must divide the last dimension of q and k, "
                f"but one of them has shape {list(x.shape)}"
            )
        return x

    def extra_repr(self) -> str:
        return f"{self.head_dim}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
