"""The families of kernels: the one place that lists them.

A strategy asks for plans of groups of results, and does not know whose they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from normgen.families.columns.compile.family import Columns
from normgen.families.resident.compile.family import Resident
from normgen.families.rows.compile.family import Rows
from normgen.families.tiles.compile.family import Tiles
from normgen.families.windows.compile.family import Windows
from normgen.ir.expr import Load, walk
from normgen.ir.program import Tensor
from normgen.kernel.family import CompileFamily, Plan
from normgen.kernel.group import Group, first_plan

Planner = Callable[[Group], Plan]
Family = CompileFamily[Any, Any]

_ROWS, _COLUMNS, _TILES, _WINDOWS = Rows(), Columns(), Tiles(), Windows()
_FAMILIES: tuple[Family, ...] = (_COLUMNS, _TILES, _WINDOWS, _ROWS, Resident())
_BY_PLAN = {family.plans: family for family in _FAMILIES}
# Those that plan any group they cover, in order of preference.
_PREFERRED: tuple[Family, ...] = (_ROWS, _COLUMNS, _TILES, _WINDOWS)


def family_of(plan: Plan) -> Family:
    """The family that has made a plan."""
    return _BY_PLAN[type(plan)]


def plan_kernel(group: Group) -> Plan:
    """The plan of the first family that covers the group; raises the `Misfit` of the first where none
    does."""
    # (of what is small one launch in place of a kernel and the one that adds up what its blocks found)
    families = (_COLUMNS, *_PREFERRED) if _is_small(group) else _PREFERRED
    plan: Plan = first_plan((family.plan for family in families), group)
    return plan


def _is_small(group: Group) -> bool:
    """Whether a group reads nothing that has all its axes but what other kernels have reduced already."""
    full = [t for t in group.program.operands if t.axes == group.space]
    used = {n.tensor for n in walk(*group.roots) if isinstance(n, Load)}
    return all(t.role == "temporary" for t in full if t.name in used)


def plan_otherwise(way: str, group: Group) -> Plan:
    """The plan of the first family that can plan the group in this way; raises `Misfit` where none can."""
    plan: Plan = first_plan((partial(family.otherwise, way) for family in _FAMILIES), group)
    return plan


def join(name: str, plans: tuple[Plan, ...], temporaries: tuple[Tensor, ...]) -> Plan:
    """One kernel in place of these, which hand on the temporaries; raises `Misfit` where there is none."""
    plan: Plan = first_plan((family.join for family in _FAMILIES), name, plans, temporaries)
    return plan
