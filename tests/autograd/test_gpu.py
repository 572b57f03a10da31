"""The tape on a real device: a composite graph on PyCUDA's arrays, beside the same one on NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from examples.autograd import Tensor, apply
from normgen.devices.cuda import executor as cuda
from normgen.errors import MachineError
from tests.autograd.drawing import draw, load

pytestmark = pytest.mark.gpu


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


def train(make: Any) -> list[Any]:
    """Three steps of gradient descent; the losses, then every leaf."""
    shapes = ((64, 256), (64, 256), (256,), (256,), (256,))
    leaves = [Tensor(make(draw(*shape, seed=i)), requires_grad=True) for i, shape in enumerate(shapes)]
    (x, residual, w, g, b), losses = leaves, []
    for _ in range(3):
        first = apply(load("rmsnorm"), x, w).y
        h, second = apply(load("add_rmsnorm"), first * 0.5, residual, w)
        third = apply(load("layernorm"), second + h - x, g, b).y
        error = third.reshape(-1, 128) * -third.reshape(128, 128) + 1.0
        loss = (error * error).sum() * (1 / error.data.size)
        loss.backward()
        losses.append(loss.item())
        for leaf in leaves:
            assert type(leaf.grad) is type(leaf.data)
            leaf.data -= leaf.grad * np.float32(0.01)
            leaf.zero_grad()
    return [losses, *(leaf.data for leaf in leaves)]


def test_a_composite_graph(gpuarray: Any) -> None:
    losses, *host = train(np.copy)
    device_losses, *device = train(gpuarray.to_gpu)
    np.testing.assert_allclose(device_losses, losses, rtol=1e-4)
    for one, two in zip(host, device, strict=True):
        np.testing.assert_allclose(two.get(), one, rtol=1e-3, atol=1e-4)
