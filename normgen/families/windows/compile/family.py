"""The windows family, as the compiler sees it: sums over neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.families.windows.compile.emit import FORMS, emit_windows
from normgen.families.windows.compile.plan import WindowsPlan, plan_windows
from normgen.ir.show import show
from normgen.kernel.family import CompileFamily
from normgen.kernel.show import operand_lines
from normgen.package.kernels import WindowsRecord


class Windows(CompileFamily[WindowsPlan, WindowsRecord]):
    """Kernels whose only reductions are sums over windows."""

    plans, kernels = WindowsPlan, WindowsRecord
    plan = staticmethod(plan_windows)
    emit = staticmethod(emit_windows)

    def show(self, plan: WindowsPlan) -> str:
        lines = [
            f"kernel {plan.name}",
            f"  windows along [{', '.join(plan.windowed)}] of [{', '.join(plan.axes)}]",
        ]
        lines += operand_lines("reads", plan.operands)
        for number, level in enumerate(plan.levels, 1):
            lines += [f"  level {number}: {show(each)}" for each in level]
        lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
        return "\n".join(lines) + "\n"

    def headers(self, kernels: Sequence[WindowsRecord]) -> tuple[str, ...]:
        used = {form.form for kernel in kernels for form in kernel.forms}
        return ("windows/windows.cuh", *(name for f in FORMS if f.name in used for name in f.headers))
