"""The adapters of PyTorch, CuPy, PyCUDA and JAX, none of which is imported: an array's library already is."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from normgen.dtypes import DTYPES
from normgen.runtime import cuda, device_array, dlpack
from normgen.runtime.views import (
    HOST,
    Adapter,
    ArrayView,
    Shape,
    in_elements,
    known_dtype,
    no_stream,
    plain_stream,
    unsupported,
)

# torch


@cache
def _torch_names() -> dict[Any, str]:
    torch = sys.modules["torch"]
    return {getattr(torch, d.numpy_name): d.name for d in DTYPES.values() if hasattr(torch, d.numpy_name)}


@cache
def _torch_dtypes() -> dict[str, Any]:
    return {name: dtype for dtype, name in _torch_names().items()}


def _look_torch(tensor: Any) -> ArrayView:
    torch, device = sys.modules["torch"], tensor.device
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


def _empty_torch(like: ArrayView, shape: Shape, dtype: str) -> Any:
    return sys.modules["torch"].empty(shape, dtype=_torch_dtypes()[dtype], device=like.owner.device)


@cache
def _torch_stream() -> Any:
    torch = sys.modules["torch"]
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def _stream_torch(view: ArrayView) -> int:
    return plain_stream(_torch_stream()(view.device[1]))


# CuPy


def _look_cupy(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "cupy")
    where = ("cuda", int(array.device.id))
    strides = in_elements(array.strides, dtype)
    return ArrayView(array.data.ptr, dtype, tuple(array.shape), strides, False, where, "cupy", array)


def _empty_cupy(like: ArrayView, shape: Shape, dtype: str) -> Any:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(like.device[1]):
        try:
            return cupy.empty(shape, dtype=DTYPES[dtype].numpy)
        except TypeError:  # an element type that this CuPy does not have
            return device_array.empty(like, shape, dtype)


def _stream_cupy(view: ArrayView) -> int:
    return plain_stream(int(sys.modules["cupy"].cuda.get_current_stream(view.device[1]).ptr))


# PyCUDA


def _look_pycuda(array: Any) -> ArrayView:
    dtype = known_dtype(array.dtype, "pycuda")
    pointer = int(array.gpudata) if array.gpudata is not None else 0
    driver = cuda.default_driver()
    context = driver.current()
    where = ("cuda", driver.device_of(pointer)) if context is None else cuda.device_key(context)
    strides = in_elements(array.strides, dtype)
    return ArrayView(pointer, dtype, tuple(array.shape), strides, False, where, "pycuda", array)


def _empty_pycuda(like: ArrayView, shape: Shape, dtype: str) -> Any:
    with cuda.context_of(like.device):
        return type(like.owner)(shape, DTYPES[dtype].numpy, allocator=like.owner.allocator)


# JAX: arrays that nobody may write, so results are made outside and handed over when done (`deliver`).


def _look_jax(array: Any) -> ArrayView:
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise TypeError("a traced JAX value has no memory: call outside of jit, or through a JAX callback")
    known_dtype(array.dtype, "jax")
    return dlpack.look(array, "jax", readonly=True)


def _empty_jax(like: ArrayView, shape: Shape, dtype: str) -> Any:
    if like.device == HOST:
        import numpy as np

        return np.empty(shape, DTYPES[dtype].numpy)
    return device_array.empty(like, shape, dtype)


def deliver_jax(result: Any) -> Any:
    """A finished result as a JAX array."""
    jax = sys.modules["jax"]
    if isinstance(result, device_array.DeviceArray):
        return jax.dlpack.from_dlpack(result)
    return jax.numpy.asarray(result)


TORCH = Adapter("torch", _look_torch, _empty_torch, _stream_torch)
CUPY = Adapter("cupy", _look_cupy, _empty_cupy, _stream_cupy)
PYCUDA = Adapter("pycuda", _look_pycuda, _empty_pycuda, no_stream)
JAX = Adapter("jax", _look_jax, _empty_jax, no_stream)

# (module, class in it, adapter): looked up only where the module is imported already.
FRAMEWORKS = (
    ("torch", "Tensor", TORCH),
    ("cupy", "ndarray", CUPY),
    ("pycuda.gpuarray", "GPUArray", PYCUDA),
    ("jax", "Array", JAX),
)
