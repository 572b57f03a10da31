"""Kernel plans as text, for `explain --emit plan`: what each kernel reads, exchanges and writes."""

from __future__ import annotations

from dataclasses import replace

from normgen.codegen.strategies.cut import PlannedStrategy
from normgen.codegen.strategies.registry import Plan
from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.families.resident.compile.moments import ResidentPlan
from normgen.families.resident.compile.sums import ResidentSumsPlan
from normgen.families.tiles.compile.plan import TilesPlan
from normgen.families.windows.compile.plan import WindowsPlan
from normgen.ir.nodes import Expr, Load, Reduce, walk
from normgen.ir.show import show
from normgen.kernel.accumulators import Column
from normgen.kernel.levels import Level
from normgen.kernel.plan import KernelPlan, Operand


def show_strategies(strategies: tuple[PlannedStrategy, ...]) -> str:
    """Every strategy of a pass with its kernels in launch order, and what they hand on to one another."""
    parts = []
    for strategy in strategies:
        if len(strategies) > 1:
            parts.append(f"strategy {strategy.name}\n")
        parts += [_show_plan(plan) for plan in strategy.plans]
    return "\n".join(parts)


def _show_plan(plan: Plan) -> str:
    match plan:
        case KernelPlan():
            return _show_rows(plan)
        case ColumnsPlan():
            return _show_columns(plan)
        case TilesPlan():
            return _show_tiles(plan)
        case WindowsPlan():
            return _show_windows(plan)
        case ResidentPlan():
            return _show_resident(plan)
        case ResidentSumsPlan():
            return _show_resident_sums(plan)


def _show_columns(plan: ColumnsPlan) -> str:
    head, _, *rest = _show_rows(plan.parts).splitlines(keepends=True)
    walk = f"  threads own columns [{', '.join(plan.across)}] and walk along [{', '.join(plan.reduced)}]"
    outer = f"; [{', '.join(plan.outer)}] number the matrices" if plan.outer else ""
    return "".join([head, f"{walk}{outer}\n", *rest])


def _show_resident(plan: ResidentPlan) -> str:
    made = [f"  reads {t.name}[" for t in plan.temporaries]
    head, *rest = (
        line for line in _show_rows(plan.whole).splitlines(keepends=True) if not line.startswith(tuple(made))
    )
    handed = ", ".join(t.name for t in plan.temporaries)
    part = "band" if plan.banded else "segment"
    own = f"  blocks keep their slices of {plan.kept.tensor.name}, and {handed} of a {part}\n"
    return "".join([head, own, *rest])


def _show_resident_sums(plan: ResidentSumsPlan) -> str:
    whole, columns = plan.whole, plan.statistics.columns
    of, held = ", ".join((*whole.segment, *whole.inner)), ", ".join(o.tensor.name for o in plan.kept)
    names: dict[Expr, str] = {leaf: f"s{k}" for k, leaf in enumerate(plan.sums, 1)}
    factors = {name: name.removeprefix("%") for name, _ in plan.factors}
    used = walk(*(r.expr for r in whole.results))
    names |= {n: factors[n.tensor] for n in used if isinstance(n, Load) and n.tensor in factors}
    lines = [_show_rows(replace(whole, results=(), columns=(), finals=())).rstrip()]
    lines.append(f"  blocks keep their slices of {held}")
    lines += [
        f"  over rows {names[s]}[{of}] = {show(c.reduce)}" for s, c in zip(plan.sums, columns, strict=True)
    ]
    lines += [f"  members leave {show(fold, names)}" for fold in plan.folds]
    lines += [f"  {r.tensor.name} = {show(r.expr, names)}" for r in plan.made]
    lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in plan.ends]
    lines += [f"  {factors[name]} = {show(value, names)}" for name, value in plan.factors]
    lines += [f"  writes {r.tensor.name} = {show(r.expr, names)}" for r in whole.results]
    for column, share in zip(whole.columns, plan.shares, strict=True):
        lines.append(f"  to {show(column.reduce)} a slice adds {show(share, names)}")
    lines += [
        f"  finally writes {r.tensor.name} = {show(r.expr)}" for r in whole.finals if r not in plan.ends
    ]
    return "\n".join(lines) + "\n"


def _show_windows(plan: WindowsPlan) -> str:
    lines = [
        f"kernel {plan.name}",
        f"  windows along [{', '.join(plan.windowed)}] of [{', '.join(plan.axes)}]",
    ]
    lines += _operands("reads", plan.operands)
    for number, level in enumerate(plan.levels, 1):
        lines += [f"  level {number}: {show(each)}" for each in level]
    lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
    return "\n".join(lines) + "\n"


def _show_tiles(plan: TilesPlan) -> str:
    lines = [
        f"kernel {plan.name}",
        f"  matrices of [{', '.join(plan.rows)}] by [{', '.join(plan.columns)}], in tiles",
    ]
    if plan.batch:
        lines.append(f"  [{', '.join(plan.batch)}] number the matrices")
    lines += _operands("reads", plan.operands)
    lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
    turned = [o.tensor.name for o in (*plan.operands, *plan.targets) if o.inner == plan.rows]
    lines.append(f"  through shared memory {', '.join(turned)}")
    return "\n".join(lines) + "\n"


def _show_rows(plan: KernelPlan) -> str:
    lines = [
        f"kernel {plan.name}",
        f"  a row is [{', '.join(plan.inner)}]; [{', '.join(plan.kept)}] number the rows",
    ]
    if plan.pieces:
        lines.append(f"  a row is in pieces of [{', '.join(plan.piece)}]")
    if plan.segment:
        lines.append(f"  a block stays within one [{', '.join(plan.segment)}]")
    lines += _operands("reads", plan.operands)
    for number, level in enumerate(plan.merged_levels, 1):
        lines.append(f"  exchange {number}{_merged(level)}")
        lines += [f"    {show(reduce)}" for reduce in level.sums]
    lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
    for column in plan.columns:
        what = "one value for each element of the row" if column.wide else "one value in all"
        own = column.kept + column.part
        what += f", merged over [{', '.join(column.folded)}] by the block" if column.folded else ""
        per = f", for each [{', '.join(own)}]" if own else ""
        found = ", ".join(show(node) for node in column.nodes if isinstance(node, Reduce))
        lines.append(f"  over rows {found}{_in_one_pass(column)}: {what}{per}")
    if plan.finals:
        lines += _operands("finally reads", plan.final_operands)
        lines += [f"  finally writes {result.tensor.name} = {show(result.expr)}" for result in plan.finals]
    return "\n".join(lines) + "\n"


def _in_one_pass(column: Column) -> str:
    return " (mean and squares of one value, in one pass)" if column.moments else ""


def _merged(level: Level) -> str:
    return " (mean and squares of one value, merged)" if level.moments else ""


def _operands(verb: str, operands: tuple[Operand, ...]) -> list[str]:
    return [
        f"  {verb} {operand.tensor.name}[{', '.join(operand.kept + operand.inner)}]" for operand in operands
    ]
