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
    "torch.no_grad(); or use normgen.torch, which is recorded"
)

_LAZY = (
    "its memory does not hold its values, but negatives or nothing: give .resolve_neg().clone(), or use "
    "normgen.torch, which does"
)


class Torch(Library):
    """Tensors. One that PyTorch records for its derivatives is refused: it would see nothing of what is done
    with it here."""

    name = "torch"
    in_order = True

    def knows(self, array: Any) -> bool:
        return is_a(array, "torch", "Tensor")

    def look(self, array: Any) -> View:
        device = array.device
        if type(array) not in _HELD:
            _check_held(type(array))
        if _is_recorded(array):
            raise TypeError(_RECORDED)
        if array.layout is not sys.modules["torch"].strided:
            raise TypeError(f"a {array.layout} tensor is not strided: use .to_dense()")
        dtype = names_of_types(sys.modules["torch"]).get(array.dtype)
        if dtype is None:
            raise unsupported(str(array.dtype), self)
        if device.type == "cuda":
            where = ("cuda", device.index or 0)
        elif device.type == "cpu":
            where = HOST
        else:
            raise TypeError(f"a tensor on {device} is neither on the CPU nor on a CUDA device")
        shape, strides, pointer = tuple(array.shape), tuple(array.stride()), array.data_ptr()
        if is_lazy(array, pointer):
            raise TypeError(_LAZY)
        return View(pointer, dtype, shape, strides, False, where, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        if type(array) not in _HELD:
            _check_held(type(array))
        if array.requires_grad and _is_recorded(array):
            raise TypeError(_RECORDED)
        found = self.seen(array)
        if is_lazy(array, found[0]):
            raise TypeError(_LAZY)
        return found

    def seen(self, array: Any) -> tuple[Any, Any]:
        """The same, unchecked."""
        pointer = array.data_ptr()
        return pointer, ("torch", array.shape, array.stride(), array.dtype, array.device, pointer & 15)

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        torch = sys.modules["torch"]
        made = torch.empty(shape, dtype=element_types(torch)[dtype], device=like.device)
        return made, made.data_ptr()

    def stream(self, array: Any, device: DeviceKey) -> int:
        return plain_stream(_current_stream(sys.modules["torch"])(device[1]))

    def cast(self, element: str) -> str:
        return f".to(torch.{element})"


_HELD: set[type] = set()  # types of tensors that have memory of their own


def _check_held(kind: type) -> None:
    """Refuse tensors that answer for themselves what is done with them, such as fake ones."""
    plain = getattr(sys.modules["torch"].Tensor, "__torch_dispatch__", None)
    if getattr(kind, "__torch_dispatch__", None) is not plain:
        raise TypeError(f"a {kind.__name__} has no values in memory: use normgen.torch, or a plain tensor")
    _HELD.add(kind)


def _is_recorded(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and sys.modules["torch"].is_grad_enabled()


TORCH = Torch()


def is_lazy(tensor: Any, pointer: int) -> bool:
    """Whether the memory of a tensor does not hold its values, but their negatives, as that of the imaginary
    part of a conjugate, or nothing, as that of the zeros of forward mode. `pointer`: its address."""
    return tensor.is_neg() or (not pointer and _is_zero(tensor))


def resolved(tensor: Any) -> Any:
    """A tensor with the values of this one in memory: itself unless it is lazy."""
    plain = tensor.resolve_neg()
    return plain.clone() if _is_zero(plain) else plain


def _is_zero(tensor: Any) -> bool:
    return bool(getattr(tensor, "_is_zerotensor", bool)())


@cache
def element_types(torch: Any) -> dict[str, Any]:
    """PyTorch's element types by normgen's names."""
    return {d.name: getattr(torch, d.numpy_name) for d in DTYPES.values() if hasattr(torch, d.numpy_name)}


@cache
def names_of_types(torch: Any) -> dict[Any, str]:
    """normgen's names by PyTorch's element types."""
    return {dtype: name for name, dtype in element_types(torch).items()}


@cache
def _current_stream(torch: Any) -> Any:
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)
