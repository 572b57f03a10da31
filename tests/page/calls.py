"""Calls of bundled specs, and their pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from normgen.ahead.page import page, told_apart
from normgen.cli.sizes import usual_sizes
from normgen.launching.launch import Binding, LaunchPlan
from normgen.launching.machine import USUAL_MACHINE, Machine
from normgen.package.direction import Direction, directions
from normgen.package.records import Package, PassRecord
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import packaged

DIRECTIONS = ("forward", "backward")
# Element type, and what every axis has that is of a row, and each other.
KINDS = (("bf16", 4096, 64), ("f32", 333, 40), ("f16", 1030, 16), ("bf16", 65536, 8), ("bf16", 4097, 300))


@dataclass(frozen=True, slots=True)
class Call:
    """A call with contiguous arrays: of a direction, with these lengths."""

    package: Package
    direction: Direction
    sizes: dict[str, int]
    dtype: str

    @property
    def plan(self) -> LaunchPlan:
        """Its launches on the usual device."""
        binding = bind_sizes(self.direction, self.sizes, self.dtype).binding
        return plan_launches(self.direction.record, binding, USUAL_MACHINE)

    @property
    def page(self) -> str:
        """Its page for that device."""
        return page(self.plan.launches)


def calls(name: str, dtype: str, row: int, rest: int) -> Iterator[Call]:
    """The calls of a spec in both directions, as far as there are two."""
    made = packaged(name)
    passes = [made.forward, *([made.backward] if made.backward else [])]
    inner = {axis for one in passes for kernel in one.kernels for axis in kernel.inner}
    axes = dict.fromkeys(axis for one in passes for tensor in one.reads for axis in tensor.axes)
    fixed = {axis.name: axis.extent for axis in made.axes if axis.extent is not None}
    long = next((axis for axis in reversed(axes) if axis in inner and axis not in fixed), None)
    short = {axis: 4 for axis in axes if axis not in fixed and axis != long}
    outer = next((axis for axis in short if axis not in inner), None)
    given = short | ({long: row} if long else {}) | ({outer: rest} if outer else {})
    sizes = usual_sizes(made, given)
    for direction in directions(made):
        if direction is not None:
            yield Call(made, direction, sizes, dtype)


def planned_usually(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The launches of the usual device, whatever the device."""
    return plan_launches(record, binding, USUAL_MACHINE)


def paged(record: PassRecord, binding: Binding, device: Machine) -> LaunchPlan:
    """The same launches, each of the page of all of them."""
    plan = planned_usually(record, binding, device)
    text = page(plan.launches)
    text += "".join(
        f"\nusing namespace kernel_{k + 1};" for k in range(text.count("}  // namespace kernel_"))
    )
    return replace(plan, launches=tuple(replace(each, text=text) for each in told_apart(plan.launches)))
