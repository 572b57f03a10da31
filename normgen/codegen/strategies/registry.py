"""The families of kernels: who plans a group of results, and who writes the text of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normgen.diagnostics import Source
from normgen.families.columns.compile.emit import emit_columns
from normgen.families.columns.compile.plan import ColumnsPlan, plan_columns
from normgen.families.resident.compile.moments import ResidentPlan
from normgen.families.resident.compile.moments_emit import emit_resident
from normgen.families.resident.compile.sums import ResidentSumsPlan
from normgen.families.resident.compile.sums_emit import emit_resident_sums
from normgen.families.rows.compile.emit import emit
from normgen.families.rows.compile.plan import plan_rows
from normgen.families.tiles.compile.emit import emit_tiles
from normgen.families.tiles.compile.plan import TilesPlan, plan_tiles
from normgen.families.windows.compile.emit import emit_windows
from normgen.families.windows.compile.plan import WindowsPlan, plan_windows
from normgen.ir.expr import Load, walk
from normgen.kernel.group import Group, Misfit
from normgen.kernel.plan import KernelPlan
from normgen.package.kernels import Kernel

Plan = KernelPlan | ColumnsPlan | TilesPlan | WindowsPlan | ResidentPlan | ResidentSumsPlan

Planner = Callable[[Group], Plan]

# In order of preference.
_PLANNERS: tuple[Planner, ...] = (plan_rows, plan_columns, plan_tiles, plan_windows)
_EMITTERS: dict[type, Callable[..., Any]] = {
    KernelPlan: emit,
    ColumnsPlan: emit_columns,
    TilesPlan: emit_tiles,
    WindowsPlan: emit_windows,
    ResidentPlan: emit_resident,
    ResidentSumsPlan: emit_resident_sums,
}


def plan_kernel(group: Group) -> Plan:
    """The plan of the first family that covers the group; raises the `Misfit` of the first where none
    does."""
    planners = _PLANNERS
    if _is_small(group):
        # one launch in place of a kernel and the one that adds up what its blocks found
        planners = (plan_columns, *_PLANNERS)
    return first_plan(planners, group)


def _is_small(group: Group) -> bool:
    """Whether a group reads nothing that has all its axes but what other kernels have reduced already."""
    full = [t for t in group.program.operands if t.axes == group.space]
    used = {n.tensor for n in walk(*(r.expr for r in group.results)) if isinstance(n, Load)}
    return all(t.role == "temporary" for t in full if t.name in used)


def first_plan(planners: tuple[Planner, ...], group: Group) -> Plan:
    """The plan of the first that covers the group; raises the `Misfit` of the first where none does."""
    reasons: list[Misfit] = []
    for planner in planners:
        try:
            return planner(group)
        except Misfit as misfit:
            reasons.append(misfit)
    raise reasons[0]


def emit_kernel(plan: Plan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...]) -> Kernel:
    """The record of a planned kernel, with its text.

    `accumulated`: results that a call may add to what their memory holds. `formulas`: comment lines of the
    mathematics.
    """
    record: Kernel = _EMITTERS[type(plan)](plan, source, accumulated, formulas)
    return record
