"""The rows family, as the compiler sees it: a team of threads has each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from normgen.families.rows.compile.emit import emit
from normgen.families.rows.compile.forms import HEADERS
from normgen.families.rows.compile.plan import (
    plan_folded,
    plan_in_pieces,
    plan_rows,
    plan_shared,
    plan_whole,
)
from normgen.kernel.family import CompileFamily
from normgen.kernel.group import Group, first_plan
from normgen.kernel.plan import KernelPlan
from normgen.kernel.show import show_plan
from normgen.package.kernels import KernelRecord


def _plan_sharing(group: Group) -> KernelPlan:
    """`plan_shared`, where a team has each row otherwise."""
    if not plan_rows(group).levels:
        raise group.misfit("has groups that blocks share anyway")
    return plan_shared(group)


# How else a group may be planned, by the way that a strategy asks for.
_OTHERWISE: dict[str, tuple[Callable[[Group], KernelPlan], ...]] = {
    "shared": (_plan_sharing,),
    "folded": (plan_folded,),
    "whole": (plan_whole, plan_in_pieces),
}


class Rows(CompileFamily[KernelPlan, KernelRecord]):
    """A team of threads has each row, or blocks share it."""

    plans, kernels = KernelPlan, KernelRecord
    plan = staticmethod(plan_rows)
    emit = staticmethod(emit)
    show = staticmethod(show_plan)

    def otherwise(self, way: str, group: Group) -> KernelPlan:
        return first_plan(_OTHERWISE[way], group)

    def way(self, plan: KernelPlan) -> str:
        return "shared" if plan.shared else "folded" if plan.folded else ""

    def headers(self, kernels: Sequence[KernelRecord]) -> tuple[str, ...]:
        return tuple(name for name, needs in HEADERS if any(map(needs, kernels)))
