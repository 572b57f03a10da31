"""DLPack's capsules, read and written with ctypes: arrays of any library that supports DLPack, uncopied, in
every element type. (NumPy's reader supports neither bf16 nor fp8.)

A capsule that was read is kept and never marked as used, so its own destructor frees the memory.
"""

from __future__ import annotations

import atexit
import ctypes
import struct
from typing import Any

from normgen.arrays.views import Library, View, packed
from normgen.launching.launch import DEFAULT_STREAM, HOST, LEGACY_STREAM, DeviceKey
from normgen.launching.layout import Shape

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
_CPU, CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1

# DLTensor: data, device type, ordinal, dimensions, type code, bits, lanes, shape, strides, offset in bytes.
_TENSOR = struct.Struct("PiiiBBHPPQ")
# What follows it in a DLManagedTensor: context, deleter.
_MANAGED = struct.Struct("PP")
# What is before it in a DLManagedTensorVersioned: major and minor version, context, deleter, flags.
_HEADER = struct.Struct("IIPPQ")

# Their memory, as it lies there.
_TensorBytes, _HeaderBytes = ctypes.c_char * _TENSOR.size, ctypes.c_char * _HEADER.size

# Capsules go by address: a destructor gets one that is no object any more.
_named = (ctypes.c_void_p, ctypes.c_char_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_named)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_named)(("PyCapsule_GetPointer", ctypes.pythonapi))
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, *_named, _Deleter)(("PyCapsule_New", ctypes.pythonapi))
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


def look(array: Any, library: Library, readonly: bool = False) -> View:
    """A view of anything with `__dlpack__`, its producer's work ordered before the default stream."""
    where = int(array.__dlpack_device__()[0])
    stream = LEGACY_STREAM if where in (CUDA, _CUDA_MANAGED) else None
    try:
        try:
            capsule = array.__dlpack__(stream=stream, max_version=(1, 1))
        except TypeError:  # from before versions
            capsule = array.__dlpack__(stream=stream)
    except (BufferError, RuntimeError) as fault:
        raise TypeError(f"a {type(array).__name__} that cannot be shared by DLPack: {fault}") from fault
    if _is_valid(id(capsule), _VERSIONED):
        address = _pointer_of(id(capsule), _VERSIONED)
        major, minor, _, _, flags = _HEADER.unpack(_HeaderBytes.from_address(address))
        if major != 1:
            raise TypeError(f"DLPack {major}.{minor} is not supported: export it as DLPack 1")
        readonly = readonly or bool(flags & _READ_ONLY)
        address += _HEADER.size
    elif _is_valid(id(capsule), _PLAIN):
        address = _pointer_of(id(capsule), _PLAIN)
    else:
        raise TypeError(f"__dlpack__ of a {type(array).__name__} did not return a DLPack capsule")
    fields = _TENSOR.unpack(_TensorBytes.from_address(address))
    data, where, index, count, code, bits, lanes, extents, steps, offset = fields
    dtype = _NAMES.get((code, bits)) if lanes == 1 else None
    if dtype is None:
        word = f"{_CLASSES.get(code, f'code {code}')}{bits}"
        raise TypeError(f"kernels do not support {word}: cast it to float32")
    shape = tuple((ctypes.c_int64 * count).from_address(extents))
    strides = tuple((ctypes.c_int64 * count).from_address(steps)) if steps else packed(shape)
    device = _device(where, index)
    pending = None if device == HOST else DEFAULT_STREAM
    return View(data + offset, dtype, shape, strides, readonly, device, library, array, capsule, pending)


def _device(code: int, index: int) -> DeviceKey:
    if code in (_CPU, _CUDA_HOST):
        return HOST
    if code in (CUDA, _CUDA_MANAGED):
        return ("cuda", index)
    raise TypeError(
        f"DLPack device type {code} is not supported: move the array to the host or a CUDA device"
    )


# By address: each structure that is out and what it refers to, until its consumer or the capsule deletes it.
_out: dict[int, tuple[Any, ...]] = {}


def write(pointer: int, dtype: str, shape: Shape, strides: Shape, index: int, owner: Any) -> Any:
    """A capsule for memory on CUDA device `index`; `owner` lives until the consumer is done."""
    extents, steps = ((ctypes.c_int64 * len(shape))(*each) for each in (shape, strides))
    places = (ctypes.addressof(extents), ctypes.addressof(steps))
    tensor = _TENSOR.pack(pointer, CUDA, index, len(shape), *_CODES[dtype], 1, *places, 0)
    managed = ctypes.create_string_buffer(tensor + _MANAGED.pack(0, _RELEASE))
    address = ctypes.addressof(managed)
    _out[address] = (managed, extents, steps, owner)
    return _new(address, _PLAIN, _drop_unused)


def _forget(address: int) -> None:
    _out.pop(address, None)


def _forget_unused(capsule: int) -> None:
    if _is_valid(capsule, _PLAIN):
        _forget(_pointer_of(capsule, _PLAIN))


_release, _drop_unused = _Deleter(_forget), _Deleter(_forget_unused)
# Their addresses as consumers are to call them: one that deletes, and one that does nothing.
_RELEASE, _NOTHING = (
    ctypes.cast(each, ctypes.c_void_p).value for each in (_release, ctypes.pythonapi.Py_IsInitialized)
)


@atexit.register
def _let_go() -> None:
    """From the end of the interpreter on nobody may call back into it: consumers that outlive it get a
    deleter that does nothing, and their structures stay."""
    for managed, *_ in _out.values():
        _MANAGED.pack_into(managed, _TENSOR.size, 0, _NOTHING)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_out))
