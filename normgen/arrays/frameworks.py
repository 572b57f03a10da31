"""The adapters of PyTorch, CuPy, PyCUDA and JAX, none of which is imported: an array's library already is."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from normgen.arrays import device_array, dlpack
from normgen.arrays.views import (
    Adapter,
    ArrayView,
    Shape,
    empty_numpy,
    in_elements,
    known_dtype,
    no_stream,
    plain_stream,
    unsupported,
)
from normgen.devices.executors import context_of, current_context, device_holding, key_of
from normgen.dtypes import DTYPES
from normgen.launching.launch import HOST, DeviceKey

# torch

_RECORDED = (
    "it requires a gradient, and PyTorch does not record what a norm computes: give .detach(), or call under "
    "torch.no_grad(); normgen.torch, which is to record it, is not there yet"
)


@cache
def _torch_names() -> dict[Any, str]:
    torch = sys.modules["torch"]
    return {getattr(torch, d.numpy_name): d.name for d in DTYPES.values() if hasattr(torch, d.numpy_name)}


@cache
def _torch_dtypes() -> dict[str, Any]:
    return {name: dtype for dtype, name in _torch_names().items()}


def _is_recorded(tensor: Any) -> bool:
    """Whether PyTorch records what is done with a tensor. It sees nothing of what kernels here do with it."""
    return bool(tensor.requires_grad) and sys.modules["torch"].is_grad_enabled()


def _look_torch(tensor: Any) -> ArrayView:
    torch, device = sys.modules["torch"], tensor.device
    if _is_recorded(tensor):
        raise TypeError(_RECORDED)
    if tensor.layout is not torch.strided:
        raise TypeError(f"a {tensor.layout} tensor is not strided: use .to_dense()")
    dtype = _torch_names().get(tensor.dtype)
    if dtype is None:
        raise unsupported(str(tensor.dtype), "torch")
    if device.type == "cuda":
        where = ("cuda", device.index or 0)
    elif device.type == "cpu":
        where = HOST
    else:
        raise TypeError(f"a tensor on {device} is neither on the CPU nor on a CUDA device")
    return ArrayView(
        tensor.data_ptr(), dtype, tuple(tensor.shape), tuple(tensor.stride()), False, where, "torch", tensor
    )


def _glance_torch(tensor: Any) -> tuple[int, Any]:
    if tensor.requires_grad and _is_recorded(tensor):
        raise TypeError(_RECORDED)
    pointer = tensor.data_ptr()
    return pointer, ("torch", tensor.shape, tensor.stride(), tensor.dtype, tensor.device, pointer & 15)


def _empty_torch(tensor: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    made = sys.modules["torch"].empty(shape, dtype=_torch_dtypes()[dtype], device=tensor.device)
    return made, made.data_ptr()


@cache
def _torch_stream() -> Any:
    torch = sys.modules["torch"]
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def _stream_torch(tensor: Any, device: DeviceKey) -> int:
    return plain_stream(_torch_stream()(device[1]))


# CuPy


def _look_cupy(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "cupy")
    where = ("cuda", int(array.device.id))
    strides = in_elements(array.strides, dtype)
    return ArrayView(array.data.ptr, dtype, tuple(array.shape), strides, False, where, "cupy", array)


def _glance_cupy(array: Any) -> tuple[int, Any]:
    pointer = array.data.ptr
    return pointer, ("cupy", array.shape, array.strides, array.dtype, array.device.id, pointer & 15)


def _empty_cupy(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device[1]):
        try:
            made = cupy.empty(shape, dtype=DTYPES[dtype].numpy)
        except TypeError:  # an element type that this CuPy does not have
            return device_array.empty(array, device, shape, dtype)
    return made, made.data.ptr


def _stream_cupy(array: Any, device: DeviceKey) -> int:
    return plain_stream(int(sys.modules["cupy"].cuda.get_current_stream(device[1]).ptr))


# PyCUDA


def _look_pycuda(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "pycuda")
    pointer = _address_pycuda(array)
    context = current_context()
    where = device_holding(pointer) if context is None else key_of(context)
    strides = in_elements(array.strides, dtype)
    return ArrayView(pointer, dtype, tuple(array.shape), strides, False, where, "pycuda", array)


def _address_pycuda(array: Any) -> int:
    return int(array.gpudata) if array.gpudata is not None else 0


def _glance_pycuda(array: Any) -> tuple[int, Any]:
    memory = array.gpudata
    pointer = int(memory) if memory is not None else 0
    return pointer, ("pycuda", array.shape, array.strides, array.dtype, pointer & 15)


def _place_pycuda() -> Any:
    return current_context()


def _empty_pycuda(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    with context_of(device):
        made = type(array)(shape, DTYPES[dtype].numpy, allocator=array.allocator)
    return made, _address_pycuda(made)


# JAX: arrays that nobody may write, so results are made outside and handed over when done (`deliver`).


def _look_jax(array: Any) -> ArrayView:
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise TypeError("a traced JAX value has no memory: call outside of jit, or through a JAX callback")
    known_dtype(array.dtype, "jax")
    return dlpack.look(array, "jax", readonly=True)


def _empty_jax(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    if device == HOST:
        return empty_numpy(array, device, shape, dtype)
    return device_array.empty(array, device, shape, dtype)


def _deliver_jax(result: Any, stream: int) -> Any:
    jax = sys.modules["jax"]
    if isinstance(result, device_array.DeviceArray):
        return jax.dlpack.from_dlpack(device_array.queued(result, stream))
    return jax.numpy.asarray(result)


TORCH = Adapter("torch", _look_torch, _empty_torch, _stream_torch, _glance_torch)
CUPY = Adapter("cupy", _look_cupy, _empty_cupy, _stream_cupy, _glance_cupy, deliver=device_array.queued)
PYCUDA = Adapter("pycuda", _look_pycuda, _empty_pycuda, no_stream, _glance_pycuda, _place_pycuda)
JAX = Adapter("jax", _look_jax, _empty_jax, no_stream, deliver=_deliver_jax)

# (module, class in it, adapter): looked up only where the module is imported already.
FRAMEWORKS = (
    ("torch", "Tensor", TORCH),
    ("cupy", "ndarray", CUPY),
    ("pycuda.gpuarray", "GPUArray", PYCUDA),
    ("jax", "Array", JAX),
)
