"""The resident family, as the compiler sees it: one kernel for a split's, which keeps what it reads."""

from __future__ import annotations

from dataclasses import replace

from normgen.families.resident.compile.emit import emit_resident
from normgen.families.resident.compile.plan import ResidentPlan, plan_resident
from normgen.ir.expr import Expr, Load, walk
from normgen.ir.show import show
from normgen.kernel.family import CompileFamily
from normgen.kernel.show import show_plan
from normgen.package.kernels import ResidentRecord


class Resident(CompileFamily[ResidentPlan, ResidentRecord]):
    """Kernels of statistics and what applies them."""

    plans, rank = ResidentPlan, 5
    join = staticmethod(plan_resident)
    emit = staticmethod(emit_resident)

    def way(self, plan: ResidentPlan) -> str:
        return "resident"

    def show(self, plan: ResidentPlan) -> str:
        return _show_moments(plan) if plan.moments else _show_sums(plan)


def _show_moments(plan: ResidentPlan) -> str:
    names = [r.tensor.name for r in plan.made]
    made = tuple(f"  reads {name}[" for name in names)
    lines = show_plan(plan.whole).splitlines(keepends=True)
    head, *rest = (line for line in lines if not line.startswith(made))
    part = "band" if plan.banded else "segment"
    own = f"  blocks keep their slices of {plan.kept[0].tensor.name}, and {', '.join(names)} of a {part}\n"
    return "".join([head, own, *rest])


def _show_sums(plan: ResidentPlan) -> str:
    whole, columns = plan.whole, plan.statistics.columns
    of, held = ", ".join((*whole.segment, *whole.inner)), ", ".join(o.tensor.name for o in plan.kept)
    names: dict[Expr, str] = {leaf: f"s{k}" for k, leaf in enumerate(plan.sums, 1)}
    factors = {name: name.removeprefix("%") for name, _ in plan.factors}
    used = walk(*whole.roots)
    names |= {n: factors[n.tensor] for n in used if isinstance(n, Load) and n.tensor in factors}
    sums, ends = zip(plan.sums, columns, strict=True), set(plan.ends)
    lines = [show_plan(replace(whole, results=(), columns=(), finals=())).rstrip()]
    lines.append(f"  blocks keep their slices of {held}")
    lines += [f"  over rows {names[s]}[{of}] = {show(c.reduce)}" for s, c in sums]
    lines += [f"  members leave {show(each, names)}" for each in plan.left]
    lines += [f"  {r.tensor.name} = {show(r.expr, names)}" for r in plan.made]
    lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in plan.ends]
    lines += [f"  {factors[name]} = {show(value, names)}" for name, value in plan.factors]
    lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in whole.results]
    for column, share in zip(whole.columns, plan.shares, strict=True):
        lines.append(f"  to {show(column.reduce)} a slice adds {show(share, names)}")
    lines += [f"  finally writes {r.tensor.name} = {show(r.expr)}" for r in whole.finals if r not in ends]
    return "\n".join(lines) + "\n"


FAMILY = Resident()
