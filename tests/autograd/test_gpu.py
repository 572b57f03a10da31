"""The tape on a real device: a composite graph on PyCUDA's arrays, beside the same one on NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.autograd import Tensor, apply
from normgen.devices.cuda import executor as cuda
from normgen.errors import MachineError
from tests.autograd.drawing import draw

pytestmark = pytest.mark.gpu

f32 = np.float32


@pytest.fixture
def gpuarray() -> Iterator[Any]:
    try:
        cuda.executor_of(("cuda", 0)).driver.compiler.toolchain()
    except MachineError as reason:
        pytest.skip(f"no device to run on: {reason}")
    import pycuda.driver as driver
    from pycuda import gpuarray

    context = driver.Device(0).retain_primary_context()
    context.push()
    yield gpuarray
    driver.Context.pop()


def train(make: Any, steps: int = 3) -> list[Any]:
    """Three steps of gradient descent; the losses, then every leaf."""
    rms, add, ln = (normgen.load(name) for name in ("rmsnorm", "add_rmsnorm", "layernorm"))
    x, residual = (Tensor(make(draw(64, 256, seed=i)), requires_grad=True) for i in range(2))
    w, g, b = (Tensor(make(draw(256, seed=2 + i)), requires_grad=True) for i in range(3))
    leaves, losses = (x, residual, w, g, b), []
    for _ in range(steps):
        first = apply(rms, x, w).y
        h, second = apply(add, first * 0.5, residual, w)
        third = apply(ln, second + h - x, g, b).y
        error = third.reshape(-1, 128) * -third.reshape(128, 128) + 1.0
        loss = (error * error).sum() * (1 / error.data.size)
        loss.backward()
        losses.append(loss.item())
        for leaf in leaves:
            assert type(leaf.grad) is type(leaf.data)
            leaf.data -= leaf.grad * f32(0.01)
            leaf.zero_grad()
    return [losses, *(leaf.data for leaf in leaves)]


def test_a_composite_graph(gpuarray: Any) -> None:
    losses, *host = train(np.copy)
    device_losses, *device = train(gpuarray.to_gpu)
    np.testing.assert_allclose(device_losses, losses, rtol=1e-4)
    for one, two in zip(host, device, strict=True):
        np.testing.assert_allclose(two.get(), one, rtol=1e-3, atol=1e-4)
