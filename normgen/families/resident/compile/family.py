"""The resident family, as the compiler sees it: one kernel for a split's, which keeps what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from normgen.families.resident.compile.moments import ResidentPlan, plan_resident
from normgen.families.resident.compile.moments_emit import emit_resident
from normgen.families.resident.compile.sums import ResidentSumsPlan, plan_resident_sums
from normgen.families.resident.compile.sums_emit import emit_resident_sums
from normgen.ir.expr import Expr, Load, walk
from normgen.ir.show import show
from normgen.kernel.family import CompileFamily
from normgen.kernel.show import show_plan
from normgen.package.kernels import ResidentRecord, ResidentSumsRecord

# Of blocks that meet, and merge neighbours, and keep what they read.
_HEADERS = ("spread.cuh", "folded.cuh", "resident/resident.cuh")


class Moments(CompileFamily[ResidentPlan, ResidentRecord]):
    """Kernels whose statistics are moments."""

    plans, kernels = ResidentPlan, ResidentRecord
    join = staticmethod(plan_resident)
    emit = staticmethod(emit_resident)

    def way(self, plan: ResidentPlan) -> str:
        return "resident"

    def show(self, plan: ResidentPlan) -> str:
        made = tuple(f"  reads {t.name}[" for t in plan.temporaries)
        lines = show_plan(plan.whole).splitlines(keepends=True)
        head, *rest = (line for line in lines if not line.startswith(made))
        handed = ", ".join(t.name for t in plan.temporaries)
        part = "band" if plan.banded else "segment"
        own = f"  blocks keep their slices of {plan.kept.tensor.name}, and {handed} of a {part}\n"
        return "".join([head, own, *rest])

    def headers(self, kernels: Sequence[ResidentRecord]) -> tuple[str, ...]:
        return _HEADERS


class Sums(CompileFamily[ResidentSumsPlan, ResidentSumsRecord]):
    """Kernels whose statistics are sums."""

    plans, kernels = ResidentSumsPlan, ResidentSumsRecord
    join = staticmethod(plan_resident_sums)
    emit = staticmethod(emit_resident_sums)

    def way(self, plan: ResidentSumsPlan) -> str:
        return "resident"

    def show(self, plan: ResidentSumsPlan) -> str:
        whole, columns = plan.whole, plan.statistics.columns
        of, held = ", ".join((*whole.segment, *whole.inner)), ", ".join(o.tensor.name for o in plan.kept)
        names: dict[Expr, str] = {leaf: f"s{k}" for k, leaf in enumerate(plan.sums, 1)}
        factors = {name: name.removeprefix("%") for name, _ in plan.factors}
        used = walk(*(r.expr for r in whole.results))
        names |= {n: factors[n.tensor] for n in used if isinstance(n, Load) and n.tensor in factors}
        lines = [show_plan(replace(whole, results=(), columns=(), finals=())).rstrip()]
        lines.append(f"  blocks keep their slices of {held}")
        lines += [
            f"  over rows {names[s]}[{of}] = {show(c.reduce)}"
            for s, c in zip(plan.sums, columns, strict=True)
        ]
        lines += [f"  members leave {show(fold, names)}" for fold in plan.folds]
        lines += [f"  {r.tensor.name} = {show(r.expr, names)}" for r in plan.made]
        lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in plan.ends]
        lines += [f"  {factors[name]} = {show(value, names)}" for name, value in plan.factors]
        lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in whole.results]
        for column, share in zip(whole.columns, plan.shares, strict=True):
            lines.append(f"  to {show(column.reduce)} a slice adds {show(share, names)}")
        ends = set(plan.ends)
        lines += [f"  finally writes {r.tensor.name} = {show(r.expr)}" for r in whole.finals if r not in ends]
        return "\n".join(lines) + "\n"

    def headers(self, kernels: Sequence[ResidentSumsRecord]) -> tuple[str, ...]:
        return (*_HEADERS, "resident/sums.cuh")
