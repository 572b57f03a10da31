"""Windows plan -> CUDA text, one for each form.

- pixels: each thread walks along the windows at one place of a plane; every element is read once, but for the
  ends of ranges.
- march: an image is walked with the sums of several steps under way; every element is read once.
- span: windows along the innermost axis; a thread reads its elements and those around them.
- direct: every neighbour of every element is looked at. Always there; the others ask for operands of certain
  axes and, at a call, for images in one piece.
"""

from __future__ import annotations

from normgen.diagnostics import Source
from normgen.families.windows.compile.direct import Direct
from normgen.families.windows.compile.form import Form
from normgen.families.windows.compile.image import March, Span, early_parts
from normgen.families.windows.compile.pixels import Pixels
from normgen.families.windows.compile.plan import WindowsPlan, is_costly
from normgen.families.windows.compile.text import WindowsText
from normgen.ir.expr import walk
from normgen.package.kernels import WindowsRecord


def emit_windows(
    plan: WindowsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> WindowsRecord:
    """The record of a kernel with the text of each form that its plan admits."""
    text = WindowsText(plan, source, accumulated, formulas)
    forms: list[Form] = [Direct(text)]
    if plan.marches and len(plan.image) == 1:
        forms.insert(0, Span(text))
    elif plan.marches:
        early = early_parts(text)
        forms.insert(0, March(text, early))
        if not plan.boxed:
            forms.insert(1, Pixels(text, early))
    record = WindowsRecord(
        name=plan.name,
        axes=plan.axes,
        image=plan.image,
        windowed=plan.windowed,
        reaches=plan.reaches if plan.image else (),
        across=plan.reaches_across if plan.image else (),
        sums=tuple(map(len, plan.levels)),
        early=max(len(form.early) for form in forms),
        functions=any(is_costly(n) for level in plan.levels for n in walk(*(s.arg for s in level))),
        reads=tuple(text.read(o, "").record() for o in plan.operands),
        writes=tuple(text.result(r).record() for r in plan.results),
        forms=tuple(form.form() for form in forms),
    )
    return text.names.settle(record)
