"""Plans of kernels as text, for `explain --emit plan`: what each kernel reads, exchanges and writes."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.ir.nodes import Reduce
from normgen.ir.show import show
from normgen.kernel.accumulators import Column
from normgen.kernel.plan import KernelPlan, Operand


def show_plan(plan: KernelPlan) -> str:
    """A kernel over rows."""
    lines = [
        f"kernel {plan.name}",
        f"  a row is [{', '.join(plan.inner)}]; [{', '.join(plan.kept)}] number the rows",
    ]
    if plan.pieces:
        lines.append(f"  a row is in pieces of [{', '.join(plan.piece)}]")
    if plan.segment:
        lines.append(f"  a block stays within one [{', '.join(plan.segment)}]")
    lines += operand_lines("reads", plan.operands)
    for number, level in enumerate(plan.merged_levels, 1):
        merged = " (mean and squares of one value, merged)" if level.moments else ""
        lines.append(f"  exchange {number}{merged}")
        lines += [f"    {show(reduce)}" for reduce in level.sums]
    lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
    lines += [f"  over rows {_column(column)}" for column in plan.columns]
    if plan.finals:
        lines += operand_lines("finally reads", plan.final_operands)
        lines += [f"  finally writes {result.tensor.name} = {show(result.expr)}" for result in plan.finals]
    return "\n".join(lines) + "\n"


def operand_lines(verb: str, operands: Iterable[Operand]) -> list[str]:
    """A line for each operand, with its axes."""
    return [f"  {verb} {each.tensor.name}[{', '.join(each.kept + each.inner)}]" for each in operands]


def _column(column: Column) -> str:
    """An accumulator: what it finds, and how many values it has."""
    found = ", ".join(show(node) for node in column.nodes if isinstance(node, Reduce))
    found += " (mean and squares of one value, in one pass)" if column.moments else ""
    what = "one value for each element of the row" if column.wide else "one value in all"
    what += f", merged over [{', '.join(column.folded)}] by the block" if column.folded else ""
    own = column.kept + column.part
    return f"{found}: {what}" + (f", for each [{', '.join(own)}]" if own else "")
