"""Arrays of PyTorch, CuPy, PyCUDA and JAX: seen in place, allocated alike, refused by name."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from normgen import arrays
from normgen.arrays.device_array import DeviceArray
from normgen.devices.cuda import executor as cuda
from normgen.dtypes import DTYPES
from tests.fakes.arrays import (
    CupyArray,
    GpuArray,
    JaxArray,
    JaxTracer,
    Parameter,
    TorchDevice,
    TorchTensor,
    install,
)
from tests.fakes.driver import FakeDriver


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Iterator[dict[int, int]]:
    """Every library over the imaginary driver; at the end nothing was copied between host and device."""
    yield install(monkeypatch, driver)
    assert driver.copies == []


def tensor(
    *shape: int, dtype: str = "float32", device: TorchDevice | None = None, **more: Any
) -> TorchTensor:
    return TorchTensor(shape, getattr(sys.modules["torch"], dtype), device or TorchDevice("cuda", 1), **more)


# torch


def test_torch_tensors_on_a_device(streams: dict[int, int], driver: FakeDriver) -> None:
    names = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64")
    for name, dtype in zip(names, ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f64"), strict=True):
        x = tensor(2, 3, dtype=name)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.shape, view.strides) == (x.data_ptr(), dtype, (2, 3), (3, 1))
        assert (view.device, view.library.name) == (("cuda", 1), "torch")
        made = arrays.allocate(view, (5,), dtype)
        assert type(made) is TorchTensor and made.dtype is x.dtype and made.device.index == 1
    assert arrays.view(tensor(4, 4, strides=(1, 4))).strides == (1, 4)
    trained = Parameter((2,), sys.modules["torch"].float32, TorchDevice("cuda"))
    sys.modules["torch"].grad_enabled = False  # type: ignore[attr-defined]
    assert arrays.view(trained).device == ("cuda", 0)


def test_torch_s_current_stream_is_asked_for_each_time(streams: dict[int, int]) -> None:
    view = arrays.view(tensor(2))
    assert arrays.stream_of(view) == 0
    streams[1] = 0x5000
    assert arrays.stream_of(view) == 0x5000
    streams[1] = 1  # the default stream by its other name
    assert arrays.stream_of(view) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_torch_tensors_on_the_host_are_seen_in_place(streams: dict[int, int], dtype: str) -> None:
    x = tensor(2, 3, dtype=dtype, device=TorchDevice("cpu"))
    view = arrays.view(x)
    assert (view.pointer, view.device, view.library.name) == (x.data_ptr(), ("host", 0), "torch")
    made = arrays.allocate(view, (4,), "f32")
    assert type(made) is TorchTensor and made.device.type == "cpu"
    memory = (ctypes.c_ubyte * 16).from_address(made.data_ptr())
    memory[3] = 7
    zeroed = arrays.zeros(view, (4,), "f32")
    assert bytes((ctypes.c_ubyte * 16).from_address(zeroed.data_ptr())) == bytes(16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int64"}, r"w: torch\.int64 .*\.to\(torch\.float32\)"),
        ({"layout": "sparse_coo"}, r"w: .*not strided: use \.to_dense"),
        ({"device": TorchDevice("meta")}, "w: a tensor on meta is neither"),
    ],
)
def test_torch_tensors_that_are_refused(
    streams: dict[int, int], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match=message):
        arrays.view(tensor(2, **options), "w")


# CuPy


def test_cupy_arrays(streams: dict[int, int]) -> None:
    for name in ("f32", "f16", "bf16"):
        x = CupyArray((2, 3), DTYPES[name].numpy, 1)
        view = arrays.view(x)
        assert (view.pointer, view.dtype, view.strides) == (x.data.ptr, name, (3, 1))
        assert (view.device, view.library.name) == (("cuda", 1), "cupy")
        made = arrays.allocate(view, (4,), name)
        assert type(made) is CupyArray and made.device.id == 1
    assert arrays.view(CupyArray((4, 4), np.float32, strides=(4, 16))).strides == (1, 4)
    assert type(arrays.allocate(view, (4,), "f8e4m3")) is DeviceArray  # which CuPy does not have
    streams[1] = 0x70
    assert arrays.stream_of(view) == 0x70
    with pytest.raises(TypeError, match=r"x: int64 .*\.astype\(cupy\.float32\)"):
        arrays.view(CupyArray((2,), np.int64), "x")


# PyCUDA


@pytest.mark.parametrize("own", [False, True])
def test_gpuarrays_are_in_pycuda_s_context_if_it_has_one(
    streams: dict[int, int], driver: FakeDriver, own: bool
) -> None:
    context = driver.make_current(1) if own else driver.primary(1)
    with context:
        x = GpuArray((2, 3), DTYPES["bf16"].numpy)
    driver.places[int(x.gpudata)] = 1
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.strides, view.library.name) == (
        int(x.gpudata),
        "bf16",
        (3, 1),
        "pycuda",
    )
    assert cuda.context_of(view.device) is context and view.device[1] == 1
    assert (view.device == ("cuda", 1)) is not own
    made = arrays.allocate(view, (7,), "f32")
    assert type(made) is GpuArray
    assert driver.stack == [] and arrays.stream_of(view) == 0
    empty = arrays.allocate(view, (0, 3), "f32")
    assert arrays.view(empty).pointer == 0
    zeroed = arrays.zeros(view, (4,), "bf16", stream=0x30)
    assert driver.fills == [(int(zeroed.gpudata), 8, 0x30)]


# JAX


def test_jax_arrays_are_read_and_results_handed_over(streams: dict[int, int], driver: FakeDriver) -> None:
    x = JaxArray((2, 3), DTYPES["bf16"].numpy, 1)
    view = arrays.view(x)
    assert (view.pointer, view.dtype, view.shape, view.strides) == (x.pointer, "bf16", (2, 3), (3, 1))
    assert (view.device, view.library.name, view.readonly) == (("cuda", 1), "jax", True)
    assert x.asked == [1] and arrays.stream_of(view) == 0  # ordered before the default stream
    made = arrays.allocate(view, (4,), "bf16")
    assert type(made) is DeviceArray and made.device == ("cuda", 1)
    word, array, _ = view.library.deliver(made, 0x44)
    assert word == "jax array from" and array is made
    assert driver.waits == [(0x99, 0x44)]  # JAX's stream waits for ours


def test_jax_arrays_on_the_host(streams: dict[int, int]) -> None:
    x = JaxArray((2, 3), np.float32, None)
    view = arrays.view(x)
    assert (view.pointer, view.device, view.readonly) == (x.host.ctypes.data, ("host", 0), True)
    made = arrays.allocate(view, (4,), "f32")
    assert view.library.deliver(made, 0) == ("jax array of", made)


def test_jax_values_without_memory_are_refused(streams: dict[int, int]) -> None:
    with pytest.raises(TypeError, match="x: a traced JAX value"):
        arrays.view(JaxTracer(), "x")
