"""The families of kernels, as strategies ask them for plans of groups of results.

A strategy does not know whose its plans are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from normgen.families import NAMES, half
from normgen.ir.program import Tensor
from normgen.kernel.family import CompileFamily, Plan
from normgen.kernel.group import Group, first_plan

Planner = Callable[[Group], Plan]
Family = CompileFamily[Any, Any]


@cache
def families() -> tuple[Family, ...]:
    """All of them, in order of preference."""
    return tuple(sorted((half(name, "compile") for name in NAMES), key=lambda family: family.rank))


@cache
def _by_plan() -> dict[type[Plan], Family]:
    return {family.plans: family for family in families()}


def family_of(plan: Plan) -> Family:
    """The family that has made a plan."""
    return _by_plan()[type(plan)]


def plan_kernel(group: Group) -> Plan:
    """The plan of the first family that covers the group; raises the `Misfit` of the first where none
    does."""
    eager = [family for family in families() if family.is_eager(group)]
    plan: Plan = first_plan((family.plan for family in (*eager, *families())), group)
    return plan


def plan_otherwise(way: str, group: Group) -> Plan:
    """The plan of the first family that can plan the group in this way; raises `Misfit` where none can."""
    plan: Plan = first_plan((partial(family.otherwise, way) for family in families()), group)
    return plan


def join(name: str, plans: tuple[Plan, ...], temporaries: tuple[Tensor, ...]) -> Plan:
    """One kernel in place of these, which hand on the temporaries; raises `Misfit` where there is none."""
    plan: Plan = first_plan((family.join for family in families()), name, plans, temporaries)
    return plan
