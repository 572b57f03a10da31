"""The precision that modules compute in: by kernels or not, and with no eps given."""

from __future__ import annotations

import torch


def has_kernels(x: torch.Tensor) -> bool:
    """Whether kernels take `x`: its type, on its device. If not, a drop-in does what it replaces does.
    `torch.jit.trace`, and what exports by it, know the operators of PyTorch alone."""
    if torch.jit.is_tracing():
        return False
    if x.is_cuda:
        return x.dtype is not torch.float64
    return x.device.type in ("cpu", "meta")


def kernel_eps(eps: float | None, x: torch.Tensor) -> float:
    """`eps`, or where it is None the machine epsilon of the type that the norm of `x` is computed in."""
    if eps is not None:
        return eps
    return float(torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps)
