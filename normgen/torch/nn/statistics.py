"""Running statistics of any element type, where kernels keep float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normgen.torch.function import NormFunction

States = Sequence["torch.Tensor | None"]
_HALVES = (torch.bfloat16, torch.float16)


def widened(states: States) -> list[torch.Tensor | None]:
    """The states as kernels take them."""
    return [state.float() if state is not None and state.dtype in _HALVES else state for state in states]


def narrowed(states: States, wide: States) -> None:
    """Bring what a norm made of the widened states back to the states."""
    for state, new in zip(states, wide, strict=True):
        if state is not None and new is not state:
            state.copy_(new)


def with_statistics(
    norm: NormFunction,
    operands: Sequence[torch.Tensor | None],
    states: States,
    **numbers: float,
) -> Any:
    """The norm of inputs and params, `operands`. What it makes of its states, a running mean and variance, is
    in these afterwards."""
    for state in states:
        if state is not None and state.dtype in _HALVES:
            wide = widened(states)
            y = norm(*operands, *wide, **numbers)
            narrowed(states, wide)
            return y
    return norm(*operands, *states, **numbers)
