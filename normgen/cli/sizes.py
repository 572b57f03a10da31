"""Calls to show or to compile for: what the user gave, and where nothing was given sizes that people have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package, TensorRecord

Axes = Sequence[str]
Dims = Sequence[tuple[str, ...]]

REST = "..."
# Activations of a language model of 8 billion parameters, and of the inner levels of a diffusion U-net.
ROW, ROWS = 4096, 32768
BATCH, CHANNELS, SIDE = 32, 320, 64
BOTH = "both"  # directions


@dataclass(frozen=True, slots=True)
class Setting:
    """What calls have: lengths of the axes, an element type, a device; which directions there are of them,
    and whether the forward writes what it saves."""

    sizes: dict[str, int]
    dtype: str
    device: Machine
    direction: str = BOTH
    saves: bool = True

    def results(self, direction: Direction) -> tuple[str, ...]:
        """The results that a direction writes."""
        return tuple(name for name, each in direction.results.items() if self.saves or each.role != "save")

    def binding(self, direction: Direction) -> Binding:
        """A call of a direction with contiguous arrays."""
        from normgen.runtime.calls.sizes import bind_sizes

        return bind_sizes(direction, self.sizes, self.dtype, wanted=self.results(direction)).binding

    @property
    def text(self) -> str:
        """The lengths, the type and the device in a few words."""
        where = ", ".join(f"{axis} = {length}" for axis, length in self.sizes.items())
        return f"{where} in {self.dtype}, on {self.device.name}"


def usual_sizes(package: Package, given: dict[str, int]) -> dict[str, int]:
    """A length for every axis: where none is given, rows as a language model has them, or images."""
    fixed = {axis.name: axis.extent for axis in package.axes if axis.extent is not None}
    passes = [package.forward, *([package.backward] if package.backward else [])]
    tensors = [tensor for one in passes for tensor in (*one.reads, *one.writes)]
    axes = list(dict.fromkeys(axis for tensor in tensors for dim in tensor.dims for axis in dim))
    _check(given, axes, fixed)
    lengths = fixed | given
    inner = [axis for one in passes for kernel in one.kernels for axis in kernel.inner]
    composite = [dim for tensor in tensors for dim in tensor.dims if len(dim) > 1]
    beside = {*inner, *(axis for dim in composite for axis in dim)}
    for some, total in (
        *_totals(tensors[0].dims, package.forward.writes),
        *((dim, ROW) for dim in composite),
        (list(dict.fromkeys(inner)), ROW),
        ([axis for axis in axes if axis not in beside], ROWS),
    ):
        lengths |= _share(some, lengths, total)
    return {axis: lengths[axis] for axis in axes}


def _check(given: dict[str, int], axes: Axes, fixed: dict[str, int]) -> None:
    for name, length in given.items():
        if not length:
            raise click.BadParameter(f"{name}=0: there is nothing to run", param_hint="--size")
        if name not in axes:
            raise click.BadParameter(
                f"no axis is called {name}: they are {', '.join(axes)}", param_hint="--size"
            )
        if fixed.get(name, length) != length:
            raise click.BadParameter(f"the spec fixes {name} to {fixed[name]}", param_hint="--size")


def _totals(dims: Dims, results: Sequence[TensorRecord]) -> Iterator[tuple[Axes, int]]:
    """Axes of the first input, and what their lengths come to together, where it is an image [B, C, ...],
    [B, ..., C] or [B, C, H, W], a weight [K, ...], or [..., C] with statistics of each channel."""
    spatial: Dims = [dim for dim in dims[1:] if dim == (REST,)] or dims[2:]
    if len(dims) == 4 or (len(dims) == 3 and (REST,) in dims[1:]):
        yield dims[0], BATCH
        yield next(dim for dim in dims[1:] if dim not in spatial), CHANNELS
        for dim in spatial:
            yield dim, SIDE * SIDE if dim == (REST,) else SIDE
    elif len(dims) == 2 and dims[1] == (REST,):
        yield dims[0], ROW
    elif len(dims) == 2 and dims[0] == (REST,) and any(dims[1] == result.axes for result in results):
        yield dims[1], CHANNELS
        yield dims[0], BATCH * SIDE * SIDE


def _share(axes: Axes, known: dict[str, int], total: int) -> dict[str, int]:
    """Lengths of the unknown axes: 8 each, and the last as long as the total then asks for."""
    unknown = [axis for axis in axes if axis not in known]
    for axis in axes:
        total = -(-total // max(1, known.get(axis, 1)))
    lengths = {}
    for axis in unknown[:-1]:
        lengths[axis] = min(8, total)
        total = -(-total // lengths[axis])
    return lengths | dict.fromkeys(unknown[-1:], total)
