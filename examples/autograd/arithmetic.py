"""Operations of the tape on arrays, other than norms: elementwise f32, a full sum, a matrix product.

One table for each library that has such operations. Results are contiguous and new unless said otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen import arrays
from normgen.arrays.views import Shape, packed

Array = Any
Binary = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The operations of one array library, on arrays of equal shape and element type.

    `scale` and `shift` take a number. `gather`: the sum of two, in the first. `total`: the sum of all
    elements, 0-d. `spread`: a 0-d array (None: one) as an array of a shape, like another one.
    """

    add: Binary
    subtract: Binary
    multiply: Binary
    scale: Callable[[Array, float], Array]
    shift: Callable[[Array, float], Array]
    gather: Binary
    total: Callable[[Array], Array]
    spread: Callable[[Array, Shape, Array | None], Array]
    copy: Callable[[Array], Array]
    clear: Callable[[Array], object]
    reshape: Callable[[Array, Shape], Array]


def arithmetic(array: Array, operation: str) -> Arithmetic:
    """The operations on an array of this library, or a TypeError in terms of the operation."""
    found = known(array)
    if found is None:
        kind = type(array).__name__
        raise TypeError(
            f"{operation} supports NumPy and PyCUDA arrays, not {kind}; only norms support others"
        )
    return found


def known(array: Array) -> Arithmetic | None:
    """The same, or None."""
    with suppress(TypeError):
        return _BY_LIBRARY.get(arrays.library_of(array).name)
    return None


def gather(total: Array, term: Array) -> Array:
    """The sum of two gradients, in the first of them where it may be written."""
    return arithmetic(total, "adding up the gradients of a value used twice").gather(total, term)


def own(array: Array) -> Array:
    """A copy of the caller's array, for the tape to write over.

    Where the library has no arithmetic the array itself: only norms take such arrays, and they write over
    no cotangent.
    """
    found = known(array)
    return array if found is None else found.copy(array)


def zeros(array: Array) -> Array:
    """Zeros like an array."""
    view = arrays.view(array)
    return arrays.zeros(view, view.shape, view.dtype)


# NumPy. Its operators turn 0-d arrays into scalars, which cannot be written; `asarray` turns them back.


def _numpy(operator: Binary) -> Binary:
    return lambda a, b: np.asarray(operator(a, b))


def _gather_numpy(total: Array, term: Array) -> Array:
    # In f32 and rounded once, as a kernel does, whatever the element type.
    wide = total.astype(np.float32, copy=False) + term.astype(np.float32, copy=False)
    if not total.flags.writeable:
        return np.asarray(wide.astype(total.dtype))
    total[...] = wide
    return total


NUMPY = Arithmetic(
    add=_numpy(np.add),
    subtract=_numpy(np.subtract),
    multiply=_numpy(np.multiply),
    scale=lambda a, number: np.asarray(a * np.float32(number)),
    shift=lambda a, number: np.asarray(a + np.float32(number)),
    gather=_gather_numpy,
    total=lambda a: np.asarray(a.sum(dtype=np.float32)),
    spread=lambda like, shape, value: np.full(shape, 1 if value is None else value, like.dtype),
    copy=lambda a: np.array(a, order="C", copy=True, subok=False),
    clear=lambda a: a.fill(0),
    reshape=lambda a, shape: a.reshape(shape),
)


# PyCUDA. Its operators walk memory and not elements, so that a view would give other numbers: refused.


def _contiguous(array: Array) -> Array:
    if tuple(array.strides) != tuple(step * array.dtype.itemsize for step in packed(tuple(array.shape))):
        raise TypeError("arithmetic on a strided GPUArray is not supported: make it contiguous with .copy()")
    return array


def _pycuda(operator: Callable[[Array, Array], Array]) -> Binary:
    return lambda a, b: operator(_contiguous(a), _contiguous(b))


def _gather_pycuda(total: Array, term: Array) -> Array:
    if total.dtype != np.float32:
        raise TypeError(f"PyCUDA cannot add {total.dtype} arrays: use the value once, or make it float32")
    _contiguous(total)
    total += _contiguous(term)
    return total


def _spread_pycuda(like: Array, shape: Shape, value: Array | None) -> Array:
    ones = arrays.allocate(arrays.view(like), shape, arrays.view(like).dtype)
    ones.fill(np.float32(1))
    return ones if value is None else ones * value


def _total_pycuda(array: Array) -> Array:
    return sys.modules["pycuda.gpuarray"].sum(_contiguous(array))


PYCUDA = Arithmetic(
    add=_pycuda(lambda a, b: a + b),
    subtract=_pycuda(lambda a, b: a - b),
    multiply=_pycuda(lambda a, b: a * b),
    scale=lambda a, number: _contiguous(a) * np.float32(number),
    shift=lambda a, number: _contiguous(a) + np.float32(number),
    gather=_gather_pycuda,
    total=_total_pycuda,
    spread=_spread_pycuda,
    copy=lambda a: _contiguous(a).copy(),
    clear=lambda a: a.fill(np.float32(0)),
    reshape=lambda a, shape: _contiguous(a).reshape(shape),
)

_BY_LIBRARY = {"numpy": NUMPY, "pycuda": PYCUDA}
