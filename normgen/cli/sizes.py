"""Calls to show or to compile for: the sizes given, and typical sizes for the other axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.launching.machine import Machine
    from normgen.package.direction import Direction
    from normgen.package.records import Package

BOTH = "both"  # directions


@dataclass(frozen=True, slots=True)
class Setting:
    """A call: lengths of the axes, an element type, a device, the directions, and whether the forward writes
    what it saves."""

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
    """A length for every axis: the one given, or a typical one."""
    from normgen.ahead.usual import axes_of, fixed_axes, usual_lengths

    _check(given, axes_of(package), fixed_axes(package))
    return usual_lengths(package, given)


def _check(given: dict[str, int], axes: Sequence[str], fixed: dict[str, int]) -> None:
    for name, length in given.items():
        if not length:
            raise click.BadParameter(f"{name}=0: there is nothing to run", param_hint="--size")
        if name not in axes:
            raise click.BadParameter(
                f"no axis is called {name}; the axes are {', '.join(axes)}", param_hint="--size"
            )
        if fixed.get(name, length) != length:
            raise click.BadParameter(f"the spec fixes {name} to {fixed[name]}", param_hint="--size")
