"""The rows family, as the compiler sees it: a thread group has each row.

It makes the forms of a kernel plan, whose CUDA texts are printed launch by launch. Python prints expressions
and statements and decides every name and offset; the Jinja templates own the loops. The constants of a
launch (see `launching.call`) specialize a text for a shape, its element types and a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normgen.families.rows.compile.forms import (
    FORMS,
    REGISTERS,
    cooperates,
    exchanged,
    finishes,
    launches,
    left,
    refills,
    tags,
)
from normgen.families.rows.compile.plan import (
    plan_folded,
    plan_in_pieces,
    plan_rows,
    plan_told,
    plan_whole,
)
from normgen.families.rows.compile.view import RowsView
from normgen.ir.expr import walk
from normgen.kernel.family import CompileFamily
from normgen.kernel.finals import final_groups, second_stage_form
from normgen.kernel.forms import clear_form
from normgen.kernel.group import Group, first_plan
from normgen.kernel.phases import is_function
from normgen.kernel.plan import KernelPlan, as_stored
from normgen.kernel.show import show_plan
from normgen.kernel.text import KernelText, Wording
from normgen.package.kernels import RowsRecord

# How else a group may be planned, by the way that a strategy asks for.
_OTHERWISE: dict[str, tuple[Callable[[Group], KernelPlan], ...]] = {
    "folded": (plan_folded,),
    "whole": (plan_whole, plan_in_pieces),
    "told": (plan_told,),
}


class Rows(CompileFamily[KernelPlan, RowsRecord]):
    """A thread group has each row, or blocks share it."""

    plans, rank = KernelPlan, 1
    plan = staticmethod(plan_rows)
    show = staticmethod(show_plan)

    def emit(self, plan: KernelPlan, wording: Wording) -> RowsRecord:
        """The record of a kernel with each form that its plan admits."""
        plan = as_stored(plan)
        # (vectors of rows in pieces each have a place of their own: 64 bits would take many registers)
        text = KernelText(plan, wording, far=not plan.pieces)
        # (the form that has all rows under way at once numbers them across segments)
        alone = text
        if plan.segment:
            alone = KernelText(replace(plan, segment=()), wording, far=text.far)
        forms, held = [], []
        for form in [REGISTERS] if plan.channel else [each for each in FORMS if each.admits(plan)]:
            view = RowsView(alone if form is REGISTERS else text, form)
            forms.append(view.record())
            held.append(len(view.body.held))
        if cooperates(plan):
            forms.append(clear_form(text))
        if plan.finals:
            forms.append(second_stage_form(text, several=not plan.part))
        return RowsRecord(
            name=plan.name,
            kept=plan.kept,
            inner=plan.inner,
            reads=tuple(replace(a.record(), passes=plan.passes(a.tensor)) for a in text.reads),
            writes=tuple(a.record() for a in text.writes),
            final_reads=tuple(a.record() for a in text.final_reads),
            finals=tuple(text.result(r).record() for r in plan.finals),
            columns=tuple(c.record() for c in text.columns),
            segment=plan.segment,
            exchanges=len(plan.levels),
            moments=plan.moments is not None,
            functions=any(map(is_function, walk(*(r.expr for r in (*plan.results, *plan.finals))))),
            held=held[0],
            forms=tuple(forms),
            groups=len(final_groups(plan)),
            splits=plan.splits,
            pieces=plan.pieces,
            refills=refills(plan),
            cooperative=exchanged(plan),
            launches=launches(plan),
            left=sum(left(plan)),
            tags=tags(plan),
            finishes=finishes(plan),
        )

    def otherwise(self, way: str, group: Group) -> KernelPlan:
        return first_plan(_OTHERWISE[way], group)

    def way(self, plan: KernelPlan) -> str:
        return "folded" if plan.folded else ""


FAMILY = Rows()
