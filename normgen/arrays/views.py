"""An array as kernels see it (`View`), and the interface of an array library (`Library`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from normgen.dtypes import DTYPES, name_of_numpy
from normgen.launching.launch import DEFAULT_STREAM, LEGACY_STREAM, DeviceKey
from normgen.launching.layout import Shape as Shape


class View(NamedTuple):
    """An array as kernels see it. A named tuple, since several are made in every call."""

    pointer: int  # address of the first element
    dtype: str
    shape: Shape
    strides: Shape  # in elements
    readonly: bool
    device: DeviceKey
    library: Library  # makes arrays beside it
    owner: Any  # the caller's object
    keep: Any = None  # what else must live as long as the memory is used
    stream: int | None = None  # where its producer's work is queued; None: all of it is done


class Library(Protocol):
    """An array library. To add one, write a subclass in a new file and add a line to the registry.

    It neither reads nor moves device memory, and imports nothing: who has an array of it has imported it.
    `glance`, `own`, `place` and `deliver` are None where there is no use for them.
    """

    name: str  # in messages
    # Whether memory that is let go is given out again in the order of the stream that was current where it
    # was made, and within a graph to that graph alone.
    in_order: bool = False
    # (array) -> its address, and a key: equal only for arrays that a call prepared for one of them fits.
    # For libraries where that costs less than a look: calls like one before then take no look.
    glance: Callable[[Any], tuple[Any, Any]] | None = None
    # (array) -> its address, of memory that no other array shares: for arrays that are written, of libraries
    # whose copies share memory until then.
    own: Callable[[Any], int] | None = None
    # () -> what else says where arrays lie, such as a current context: once per call, part of its key. None
    # where nothing says so now, and the call takes a look.
    place: Callable[[], Any] | None = None
    # (result, stream) -> what the caller gets for a result of `empty`, all work on which is queued there.
    deliver: Callable[[Any, int], Any] | None = None

    def knows(self, array: Any) -> bool:
        """Whether an object is an array of this library, asked once per type. TypeError: one that kernels
        cannot take."""
        ...

    def look(self, array: Any) -> View:
        """An array as kernels see it; TypeError, which says why, where they cannot take it."""
        ...

    def empty(self, like: Any, device: DeviceKey, shape: Shape, dtype: str) -> tuple[Any, int]:
        """A contiguous, uninitialized array on the device of an existing one; and its address."""
        ...

    def stream(self, array: Any, device: DeviceKey) -> int:
        """The stream that the library works on now; the default one where it has no current one."""
        return DEFAULT_STREAM

    def cast(self, element: str) -> str:
        """The cast to write after an array, to an element type by NumPy's name."""
        home = "numpy" if element in ("float32", "float16") else "ml_dtypes"
        return f".astype({home}.{element})"


def scalar_view(like: View, dtype: str) -> View:
    """A 0-d array that does not exist yet, on the device of another."""
    return View(0, dtype, (), (), True, like.device, like.library, None)


def is_a(array: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of a library, without importing that."""
    known = getattr(sys.modules.get(module), name, None)
    return isinstance(known, type) and isinstance(array, known)


def plain_stream(handle: int) -> int:
    """A stream handle with the two names of the default stream made one."""
    return DEFAULT_STREAM if handle == LEGACY_STREAM else handle


@lru_cache(maxsize=4096)
def packed(shape: Shape) -> Shape:
    """The strides of a contiguous array, in elements."""
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
        raise TypeError(
            f"its strides, {strides} bytes, are not multiples of a {DTYPES[dtype].numpy_name}: copy it"
        )
    return tuple(stride // size for stride in strides)


@lru_cache(maxsize=256)
def known_dtype(dtype: Any, library: Library) -> str:
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
            f"its byte order ({plain.str}) is not that of this machine: cast it with "
            f".astype({plain.str[1:]!r})"
        )
    raise unsupported(plain.name, library)


def unsupported(dtype: str, library: Library) -> TypeError:
    """The error for an element type that kernels do not know."""
    return TypeError(f"kernels do not support {dtype}: cast it, for instance with {library.cast('float32')}")


# By NumPy's letter for a kind of element.
_NOT_NUMBERS = {
    "U": "strings",
    "T": "strings",
    "S": "strings of bytes",
    "O": "Python objects",
    "M": "dates",
    "m": "spans of time",
}
