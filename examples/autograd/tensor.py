"""`Tensor`: an array with a place on the tape, and the few operators that a small network needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from normgen import arrays
from normgen.arrays.views import Shape
from normgen.dtypes import DEVICE_DTYPES, DIFFERENTIABLE_DTYPES, real

from . import arithmetic, operators
from .operators import Operation, is_number
from .tape import Array, Kept, Leaf, Node, Output, Pull, Version, recording, walk


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an operation: an array, whether it is differentiable, and the version of its memory."""

    array: Array
    smooth: bool = True
    version: Version = field(default_factory=Version)


TRAINABLE = tuple(name for name in DIFFERENTIABLE_DTYPES if name in DEVICE_DTYPES)


class Tensor:
    """An array that records how it was computed.

    `array`: of any library that norms support, kept by reference; a number becomes a 0-d float32 array. Only
    arrays of f32, f16 or bf16 may require grad: TypeError for others. The operators + - * @ and `sum` support
    NumPy and PyCUDA arrays of f32, without broadcasting.
    """

    __slots__ = ("__weakref__", "_array", "_grad", "_output", "_requires_grad", "_version")
    # Arithmetic with a NumPy array on the left is ours too, not NumPy's element by element.
    __array_ufunc__ = None

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        made = _as_array(array)
        if requires_grad:
            _check_trainable(made)
        self._set(made, requires_grad, None, Version())

    def _set(self, array: Array, requires_grad: bool, output: Output | None, version: Version) -> None:
        self._array = array
        self._requires_grad = requires_grad
        self._output = output
        self._version = version
        self._grad: Array | None = None

    @property
    def data(self) -> Array:
        """The array itself. The tape does not detect writes to it, except `t.data -= step`: a backward that
        needs the old values is then refused."""
        return self._array

    @data.setter
    def data(self, array: Array) -> None:
        if array is self._array:  # an augmented assignment
            self.written()
            return
        self._check_like(array, "data")
        self._array, self._version = array, Version()

    @property
    def grad(self) -> Array | None:
        """The gradient: an array like `data`, or None. Only leaves have one; every backward() adds to it."""
        return self._grad

    @grad.setter
    def grad(self, array: Array | None) -> None:
        if array is not None:
            self._check_like(array, "grad")
        self._grad = array

    @property
    def requires_grad(self) -> bool:
        """Whether this, or a tensor that it was computed from, requires a gradient."""
        return self._requires_grad

    @property
    def is_leaf(self) -> bool:
        """Whether this is not the result of a recorded operation."""
        return self._output is None

    @property
    def shape(self) -> Shape:
        """The lengths of the array's dimensions."""
        return tuple(self._array.shape)

    @property
    def dtype(self) -> Any:
        """The array's element type, as an object of its library."""
        return self._array.dtype

    def backward(self, grad: Array | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradient of this with respect to each leaf to the leaf's `.grad`.

        `grad`: the cotangent, an array like `data`; optional for a tensor with one element, where it is 1.
        Frees the graph and all arrays that it kept, unless `retain_graph`.
        """
        if not self._requires_grad:
            raise ValueError(
                "backward() of a tensor that does not require grad: nothing that it was computed from has "
                "requires_grad=True, or it was computed under no_grad()"
            )
        walk(self.place, self._seed(grad), retain_graph)

    def zero_grad(self) -> None:
        """Fill `.grad` with zeros, in place if possible; allocate it if there is none."""
        known = None if self._grad is None else arithmetic.known(self._grad)
        if known is None:
            self._grad = arithmetic.zeros(self._array)
        else:
            known.clear(self._grad)

    def detach(self) -> Tensor:
        """A tensor that shares memory with this one and requires no grad."""
        return _tensor(self._array, False, None, self._version)

    def item(self) -> float:
        """The only element, as a number. ValueError unless there is exactly one."""
        if prod(self.shape) != 1:
            raise ValueError(f"item() needs a tensor with one element, and this one has shape {self.shape}")
        array = self._array.get() if hasattr(self._array, "get") else self._array
        return float(array.item())

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be -1. ValueError if the count differs."""
        target = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return _operate("reshape", partial(operators.reshape, shape=tuple(target)), self)

    def sum(self) -> Tensor:
        """The sum of all elements, 0-d."""
        return _operate("sum", operators.total, self)

    def __add__(self, other: Any) -> Tensor:
        return _operate("+", operators.add, self, other)

    def __sub__(self, other: Any) -> Tensor:
        return _operate("-", operators.subtract, self, other)

    def __mul__(self, other: Any) -> Tensor:
        return _operate("*", operators.multiply, self, other)

    def __matmul__(self, other: Any) -> Tensor:
        return _NOT_OURS if is_number(other) else _operate("@", operators.matmul, self, other)

    def __neg__(self) -> Tensor:
        return self * -1

    def __radd__(self, other: Any) -> Tensor:
        return self.__add__(other)

    def __rsub__(self, other: Any) -> Tensor:
        return (-self).__add__(other)

    def __rmul__(self, other: Any) -> Tensor:
        return self.__mul__(other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _operate("@", operators.matmul, other, self)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self._requires_grad else ""
        return f"Tensor(shape={self.shape}, dtype={self.dtype}{grad})"

    # What operations ask of a tensor.

    @property
    def version(self) -> Version:
        """How often its memory was written, shared with the tensors that share the memory."""
        return self._version

    def written(self) -> None:
        """Note that a kernel wrote over the memory."""
        self._version.writes += 1

    @property
    def place(self) -> Leaf | Output:
        """The place on the tape that receives gradients of this."""
        return self if self._output is None else self._output

    # What the tape asks of a leaf.

    @property
    def gathered(self) -> Array | None:
        """The gradient so far, which kernels may add to in place; None before the first."""
        return self._grad

    def gather(self, term: Array) -> None:
        """Add `term` to the gradient."""
        self._grad = term if self._grad is None else arithmetic.gather(self._grad, term)

    def _seed(self, grad: Array | None) -> Array:
        if grad is not None:
            self._check_like(grad, "grad")
            return arithmetic.own(grad)
        if prod(self.shape) != 1:
            raise ValueError(
                f"backward() of a tensor of shape {self.shape} needs grad, an array of that shape; or sum "
                "the tensor first, as in y.sum().backward()"
            )
        library = arithmetic.arithmetic(self._array, "backward() without grad")
        return library.spread(self._array, self.shape, None)

    def _check_like(self, array: Array, name: str) -> None:
        given, own = arrays.view(array, name), self._array
        if given.shape != self.shape:
            raise ValueError(f"{name} has shape {given.shape}, but the tensor has shape {self.shape}")
        if array.dtype != own.dtype:
            raise TypeError(f"{name} is {array.dtype}, but the tensor is {own.dtype}")
        if given.device != arrays.view(own).device:
            raise ValueError(f"{name} and the tensor are on different devices")


def record(
    name: str,
    pull: Pull | None,
    operands: Sequence[Tensor | None],
    results: Sequence[Result],
    kept: tuple[Kept, ...] = (),
) -> tuple[Tensor, ...]:
    """The results of an operation, as tensors: on the tape if an operand requires grad and recording is on.

    `operands`: one for each term that `pull` returns; None, or one that requires no grad, stays out of the
    graph. `kept`: what `pull` is going to read.
    """
    edges = tuple(None if each is None or not each.requires_grad else each.place for each in operands)
    if not recording() or not any(edge is not None for edge in edges):
        return tuple(_tensor(each.array, False, None, each.version) for each in results)
    node = Node(name, edges, len(results), pull, kept)
    return tuple(
        _tensor(each.array, each.smooth, Output(node, position) if each.smooth else None, each.version)
        for position, each in enumerate(results)
    )


# Typed as what operators return, for that is how Python lets them decline.
_NOT_OURS: Tensor = NotImplemented


def _operate(name: str, operation: Callable[..., Operation], *operands: Any) -> Tensor:
    """One operator on tensors, arrays and numbers; NotImplemented for anything else."""
    sides: list[Tensor | float] = []
    for each in operands:
        if not isinstance(each, Tensor) and not is_number(each):
            if not hasattr(each, "shape") or not hasattr(each, "dtype"):
                return _NOT_OURS
            each = Tensor(each)
        elif not isinstance(each, Tensor):
            each = real(each, f"an operand of {name}")
        sides.append(each)
    tensors = [each for each in sides if isinstance(each, Tensor)]
    made = operation(
        *[each._array if isinstance(each, Tensor) else each for each in sides],
        wanted=tuple(isinstance(each, Tensor) and each._requires_grad for each in sides),
    )
    kept = tuple(Kept.now(f"an operand of {name}", tensors[position].version) for position in made.kept)
    version = tensors[0].version if made.alias else Version()
    (result,) = record(name, made.pull, tensors, [Result(made.array, True, version)], kept)
    return result


def _tensor(array: Array, requires_grad: bool, output: Output | None, version: Version) -> Tensor:
    made: Tensor = object.__new__(Tensor)
    made._set(array, requires_grad, output, version)
    return made


def _as_array(array: Any) -> Array:
    if is_number(array):
        return np.asarray(real(array, "the number"), np.float32)
    if isinstance(array, Tensor):
        raise TypeError("the array is a Tensor already: use it, or its .detach()")
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        arrays.view(array)  # says what is wrong with it
    return array


def _check_trainable(array: Array) -> None:
    if getattr(array, "requires_grad", False):
        arrays.view(array)  # says so where PyTorch's own tape records it
    if _element(array) not in TRAINABLE:
        raise TypeError(
            f"a tensor of {array.dtype} cannot require grad: only {', '.join(TRAINABLE)} can; cast it, for "
            "instance with .astype(numpy.float32)"
        )


def _element(array: Array) -> str | None:
    try:
        return arrays.view(array).dtype
    except TypeError:
        return None
