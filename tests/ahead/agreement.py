"""Shapes of every bundled spec, and calls of them in each of their cases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from random import Random

from normgen import bundled
from normgen.ahead.cases import Cases, cases_of
from normgen.ahead.description import description
from normgen.ahead.interface import kernel_names, size_names, tensors
from normgen.ahead.usual import axes_of, fixed_axes, usual_lengths
from normgen.launching.case import Case
from normgen.launching.launch import Binding, LaunchPlan
from normgen.package.direction import directions
from normgen.package.records import Package
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from tests.ahead.shapes import case_of, machine
from tests.ahead.standalone import Launcher
from tests.codegen.norms import packaged

# What is given of a spec that has the axis, the element type, and the architecture: the first for each spec,
# of the others one in turns.
SHAPES: tuple[tuple[dict[str, int], str, str], ...] = (
    ({}, "bf16", "sm_90"),
    ({"D": 1500000}, "bf16", "sm_90"),
    ({}, "f32", "sm_80"),
    ({"D": 1001}, "f16", "sm_90"),
)
DRAWS = 3000  # of lengths, in which each case has a call
LARGE = 2**22  # the fewest rows of a case that only calls of many elements may have


@dataclass
class Shape:
    """The directions of a spec for calls of one shape."""

    package: Package
    every: tuple[Cases, ...]

    @cached_property
    def calls(self) -> tuple[list[Call], ...]:
        """For each direction a call of each case."""
        return tuple(_calls(self.package, cases) for cases in self.every)


@cache
def shapes(name: str) -> tuple[Shape, ...]:
    """Those of a spec."""
    made = packaged(name)
    axes = {*axes_of(made)} - {*fixed_axes(made)}
    first, *others = [shape for shape in SHAPES if shape[0].keys() <= axes]
    return tuple(_shape(made, *each) for each in (first, others[bundled.names().index(name) % len(others)]))


def _shape(made: Package, given: dict[str, int], dtype: str, arch: str) -> Shape:
    passes = [each for each in directions(made) if each is not None and each.record.strategies]
    sizes = usual_lengths(made, given)
    return Shape(made, tuple(cases_of(each, sizes, dtype, machine(arch)) for each in passes))


def launcher(cases: Cases) -> Launcher:
    """What the JSONs of a direction launch. A binary is its text."""
    names = kernel_names(cases)
    told = (description(cases, kernel, "", kernel.source.encode(), "", "") for kernel in names)
    return Launcher([json.loads(each) for each in told])


@dataclass
class Call:
    """A call of a shape: lengths of the open axes, an address for each array, and a number for each attr."""

    cases: Cases
    case: Case[LaunchPlan]
    lengths: dict[str, int]
    arrays: dict[str, int]
    attrs: dict[str, float]

    @property
    def sizes(self) -> dict[str, int]:
        """The lengths by the names that files have for them."""
        return {name: self.lengths[axis] for axis, name in size_names(self.cases).items()}

    @cached_property
    def binding(self) -> Binding:
        """The call with contiguous arrays."""
        return bind_sizes(self.cases.direction, self.cases.sizes | self.lengths, self.cases.dtype).binding

    @cached_property
    def plan(self) -> LaunchPlan:
        """What planning makes of it."""
        cases = self.cases
        return plan_launches(cases.direction.record, self.binding, cases.device, cases.strategy)


def _calls(package: Package, cases: Cases) -> list[Call]:
    random, found = Random(repr(cases.sizes)), {}
    arrays = {each.record.name: place << 40 | 16 * place for place, each in enumerate(tensors(cases), 1)}
    attrs = {attr.name: 0.5 + place for place, attr in enumerate(package.attrs)}
    one = _elements(cases, dict.fromkeys(cases.open, 1))
    lows = {id(each): max((bound.low for bound in each.limits.bounds), default=1) for each in cases.cases}
    small = {case for case, low in lows.items() if low < LARGE and low * one < 2**31}
    for _ in range(DRAWS):
        lengths = {axis: int(2 ** random.uniform(1, 5)) for axis in cases.open}
        bounds = random.choice(cases.cases).limits.bounds
        for bound in random.sample(bounds, len(bounds)):
            *outer, last = bound.axes
            inside = random.choice((bound.low + 1, (bound.low + bound.high) // 2))
            edge = random.choice((bound.low, bound.high, min(inside, bound.high)))
            others = prod(lengths[axis] for axis in outer)
            up = others - 1 if edge < bound.high else 0  # no less than the edge, but for the highest
            lengths[last] = max(2, (min(edge, LARGE) + up) // others)
        case = case_of(cases, lengths)
        if case is not None and _elements(cases, lengths) < 2**31:
            found.setdefault(id(case), Call(cases, case, lengths, arrays, attrs))
        if small <= found.keys():
            break
    assert small and small <= found.keys(), [each.limits for each in cases.cases if id(each) not in found]
    return list(found.values())


def _elements(cases: Cases, lengths: dict[str, int]) -> int:
    known = cases.sizes | lengths
    return max(prod(known[axis] for axis, _ in each.strides) for _, each in cases.binding.operands)
