"""Calls to show or to compile for: what the user gave, and where nothing was given usual proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package

ROW = 4096
ROWS = 32768
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
    """A length for every axis: where none is given, rows of about 4096 elements, about 32768 of them."""
    fixed = {axis.name: axis.extent for axis in package.axes if axis.extent is not None}
    passes = [package.forward, *([package.backward] if package.backward else [])]
    tensors = [tensor for one in passes for tensor in (*one.reads, *one.writes)]
    axes = list(dict.fromkeys(axis for tensor in tensors for group in tensor.dims for axis in group))
    inner = list(dict.fromkeys(axis for one in passes for kernel in one.kernels for axis in kernel.inner))
    for name, length in given.items():
        if not length:
            raise click.BadParameter(f"{name}=0: there is nothing to run", param_hint="--size")
        if name not in axes:
            raise click.BadParameter(
                f"no axis is called {name}: they are {', '.join(axes)}", param_hint="--size"
            )
        if name in fixed and fixed[name] != given[name]:
            raise click.BadParameter(f"the spec fixes {name} to {fixed[name]}", param_hint="--size")
    known = fixed | given
    kept = [axis for axis in axes if axis not in inner]
    return known | _share(inner, known, ROW) | _share(kept, known, ROWS)


def _share(axes: list[str], known: dict[str, int], total: int) -> dict[str, int]:
    """Lengths of the unknown axes: 8 each, and the last as long as the total then asks for."""
    unknown = [axis for axis in axes if axis not in known]
    for axis in axes:
        total = -(-total // max(1, known.get(axis, 1)))
    lengths = {}
    for axis in unknown[:-1]:
        lengths[axis] = min(8, total)
        total = -(-total // lengths[axis])
    return lengths | dict.fromkeys(unknown[-1:], total)
