"""Element types under `torch.autocast`, as PyTorch has them for its own norms.

On the CPU PyTorch casts nothing for a norm. On a GPU it gives `layer_norm`, `rms_norm`, `group_norm`,
`softmax` and `log_softmax` float32, whatever they are called with, and leaves `batch_norm` and
`instance_norm` alone. Norms of these names do the same; all others take their operands as they are.
"""

from __future__ import annotations

import torch

WIDENED = frozenset(
    (
        "layernorm",
        "rmsnorm",
        "groupnorm",
        "groupnorm_channels_last",
        "softmax",
        "softmax2d",
        "log_softmax",
        "local_response_norm",
    )
)
_HALVES = (torch.bfloat16, torch.float16)


def full(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The tensors as autocast hands them to a norm that it widens: those on a GPU in float32, and so will be
    the results."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    return tuple([each.float() if each is not None and _cast(each) else each for each in tensors])


def _cast(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype in _HALVES
