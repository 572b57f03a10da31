"""DLPack, read and written with ctypes: arrays of any library that speaks it, uncopied and in every dtype.

NumPy's own reader knows neither bf16 nor fp8.  A capsule that was read is kept and never marked as used, so
its own destructor gives the memory back.
"""

from __future__ import annotations

import atexit
import ctypes
from typing import Any

from normgen.arrays.views import ArrayView, Shape, packed
from normgen.launching.launch import DEFAULT_STREAM, HOST, LEGACY_STREAM, DeviceKey

# (type code, bits) of the standard.
_CODES = {
    "f64": (2, 64),
    "f32": (2, 32),
    "f16": (2, 16),
    "bf16": (4, 16),
    "f8e4m3": (10, 8),
    "f8e5m2": (12, 8),
}
_NAMES = {code: name for name, code in _CODES.items()}
_CLASSES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_python = ctypes.pythonapi
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer_of = _python.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_PLAIN, _NAMED = b"dltensor", b"dltensor_versioned"


def look(array: Any, kind: str = "dlpack", readonly: bool = False) -> ArrayView:
    """A view of anything with `__dlpack__`, its producer's work ordered before the default stream."""
    where = int(array.__dlpack_device__()[0])
    stream = LEGACY_STREAM if where in (_CUDA, _CUDA_MANAGED) else None
    try:
        try:
            capsule = array.__dlpack__(stream=stream, max_version=(1, 1))
        except TypeError:  # from before versions
            capsule = array.__dlpack__(stream=stream)
    except (BufferError, RuntimeError) as fault:
        raise TypeError(f"a {type(array).__name__} that does not share its memory: {fault}") from fault
    return _read(capsule, array, kind, readonly)


def _read(capsule: Any, owner: Any, kind: str, readonly: bool) -> ArrayView:
    if _is_valid(capsule, _NAMED):
        versioned = _Versioned.from_address(_pointer_of(capsule, _NAMED))
        if versioned.major != 1:
            raise TypeError(f"DLPack version {versioned.major}.{versioned.minor} is not known")
        tensor, readonly = versioned.tensor, readonly or bool(versioned.flags & _READ_ONLY)
    elif _is_valid(capsule, _PLAIN):
        tensor = _Managed.from_address(_pointer_of(capsule, _PLAIN)).tensor
    else:
        raise TypeError(f"__dlpack__ of a {type(owner).__name__} gave no DLPack capsule")
    dtype = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        word = f"{_CLASSES.get(tensor.code, 'code ' + str(tensor.code))}{tensor.bits}"
        raise TypeError(f"{word} is no element type of kernels: cast it to float32")
    shape: Shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else packed(shape)
    device = _device(tensor.device_type, tensor.device_id)
    pointer = (tensor.data or 0) + tensor.byte_offset
    pending = None if device == HOST else DEFAULT_STREAM
    return ArrayView(pointer, dtype, shape, strides, readonly, device, kind, owner, capsule, pending)


def _device(code: int, index: int) -> DeviceKey:
    if code in (_CPU, _CUDA_HOST):
        return HOST
    if code in (_CUDA, _CUDA_MANAGED):
        return ("cuda", index)
    raise TypeError(f"memory of DLPack device type {code} is neither the host's nor CUDA's")


# Writing: one structure for each capsule out, until its consumer or the capsule calls the deleter.

_out: dict[int, tuple[_Managed, Any]] = {}


def _forget(address: int) -> None:
    _out.pop(address, None)


@atexit.register
def _let_go() -> None:
    """From the end of the interpreter on nobody may call back into it: consumers that outlive it get a
    deleter that does nothing, and their structures stay."""
    nothing = _Deleter(ctypes.cast(_python.Py_IsInitialized, ctypes.c_void_p).value or 0)
    for managed, _ in _out.values():
        managed.deleter = nothing
    _python.Py_IncRef(ctypes.py_object(_out))


def _drop(capsule: int) -> None:
    # Called with an object that is being destroyed, so only its address is passed on.
    if _is_valid_raw(capsule, _PLAIN):
        _forget(_pointer_of_raw(capsule, _PLAIN))


_release, _drop_unused = _Deleter(_forget), _Deleter(_drop)


_raw = (ctypes.c_void_p, ctypes.c_char_p)
_is_valid_raw = ctypes.PYFUNCTYPE(ctypes.c_int, *_raw)(("PyCapsule_IsValid", _python))
_pointer_of_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_raw)(("PyCapsule_GetPointer", _python))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Deleter)(
    ("PyCapsule_New", _python)
)


def write(pointer: int, dtype: str, shape: Shape, strides: Shape, index: int, owner: Any) -> Any:
    """A capsule for memory on CUDA device `index`; `owner` lives until the consumer is done."""
    code, bits = _CODES[dtype]
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*strides)
    managed = _Managed()
    managed.tensor = _Tensor(pointer, _CUDA, index, len(shape), code, bits, 1, extents, steps, 0)
    managed.deleter = _release
    address = ctypes.addressof(managed)
    _out[address] = (managed, (owner, extents, steps))
    return _new_capsule(address, _PLAIN, _drop_unused)


def device_tuple(index: int) -> tuple[int, int]:
    """What `__dlpack_device__` answers for a CUDA device."""
    return (_CUDA, index)
