"""PyTorch's tensors, on the host and on CUDA devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any

from normgen.arrays.views import Library, View, is_a, packed, plain_stream, unsupported
from normgen.dtypes import DTYPES
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.layout import Shape
from normgen.locks import cached_property

_RECORDED = (
    "it requires grad, and autograd does not record this call: use normgen.torch, which autograd records, "
    "pass .detach(), or call under torch.no_grad()"
)

_LAZY = (
    "it is a lazily negated or lazily zero tensor, so its memory does not hold its values: pass "
    ".resolve_neg().clone(), or use normgen.torch"
)


class Torch(Library):
    """Tensors. One that PyTorch records for its derivatives is refused: it would see nothing of what is done
    with it here."""

    name = "torch"
    in_order = True
    own = methodcaller("data_ptr")

    def knows(self, array: Any) -> bool:
        return is_a(array, "torch", "Tensor")

    def look(self, array: Any) -> View:
        device = array.device
        if type(array) not in _HELD:
            _check_held(type(array))
        if _is_recorded(array):
            raise TypeError(_RECORDED)
        if array.layout is not sys.modules["torch"].strided:
            raise TypeError(f"tensors of layout {array.layout} are not supported: pass .to_dense()")
        dtype = names_of_types(sys.modules["torch"]).get(array.dtype)
        if dtype is None:
            raise unsupported(str(array.dtype), self)
        if device.type == "cuda":
            where = ("cuda", device.index or 0)
        elif device.type == "cpu":
            where = HOST
        else:
            raise TypeError(f"it is on {device}: move it to the CPU or a CUDA device")
        if resolved(array) is not array:
            raise TypeError(_LAZY)
        shape, strides = tuple(array.shape), tuple(array.stride())
        return View(self.address(array), dtype, shape, strides, False, where, self, array)

    def glance(self, array: Any) -> tuple[Any, Any]:
        if type(array) not in _HELD:
            _check_held(type(array))
        pointer = self.address(array)
        aligned = pointer & 15 if pointer else None
        # Tensors that `look` refuses have keys of their own.
        refused = array.is_neg() or (array.requires_grad and _is_recorded(array))
        key = ("torch", array.shape, array.stride(), array.dtype, array.device, aligned, refused)
        return pointer, key

    @cached_property
    def address(self) -> Callable[[Any], int]:
        """The address of a tensor that is read: a lazy clone stays one, which `data_ptr` would end."""
        known = hasattr(sys.modules["torch"].Tensor, "const_data_ptr")
        return methodcaller("const_data_ptr" if known else "data_ptr")

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        torch = sys.modules["torch"]
        dtype_of = element_types(torch)
        made = torch.empty_strided(shape, packed(shape), dtype=dtype_of[dtype], device=like.device)
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
        raise TypeError(f"a {kind.__name__} has no data: use normgen.torch, or pass a plain tensor")
    _HELD.add(kind)


def _is_recorded(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and sys.modules["torch"].is_grad_enabled()


TORCH = Torch()


def resolved(tensor: Any) -> Any:
    """A tensor with the values of this one in memory: itself unless it stands for other ones, as the
    imaginary part of a conjugate and the zeros of forward mode do."""
    plain = tensor.resolve_neg()
    return plain.clone() if getattr(plain, "_is_zerotensor", bool)() else plain


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
