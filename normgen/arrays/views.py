"""What an array is to the runtime, whatever its library: an address, an element type, a shape, strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from normgen.dtypes import DTYPES, name_of_numpy
from normgen.launching.launch import DEFAULT_STREAM, LEGACY_STREAM, DeviceKey

Shape = tuple[int, ...]


class ArrayView(NamedTuple):
    """An array as kernels see it. A named tuple, since several are made in every call.

    `strides` count elements. `device`: ("host", 0), ("cuda", ordinal), or another word for a context that is
    not the device's primary one. `owner` is the caller's object, `keep` what else must live as long as the
    memory is used. `stream`: where the producer's work on it is queued (0: the default one), None: no work.
    """

    pointer: int
    dtype: str
    shape: Shape
    strides: Shape
    readonly: bool
    device: DeviceKey
    kind: str
    owner: Any
    keep: Any = None
    stream: int | None = None


# Its address, and what a plan depends on beside it; equal only for arrays that all of a plan holds for.
Glance = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind of array.

    `look`: at everything. `empty(array, device, shape, dtype)`: a new contiguous one of the same library, and
    its address. `stream(array, device)`: the one that its owner works on now. `glance`: what tells of a call
    that it came before, where that can be had for less than a look; `place` then adds what else says where
    such arrays lie, None where it cannot. `deliver(result, stream)`: a result of `empty` as the caller is to
    get it.
    """

    kind: str
    look: Callable[[Any], ArrayView]
    empty: Callable[[Any, DeviceKey, Shape, str], tuple[Any, int]]
    stream: Callable[[Any, DeviceKey], int]
    glance: Glance | None = None
    place: Callable[[], Any] | None = None
    deliver: Callable[[Any, int], Any] | None = None


def no_stream(array: Any, device: DeviceKey) -> int:
    """The stream of arrays whose library has no notion of a current one."""
    return DEFAULT_STREAM


def address_numpy(array: Any) -> int:
    """The address of a NumPy array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def empty_numpy(array: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
    """A new NumPy array, and its address."""
    made = np.empty(shape, DTYPES[dtype].numpy)
    return made, address_numpy(made)


def plain_stream(handle: int) -> int:
    """A stream handle with the two names of the default stream made one."""
    return DEFAULT_STREAM if handle == LEGACY_STREAM else handle


def packed(shape: Shape) -> Shape:
    """The strides of a contiguous array."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def in_elements(strides: Shape, dtype: str) -> Shape:
    """Strides in bytes as strides in elements."""
    size = DTYPES[dtype].bytes
    if any(stride % size for stride in strides):
        raise TypeError(f"strides of {strides} bytes are not whole {DTYPES[dtype].numpy_name} elements")
    return tuple(stride // size for stride in strides)


@lru_cache(maxsize=256)
def known_dtype(dtype: Any, library: str) -> str:
    """The normgen name of a NumPy element type, or a TypeError that shows the cast."""
    found = name_of_numpy(dtype)
    if found is not None:
        return found
    plain = np.dtype(dtype)
    if plain.names is not None or plain.kind in _NOT_NUMBERS:
        what = "records" if plain.names is not None else _NOT_NUMBERS[plain.kind]
        raise TypeError(f"its elements are {what}: a norm takes arrays of numbers")
    if not plain.isnative:
        raise TypeError(
            f"its elements are in the byte order of another machine ({plain.str}): "
            f"cast it with .astype({plain.str[1:]!r})"
        )
    raise unsupported(str(dtype), library)


# By NumPy's letter for a kind of element.
_NOT_NUMBERS = {
    "U": "strings",
    "T": "strings",
    "S": "strings of bytes",
    "O": "Python objects",
    "M": "dates",
    "m": "spans of time",
}
_CASTS = {"torch": ".float()", "jax": ".astype(jax.numpy.float32)", "cupy": ".astype(cupy.float32)"}


def unsupported(dtype: str, library: str) -> TypeError:
    """The error for an element type that kernels do not know."""
    cast = _CASTS.get(library, ".astype(numpy.float32)")
    return TypeError(f"{dtype} is no element type of kernels: cast it, for instance with {cast}")
