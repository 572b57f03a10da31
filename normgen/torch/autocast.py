"""Element types under `torch.autocast`, as PyTorch has them for its own norms.

On the CPU PyTorch casts nothing for a norm. On a GPU it gives `layer_norm`, `group_norm`, `softmax` and
`log_softmax` float32, whatever they are called with, some releases `rms_norm` too, and leaves `batch_norm`
and `instance_norm` alone. Norms of these names do the same; all others take their operands as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch

from normgen.torch.private import constant, fake_mode

_WIDENED = frozenset(
    (
        "layernorm",
        "groupnorm",
        "groupnorm_channels_last",
        "softmax",
        "softmax2d",
        "log_softmax",
        "local_response_norm",
    )
)
_HALVES = (torch.bfloat16, torch.float16)


@constant
def widened(norm: str) -> bool:
    """Whether autocast on a GPU gives a norm float32."""
    return norm in _WIDENED or (norm == "rmsnorm" and _widens_rms_norm())


@cache
def _widens_rms_norm() -> bool:
    """Whether the PyTorch that is here does so for its `rms_norm`."""
    with on_imagined_gpu() as there:
        if not there:
            return False
        x = torch.empty(2, device="cuda", dtype=torch.bfloat16)
        return torch.nn.functional.rms_norm(x, (2,), x).dtype is torch.float32


@contextmanager
def on_imagined_gpu() -> Iterator[bool]:
    """Autocast to bfloat16 on a GPU, which need not be there: tensors have no values. Whether this PyTorch
    can do so."""
    mode = fake_mode()
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with mode or nullcontext():
            yield mode is not None
    finally:
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)


def full(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The tensors as autocast hands them to a norm that it widens: those on a GPU in float32, and so will be
    the results."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    return tuple([each.float() if each is not None and _cast(each) else each for each in tensors])


def _cast(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype in _HALVES
