"""What the tape's tests start from: norms, and arrays drawn from a seed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import normgen
from examples.autograd import Tensor
from normgen import bundled
from normgen.cli.listing import describe
from normgen.runtime.norm import Norm

REQUIRED = {"groups": 2, "head_dim": 8}


def draw(*shape: int, seed: int = 0) -> Any:
    """Standard normal numbers, f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    """The same, to be differentiated by."""
    return Tensor(draw(*shape, seed=seed), requires_grad=True)


@cache
def load(name: str) -> Norm:
    """A bundled spec, or the text of one."""
    required = describe(name).required if name in bundled.names() else ()
    return normgen.load(name, **{attr: REQUIRED[attr] for attr in (each.split(":")[0] for each in required)})
