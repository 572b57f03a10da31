"""What a compiled norm is made of: plain frozen records. Generated modules hold
them as plain data (`plain.py`).

`Package` is one norm with a `PassRecord` for each direction, a pass has strategies, and a strategy kernels
(`kernels.py`). What a call makes of them is in `launching/launch.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from normgen.package.kernels import Kernel
from normgen.package.made import MadeRecord

ABI = 19  # of plain data of records, and of the numbers that texts of kernels are given

Dims = tuple[tuple[str, ...], ...]


def dims_text(dims: Dims) -> str:
    """How a declaration writes axes: `B, (G C), ...`."""
    return ", ".join(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in dims)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A declared tensor. `dims` holds the axes of each array dimension in memory order: x[B, (G C), ...] has
    (("B",), ("G", "C"), ("...",)).

    `role`: input, param, state, cotangent, saved (read); output, save, gradient (written).
    `dtype`: fixed element type, or None: free (inputs, params, cotangents), or that of tensor `like`.
    `default`: a param's or state's value when the caller leaves it out.
    `source`: for a gradient the tensor it belongs to, for a cotangent its output, else "".
    """

    name: str
    role: str
    dims: Dims
    dtype: str | None = None
    like: str | None = None
    default: float | None = None
    doc: str = ""
    source: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes in memory order, the parts of a composite dimension included."""
        return tuple(axis for group in self.dims for axis in group)

    @property
    def text(self) -> str:
        """How a declaration writes it: `x[B, (G C), ...]`."""
        return f"{self.name}[{dims_text(self.dims)}]"


@dataclass(frozen=True, slots=True)
class AttrRecord:
    """A float attr that stays a kernel argument. `low` bounds it from below, strictly if `strict`."""

    name: str
    default: float | None
    low: float | None = None
    strict: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True)
class AxisRecord:
    """An axis; `extent` is its length when the spec fixes it, else None."""

    name: str
    extent: int | None = None

    def length(self, known: Mapping[str, int]) -> int | None:
        """Its length, where that is told without an array that has the axis. `known`: those of others."""
        return self.extent


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run a pass: kernels in launch order, and the tensors that they hand on to one another.

    `temporaries` are f32, in the workspace, each written by one kernel and read by later ones.
    """

    name: str
    kernels: tuple[Kernel, ...]
    temporaries: tuple[TensorRecord, ...] = ()

    @property
    def selective(self) -> bool:
        """Whether some kernel has no form for rows of any length: then it may not fit a call."""
        return any(kernel.selective for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One direction: what it reads and writes, in spec order, and the strategies to choose from at a call.

    `reduced`: axes that a call must not give the length 0, since something is reduced over them.
    `made_of`: of a backward, the tensors that the saves which it reads are made of.
    `made`: in a module of one shape, what is launched.
    """

    reads: tuple[TensorRecord, ...]
    writes: tuple[TensorRecord, ...]
    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()
    made: MadeRecord | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all strategies."""
        return tuple(kernel for strategy in self.strategies for kernel in strategy.kernels)

    @property
    def open(self) -> tuple[str, ...]:
        """Axes that no kernel has in its rows, and no dimension beside others: such as the number of rows."""
        dims = [dim for tensor in (*self.reads, *self.writes) for dim in tensor.dims]
        inner = {axis for kernel in self.kernels for axis in kernel.inner}
        closed = inner.union(*(dim for dim in dims if len(dim) > 1))
        return tuple(dict.fromkeys(axis for dim in dims for axis in dim if axis not in closed))

    @property
    def always(self) -> tuple[Kernel, ...]:
        """The kernels of the strategies that fit every call."""
        return tuple(k for s in self.strategies if not s.selective for k in s.kernels)


@dataclass(frozen=True, slots=True)
class Package:
    """A compiled norm. `spec` is its text."""

    name: str
    doc: str
    spec: str
    attrs: tuple[AttrRecord, ...]
    axes: tuple[AxisRecord, ...]
    forward: PassRecord
    backward: PassRecord | None
    folded: tuple[tuple[str, float | int | bool], ...] = ()
