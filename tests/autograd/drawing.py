"""What the tape's tests start from: arrays drawn from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgen.autograd import Tensor


def draw(*shape: int, seed: int = 0) -> Any:
    """Standard normal numbers, f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    """The same, to be differentiated by."""
    return Tensor(draw(*shape, seed=seed), requires_grad=True)
