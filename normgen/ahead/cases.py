"""The launches of one direction for all calls of one shape.

The lengths of a row, the element type and the architecture are known; other lengths, such as the number of
rows, are left open. `cases_of` tells launches as formulas of these. Where planning decides by them, as
between one block per row and as many as are resident, there are several cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from normgen.launching.call import INT_LIMIT
from normgen.launching.case import Case, traced
from normgen.launching.launch import Binding, Launch, LaunchPlan, resized
from normgen.launching.limits import joined
from normgen.launching.machine import Machine
from normgen.package.direction import Direction
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import Choice, chosen, fastest

MOST_CASES = 32


@dataclass(frozen=True)
class Cases:
    """A direction for one shape. `binding`: the call that it was planned for."""

    direction: Direction
    dtype: str
    binding: Binding
    device: Machine
    strategy: str
    open: tuple[str, ...]  # axes whose lengths a call gives
    cases: tuple[Case[LaunchPlan], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths of the other axes."""
        return {axis: length for axis, length in self.binding.extents if axis not in self.open}

    @property
    def saves(self) -> bool:
        """Whether it writes all that is saved for the backward."""
        given = dict(self.binding.operands)
        return all(name in given for name, each in self.direction.results.items() if each.role == "save")

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those of all cases: those of the call that was planned for come first."""
        planned = dict(self.binding.extents)
        order = sorted(self.cases, key=lambda case: not case.limits.hold(planned))
        return tuple(launch for case in order for launch in case.value.launches)

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """The kernels of all cases, each once."""
        return tuple(dict.fromkeys(map(kernel_of, self.launches)))

    @property
    def resident(self) -> bool:
        """Whether blocks wait for one another: then the device must have as many multiprocessors as it was
        planned for."""
        return any(launch.clears for launch in self.launches)


def kernel_of(launch: Launch) -> Launch:
    """A launch without grid and arguments: what is compiled and loaded for it."""
    return replace(launch, grid=(1, 1, 1), values=(), clears="")


def cases_of(
    direction: Direction, sizes: Mapping[str, int], dtype: str, device: Machine, saves: bool = True
) -> Cases:
    """The launches of a direction for calls like this one, of contiguous arrays: with any lengths of the open
    axes, but for those that a text depends on. `saves`: whether the forward writes its saves."""
    wanted = tuple(name for name, each in direction.results.items() if saves or each.role != "save")
    binding = bind_sizes(direction, dict(sizes), dtype, wanted=wanted).binding
    record = direction.record
    strategy = fastest(record, binding, device).strategy.name
    closed = {axis.name for axis in direction.axes if axis.extent is not None}
    closed |= {axis for kernel in record.kernels for axis in kernel.inner}
    left = tuple(axis for axis, _ in binding.extents if axis not in closed)

    def case_at(point: Mapping[str, int]) -> Case[Any]:
        """The launches of such a call; None where the strategy does not fit."""

        def plan(sizes: Mapping[str, int]) -> LaunchPlan | None:
            found = chosen(record, resized(binding, {**point, **sizes}), device, Choice(strategy, {}))
            return None if found is None else _printed(found.plan)

        return traced({**dict(binding.extents), **point}, left, plan)

    pinned = case_at({}).limits.pinned
    left = tuple(axis for axis in left if axis not in pinned)
    return Cases(direction, dtype, binding, device, strategy, left, _joined(_walk(binding, left, case_at)))


def _printed(plan: LaunchPlan) -> LaunchPlan:
    """A plan with texts as they are, whatever these are printed from: equal texts are of one kernel."""
    return replace(plan, launches=tuple(replace(each, text=each.source) for each in plan.launches))


def _walk(
    binding: Binding, left: tuple[str, ...], case_at: Callable[[Mapping[str, int]], Case[Any]]
) -> list[Case[LaunchPlan]]:
    """The cases of lengths of the axes that are left, from those of the call outwards."""
    planned = {axis: length for axis, length in binding.extents if axis in left}
    found: list[Case[LaunchPlan]] = []
    points = [planned]
    while points and len(found) < MOST_CASES:
        point = points.pop(0)
        lengths = {**dict(binding.extents), **point}
        elements = max(prod(lengths[axis] for axis, _ in each.strides) for _, each in binding.operands)
        if point != planned and elements >= INT_LIMIT:  # on to a smaller call
            points += [{axis: -(-n // 2) for axis, n in point.items()}] * (max(point.values()) > 1)
            continue
        if any(case.limits.hold(point) for case in found):
            continue
        case = case_at(point)
        if case.value is not None:
            found.append(case)
            points += case.limits.beyond(point)
    return found


def _joined(found: Sequence[Case[LaunchPlan]]) -> tuple[Case[LaunchPlan], ...]:
    """The cases by their limits, those as one that differ in nothing else."""
    kept: list[Case[LaunchPlan]] = []
    for case in sorted(found, key=lambda case: [(each.axes, each.low) for each in case.limits.bounds]):
        same = bool(kept) and kept[-1].value == case.value
        limits = joined(kept[-1].limits, case.limits) if same else None
        if limits is not None:
            case = replace(kept.pop(), limits=limits)
        kept.append(case)
    return tuple(kept)
