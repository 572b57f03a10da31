"""Arrays of libraries that are not installed here: what the runtime uses of PyTorch, CuPy, JAX and PyCUDA.

Their device memory comes from the imaginary driver. `install` puts the modules where imported ones are.
"""

from __future__ import annotations

import sys
import types
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.arrays import capsule
from normgen.arrays.views import packed
from normgen.dtypes import DTYPES
from tests.fakes.driver import FakeDriver

NUMPY = {
    **{name: np.dtype(name) for name in ("float32", "float64", "float16", "int64")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")},
}


def module(name: str, **contents: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(contents)
    return made


class Memory:
    """Memory of the imaginary driver on one of its devices."""

    def __init__(self, driver: FakeDriver, size: int, index: int = 0) -> None:
        self.block = driver.primary(index).allocate(size)
        self.pointer = self.block.pointer
        driver.places[self.pointer] = index


# torch


class TorchDtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class TorchDevice:
    def __init__(self, kind: str, index: int | None = None) -> None:
        self.type, self.index = kind, index

    def __repr__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class TorchTensor:
    """Only metadata and an address: no reading, no protocol that would copy or complain about gradients."""

    def __init__(
        self, shape: Any, dtype: Any, device: TorchDevice, strides: Any = None, layout: Any = "strided"
    ) -> None:
        self.shape, self.dtype, self.device, self.layout = tuple(shape), dtype, device, layout
        self._strides = strides or packed(self.shape)
        size = prod(self.shape) * NUMPY[dtype.name].itemsize
        if device.type == "cuda":
            self._memory: Any = Memory(self.driver, size, device.index or 0)
            self.pointer = self._memory.pointer
        else:
            self._memory = np.zeros(size, np.uint8)
            self.pointer = self._memory.ctypes.data
        self.requires_grad = False

    driver: FakeDriver

    def stride(self) -> tuple[int, ...]:
        return tuple(self._strides)

    def data_ptr(self) -> int:
        return self.pointer

    const_data_ptr = data_ptr

    def is_neg(self) -> bool:
        return False

    def resolve_neg(self) -> TorchTensor:
        return self

    def _is_zerotensor(self) -> bool:
        return False

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient")

    def detach(self) -> TorchTensor:
        made = object.__new__(TorchTensor)
        made.__dict__.update(self.__dict__, requires_grad=False)
        return made


class Parameter(TorchTensor):
    """A subclass, as `torch.nn.Parameter` is, that requires a gradient."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.requires_grad = True


def torch_module(driver: FakeDriver, current_stream: dict[int, int]) -> types.ModuleType:
    TorchTensor.driver = driver
    made = module(
        "torch",
        Tensor=TorchTensor,
        strided="strided",
        grad_enabled=True,
        is_grad_enabled=lambda: made.grad_enabled,
        empty_strided=lambda shape, strides, dtype, device: TorchTensor(shape, dtype, device),
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: current_stream.get(index, 0)),
        **{name: TorchDtype(name) for name in NUMPY},
    )
    return made


# CuPy


class CupyArray:
    driver: FakeDriver
    device_now = 0

    def __init__(self, shape: Any, dtype: Any, index: int = 0, strides: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.device = types.SimpleNamespace(id=index)
        self._memory = Memory(self.driver, prod(self.shape) * self.dtype.itemsize, index)
        self.pointer = self._memory.pointer
        self.data = types.SimpleNamespace(ptr=self.pointer)
        self.strides = strides or tuple(step * self.dtype.itemsize for step in packed(self.shape))


class CupyDevice:
    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        self.before, CupyArray.device_now = CupyArray.device_now, self.index

    def __exit__(self, *_: Any) -> None:
        CupyArray.device_now = self.before


def cupy_module(driver: FakeDriver, current_stream: dict[int, int]) -> types.ModuleType:
    CupyArray.driver = driver

    def empty(shape: Any, dtype: Any) -> CupyArray:
        if np.dtype(dtype).itemsize == 1:
            raise TypeError("Unsupported dtype")
        return CupyArray(shape, dtype, CupyArray.device_now)

    def current(index: int) -> Any:
        return types.SimpleNamespace(ptr=current_stream.get(index, 0))

    cuda = types.SimpleNamespace(Device=CupyDevice, get_current_stream=current)
    return module("cupy", ndarray=CupyArray, empty=empty, cuda=cuda)


# JAX


class JaxArray:
    driver: FakeDriver

    def __init__(self, shape: Any, dtype: Any, index: int | None = 0) -> None:
        self.shape, self.dtype, self.index = tuple(shape), np.dtype(dtype), index
        self.asked: list[Any] = []
        if index is None:
            self.host = np.zeros(shape, dtype)
        else:
            self._memory = Memory(self.driver, prod(self.shape) * self.dtype.itemsize, index)
            self.pointer = self._memory.pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.index is None else (2, self.index)

    def __dlpack__(self, *, stream: Any = None) -> Any:  # of the time before versions
        self.asked.append(stream)
        if self.index is None:
            return self.host.__dlpack__()
        name = next(d for d in capsule._CODES if DTYPES[d].numpy == self.dtype)
        return capsule.write(self.pointer, name, self.shape, packed(self.shape), self.index, self)


class JaxTracer(JaxArray):
    def __init__(self) -> None:
        pass


def jax_module(driver: FakeDriver) -> types.ModuleType:
    JaxArray.driver = driver
    of = types.SimpleNamespace
    return module(
        "jax",
        Array=JaxArray,
        core=of(Tracer=JaxTracer),
        dlpack=of(from_dlpack=lambda array: ("jax array from", array, array.__dlpack__(stream=0x99))),
        numpy=of(asarray=lambda array: ("jax array of", array)),
    )


# PyCUDA


class GpuArray:
    driver: FakeDriver

    def __init__(self, shape: Any, dtype: Any, allocator: Any = None, strides: Any = None) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.allocator = allocator or self.allocate
        size = prod(self.shape) * self.dtype.itemsize
        self.gpudata = self.allocator(size) if size else None
        self.strides = strides or tuple(step * self.dtype.itemsize for step in packed(self.shape))

    @classmethod
    def allocate(cls, size: int) -> Any:
        context = cls.driver.stack[-1] if cls.driver.stack else cls.driver.user
        assert context is not None, "PyCUDA allocates in its current context only"
        return Address(context.allocate(size))


class Address:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __int__(self) -> int:
        return int(self.memory.pointer)


def gpuarray_module(driver: FakeDriver) -> types.ModuleType:
    GpuArray.driver = driver
    return module("pycuda.gpuarray", GPUArray=GpuArray)


# The protocols alone


class Interface:
    """An object with `__cuda_array_interface__` and no more; `fields` are set over the usual ones."""

    def __init__(self, driver: FakeDriver, shape: Any, typestr: str, index: int = 0, **fields: Any) -> None:
        self._memory = Memory(driver, 64 + prod(shape) * int(typestr[2:]), index)
        self.pointer = self._memory.pointer
        self.__cuda_array_interface__ = {
            "shape": tuple(shape),
            "typestr": typestr,
            "data": (self.pointer, False),
            "version": 2,
            **fields,
        }


class Exchange:
    """An object with `__dlpack__` and no more, that hands out the capsule it was made with."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.stream = stream
        return self.capsule


def install(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> dict[int, int]:
    """Put all of the modules in place; returns the current stream of torch and CuPy by device, to be set."""
    streams: dict[int, int] = {}
    libraries = torch_module(driver, streams), cupy_module(driver, streams)
    for made in (*libraries, jax_module(driver), gpuarray_module(driver)):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    return streams
