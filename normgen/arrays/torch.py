"""PyTorch's tensors, on the host and on CUDA devices."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from normgen.arrays.views import Library, View, is_a, plain_stream, unsupported
from normgen.dtypes import DTYPES
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Shape

_RECORDED = (
    "it requires a gradient, and PyTorch does not record what a norm computes: give .detach(), or call under "
    "torch.no_grad(); normgen.torch, which is to record it, is not there yet"
)


class Torch(Library):
    """Tensors. One that PyTorch records for its derivatives is refused: it would see nothing of what is done
    with it here."""

    name = "torch"

    def knows(self, array: Any) -> bool:
        return is_a(array, "torch", "Tensor")

    def look(self, array: Any) -> View:
        device = array.device
        if _is_recorded(array):
            raise TypeError(_RECORDED)
        if array.layout is not sys.modules["torch"].strided:
            raise TypeError(f"a {array.layout} tensor is not strided: use .to_dense()")
        dtype = _names().get(array.dtype)
        if dtype is None:
            raise unsupported(str(array.dtype), self)
        if device.type == "cuda":
            where = ("cuda", device.index or 0)
        elif device.type == "cpu":
            where = HOST
        else:
            raise TypeError(f"a tensor on {device} is neither on the CPU nor on a CUDA device")
        shape, strides = tuple(array.shape), tuple(array.stride())
        return View(array.data_ptr(), dtype, shape, strides, False, where, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        if array.requires_grad and _is_recorded(array):
            raise TypeError(_RECORDED)
        pointer = array.data_ptr()
        return pointer, ("torch", array.shape, array.stride(), array.dtype, array.device, pointer & 15)

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        torch = sys.modules["torch"]
        made = torch.empty(shape, dtype=getattr(torch, DTYPES[dtype].numpy_name), device=like.device)
        return made, made.data_ptr()

    def stream(self, array: Any, device: DeviceKey) -> int:
        return plain_stream(_current_stream()(device[1]))

    def cast(self, element: str) -> str:
        return f".to(torch.{element})"


def _is_recorded(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and sys.modules["torch"].is_grad_enabled()


@cache
def _names() -> dict[Any, str]:
    torch = sys.modules["torch"]
    return {getattr(torch, d.numpy_name): d.name for d in DTYPES.values() if hasattr(torch, d.numpy_name)}


@cache
def _current_stream() -> Any:
    torch = sys.modules["torch"]
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)
