"""When modules run kernels, and the precision that they compute in with no eps given."""

from __future__ import annotations

import torch

from normgen.torch.choice import cpu_kernels

# The modes of a call in which a kind of norm runs PyTorch's own operators on a GPU too. A compiler fuses them
# with their neighbours, and a call of kernels that updates states costs the host more than the kernels save.
# Evidence: bench/evidence/torch_models.csv, "compile" compared with "normgen compile" and "normgen fused
# compile".
STATISTICS, JOINED = "running statistics", "joined with an activation"
OWN_CODE = frozenset({(STATISTICS, "compiled"), (JOINED, "compiled")})


def has_kernels(x: torch.Tensor, kind: str = "") -> bool:
    """Whether a call on `x` runs kernels: they take it, and are faster than the code that they replace.

    Otherwise a drop-in or a patched module runs what it replaces. `kind`: a kind of norm of `OWN_CODE`.
    """
    if x.is_cpu:
        return cpu_kernels() and takes(x)
    mode = "compiled" if torch.compiler.is_compiling() else "eager"
    return takes(x) and (kind, mode) not in OWN_CODE


def takes(x: torch.Tensor) -> bool:
    """Whether kernels take `x`: its type, on its device. `torch.jit.trace`, and what exports by it, know the
    operators of PyTorch alone."""
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
