"""The windows family, as the compiler sees it: sums over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normgen.families.windows.compile.direct import Direct
from normgen.families.windows.compile.image import March, Pixels, Span
from normgen.families.windows.compile.plan import WindowsPlan, is_costly, plan_windows
from normgen.families.windows.compile.text import View, WindowsText
from normgen.ir.expr import walk
from normgen.ir.show import show
from normgen.kernel.family import CompileFamily
from normgen.kernel.show import operand_lines
from normgen.kernel.text import Wording
from normgen.package.kernels import WindowsRecord


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family; its template has its name."""

    name: str
    counts: tuple[str, ...]  # what its kernel counts in: its last parameters
    view: type[View]  # what its template prints
    admits: Callable[[WindowsPlan], bool]  # whether a plan has it; images must lie in one piece at a call


FORMS = (
    # an image is walked with the sums of several steps under way; every element is read once
    Form(
        "march",
        ("images", "lanes", "strips", "ranges", "steps", "length", "size"),
        March,
        lambda plan: plan.walks,
    ),
    # a thread walks along the windows at one place of a plane; elements are read once but at ends of ranges
    Form(
        "pixels",
        ("strips", "ranges", "length", "channels"),
        Pixels,
        lambda plan: plan.walks and not plan.boxed,
    ),
    # windows along the innermost axis; a thread reads its elements and those around them
    Form("span", ("images", "lanes", "size"), Span, lambda plan: plan.spans),
    # every neighbour of every element is looked at, however operands lie
    Form("direct", ("elements",), Direct, lambda plan: True),
)


class Windows(CompileFamily[WindowsPlan, WindowsRecord]):
    """Kernels whose only reductions are sums over windows."""

    plans, rank = WindowsPlan, 4
    plan = staticmethod(plan_windows)

    def emit(self, plan: WindowsPlan, wording: Wording) -> WindowsRecord:
        """The record of a kernel with each form that its plan admits."""
        text = WindowsText(plan, wording)
        inner = plan.image or plan.axes[-1:]
        return WindowsRecord(
            name=plan.name,
            kept=plan.axes[: -len(inner)],
            inner=inner,
            image=plan.image,
            windowed=plan.windowed,
            reaches=plan.reaches if plan.image else (),
            across=plan.reaches_across if plan.image else (),
            sums=tuple(map(len, plan.levels)),
            early=len(text.early),
            functions=any(is_costly(n) for level in plan.levels for n in walk(*(s.arg for s in level))),
            reads=tuple(a.record() for a in text.reads),
            writes=tuple(a.record() for a in text.writes),
            forms=tuple(form.view(text).form(form.name, form.counts) for form in FORMS if form.admits(plan)),
        )

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


FAMILY = Windows()
