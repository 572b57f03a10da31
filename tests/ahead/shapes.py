"""Launches of bundled specs for a shape, as the command line makes them."""

from __future__ import annotations

from dataclasses import replace

import normgen
from normgen.ahead.cases import Cases, cases_of
from normgen.cli.sizes import usual_sizes
from normgen.launching.case import Case
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import Machine, architecture, usual_machine
from normgen.package.direction import Direction, directions
from normgen.package.records import Package


def machine(arch: str) -> Machine:
    """The usual device of an architecture, with a launcher that can do all that it can."""
    return replace(usual_machine(arch), programmatic=architecture(arch).programmatic)


def package(spec: str, **attrs: int) -> Package:
    """A bundled spec."""
    return normgen.load(spec, **attrs).package


def direction(made: Package, name: str) -> Direction:
    """One of its directions."""
    return next(each for each in directions(made) if each is not None and each.name == name)


def shaped(
    made: Package,
    name: str,
    sizes: dict[str, int],
    dtype: str = "bf16",
    arch: str = "sm_90",
    saves: bool = True,
) -> Cases:
    """The launches of a direction for a shape."""
    return cases_of(direction(made, name), usual_sizes(made, sizes), dtype, machine(arch), saves)


def case_of(cases: Cases, sizes: dict[str, int]) -> Case[LaunchPlan] | None:
    """The case of a call with these lengths of the open axes."""
    return next((case for case in cases.cases if case.limits.hold(sizes)), None)
