"""The precision that modules compute in: by kernels or not, under autocast, and with no eps given."""

from __future__ import annotations

import torch

_HALVES = (torch.bfloat16, torch.float16)


def has_kernels(x: torch.Tensor) -> bool:
    """Whether kernels take `x`: its type, on its device. If not, a drop-in does what it replaces does.
    `torch.jit.trace`, and what exports by it, know the operators of PyTorch alone."""
    if torch.jit.is_tracing():
        return False
    if x.is_cuda:
        return x.dtype is not torch.float64
    return x.device.type in ("cpu", "meta")


def full(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The tensors as PyTorch's autocast hands them to `layer_norm`, `group_norm`, `rms_norm` and `softmax`:
    those on a GPU in float32, and so will be the results."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    return tuple([each.float() if each is not None and _cast(each) else each for each in tensors])


def _cast(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype in _HALVES


def kernel_eps(eps: float | None, x: torch.Tensor) -> float:
    """`eps`, or where it is None the machine epsilon of the type that the norm of `x` is computed in."""
    if eps is not None:
        return eps
    return float(torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps)
