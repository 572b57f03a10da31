"""The columns family, as the compiler sees it: threads own neighbouring columns and walk along them."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.families.columns.compile.emit import emit_columns
from normgen.families.columns.compile.plan import ColumnsPlan, plan_columns
from normgen.kernel.family import CompileFamily
from normgen.kernel.show import show_plan
from normgen.package.kernels import ColumnsRecord


class Columns(CompileFamily[ColumnsPlan, ColumnsRecord]):
    """Kernels of reductions over strided axes."""

    plans, kernels = ColumnsPlan, ColumnsRecord
    plan = staticmethod(plan_columns)
    emit = staticmethod(emit_columns)

    def show(self, plan: ColumnsPlan) -> str:
        head, _, *rest = show_plan(plan.parts).splitlines(keepends=True)
        walk = f"  threads own columns [{', '.join(plan.across)}] and walk along [{', '.join(plan.reduced)}]"
        outer = f"; [{', '.join(plan.outer)}] number the matrices" if plan.outer else ""
        return "".join([head, f"{walk}{outer}\n", *rest])

    def headers(self, kernels: Sequence[ColumnsRecord]) -> tuple[str, ...]:
        return ("columns/columns.cuh",)
