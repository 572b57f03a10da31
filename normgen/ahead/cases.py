"""The launches of one direction for all calls of one shape.

The lengths of a row, the element type and the architecture are known; other lengths, such as the number of
rows, are left open. `cases_of` tells launches as formulas of these. Where planning decides by them, as
between one block per row and as many as are resident, there are several cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from normgen.dtypes import DTYPES
from normgen.launching.call import INT_LIMIT
from normgen.launching.formula import Formula
from normgen.launching.launch import Binding, Launch, LaunchPlan, Slot, resized
from normgen.launching.limits import Limits, joined, limits_of
from normgen.launching.machine import Machine
from normgen.launching.tracing import Trace, formula_of
from normgen.package.direction import Direction
from normgen.package.operands import Parameter
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import Choice, chosen, fastest

MOST_CASES = 12


@dataclass(frozen=True)
class Text:
    """A kernel as it is compiled and launched, whatever the lengths that are left open. The fields are those
    of `Launch`; `parameters` has what each argument is."""

    source: str
    entry: str
    block: tuple[int, int, int]
    shared: int
    cluster: int
    programmatic: bool
    format: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Step:
    """One launch of a case. `clears`: the scratch array that it fills with zeros, which other launches expect
    and leave behind."""

    text: Text
    grid: tuple[Formula, Formula, Formula]
    values: tuple[Formula | Slot, ...]
    clears: str


@dataclass(frozen=True)
class Scratch:
    """An array of scratch memory that the launches of a case share."""

    name: str
    shape: tuple[Formula, ...]
    dtype: str

    @property
    def bytes(self) -> Formula:
        """Its size."""
        found = Formula.of(DTYPES[self.dtype].bytes)
        for length in self.shape:
            found *= length
        return found


@dataclass(frozen=True)
class Case:
    """The launches, in order, of calls whose lengths are within limits."""

    limits: Limits
    steps: tuple[Step, ...]
    scratch: tuple[Scratch, ...]


@dataclass(frozen=True)
class Cases:
    """A direction for one shape. `binding`: the call that it was planned for."""

    direction: Direction
    dtype: str
    binding: Binding
    device: Machine
    strategy: str
    open: tuple[str, ...]  # axes whose lengths a call gives
    cases: tuple[Case, ...]

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
    def texts(self) -> tuple[Text, ...]:
        """The kernels of all cases, each once: those of the call that was planned for come first."""
        planned = dict(self.binding.extents)
        order = sorted(self.cases, key=lambda case: not case.limits.hold(planned))
        return tuple(dict.fromkeys(step.text for case in order for step in case.steps))

    @property
    def resident(self) -> bool:
        """Whether blocks wait for one another: then the device must have as many multiprocessors as it was
        planned for."""
        return any(step.clears for case in self.cases for step in case.steps)

    def case(self, sizes: Mapping[str, int]) -> Case | None:
        """The case of a call with these lengths of the open axes."""
        return next((case for case in self.cases if case.limits.hold(sizes)), None)


def open_axes(direction: Direction, binding: Binding) -> tuple[str, ...]:
    """The axes of a call that no kernel has in its rows, and that the spec leaves open."""
    fixed = {axis.name for axis in direction.axes if axis.extent is not None}
    inner = {axis for kernel in direction.record.kernels for axis in kernel.inner}
    return tuple(axis for axis, _ in binding.extents if axis not in fixed | inner)


def cases_of(
    direction: Direction, sizes: Mapping[str, int], dtype: str, device: Machine, saves: bool = True
) -> Cases:
    """The launches of a direction for calls like this one, of contiguous arrays: with any lengths of the open
    axes, but for those that a text depends on. `saves`: whether the forward writes its saves."""
    wanted = tuple(name for name, each in direction.results.items() if saves or each.role != "save")
    binding = bind_sizes(direction, dict(sizes), dtype, wanted=wanted).binding
    record = direction.record
    strategy = fastest(record, binding, device).strategy.name
    left = open_axes(direction, binding)
    first = _traced(direction, binding, device, strategy, left)
    if first is not None:
        left = tuple(axis for axis in left if axis not in first.limits.pinned)
    planned = {axis: length for axis, length in binding.extents if axis in left}
    found: list[Case] = []
    points = [planned]
    while points and len(found) < MOST_CASES:
        point = points.pop(0)
        too_large = point != planned and _elements(binding, point) >= INT_LIMIT
        if too_large or any(case.limits.hold(point) for case in found):
            continue
        case = _traced(direction, resized(binding, point), device, strategy, left)
        if case is not None:
            assert case.limits.hold(point)
            found.append(case)
            points += case.limits.beyond(point)
    return Cases(direction, dtype, binding, device, strategy, left, _joined(found))


def _traced(
    direction: Direction, binding: Binding, device: Machine, strategy: str, left_open: tuple[str, ...]
) -> Case | None:
    """The case that a call belongs to; None where the strategy does not fit it."""
    trace = Trace(dict(binding.extents))
    asked = resized(binding, {axis: cast("int", trace.axis(axis)) for axis in left_open})
    found = chosen(direction.record, asked, device, Choice(strategy, {}))
    return None if found is None else _case(direction, found.plan, trace)


def _case(direction: Direction, plan: LaunchPlan, trace: Trace) -> Case:
    steps = tuple(_step(direction, launch) for launch in plan.launches)
    scratch = tuple(
        Scratch(name, tuple(map(formula_of, shape)), dtype) for name, shape, dtype in plan.workspace
    )
    return Case(limits_of(trace.conditions), steps, scratch)


def _step(direction: Direction, launch: Launch) -> Step:
    forms = (form for kernel in direction.record.kernels for form in kernel.forms)
    parameters = next(form.parameters for form in forms if form.entry == launch.entry)
    text = Text(
        source=launch.source,
        entry=launch.entry,
        block=launch.block,
        shared=launch.shared,
        cluster=launch.cluster,
        programmatic=launch.programmatic,
        format=launch.format,
        reads=launch.reads,
        writes=launch.writes,
        parameters=parameters,
    )
    x, y, z = map(formula_of, launch.grid)
    values = tuple(v if isinstance(v, Slot) else formula_of(cast("int", v)) for v in launch.values)
    return Step(text, (x, y, z), values, launch.clears)


def _joined(found: list[Case]) -> tuple[Case, ...]:
    """The cases by their limits, those as one that differ in nothing else."""
    kept: list[Case] = []
    for case in sorted(found, key=lambda case: [(each.axes, each.low) for each in case.limits.bounds]):
        last = kept[-1] if kept else None
        if last is not None and (last.steps, last.scratch) == (case.steps, case.scratch):
            limits = joined(last.limits, case.limits)
            if limits is not None:
                kept[-1] = replace(last, limits=limits)
                continue
        kept.append(case)
    return tuple(kept)


def _elements(binding: Binding, sizes: Mapping[str, int]) -> int:
    """Of the largest array."""
    extents = {**dict(binding.extents), **sizes}
    return max(prod(extents[axis] for axis, _ in operand.strides) for _, operand in binding.operands)
