"""A norm over the stubs, and arrays to call it with."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from normgen.package.records import Package
from normgen.runtime.norm import Norm
from tests.fakes.arrays import TorchDevice, TorchTensor
from tests.runtime import stubs

f32 = np.float32


def zeros(*shape: int, dtype: Any = f32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def tensor(
    *shape: int, dtype: str = "float32", device: int = 0, kind: type[TorchTensor] = TorchTensor, **more: Any
) -> TorchTensor:
    """A tensor of the imitation of PyTorch, on a device of the imaginary driver."""
    return kind(shape, getattr(sys.modules["torch"], dtype), TorchDevice("cuda", device), **more)


def made(package: Package | None = None) -> tuple[Norm, stubs.Recorder]:
    recorder = stubs.Recorder()
    return stubs.norm(package, recorder), recorder


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


X, W, B = zeros(4, 8), zeros(8), zeros(8)
DY, RSTD = zeros(4, 8), zeros(4)
