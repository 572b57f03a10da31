"""The template's view of one pass over rows in which nothing is exchanged: what `rows.outputs` prints."""

from __future__ import annotations

from collections.abc import Mapping

from normgen.kernel.access import Access
from normgen.kernel.body import Body
from normgen.kernel.forms import Context, store_of
from normgen.kernel.phases import Phase
from normgen.kernel.text import KernelText


def one_pass(text: KernelText, known: Mapping[str, str]) -> Context:
    """A pass that reads `text.reads`, has `text.columns` take elements in, and stores `text.writes`.

    It applies where each result has a value for every element of a row, and operands that rows share were
    loaded before it: whole ones in vectors, those of which neighbours share an element in `held` parts.
    `known`: elements of what is no operand, by the tensor that stands for it.
    """
    plan = text.plan
    whole = {a.tensor: a for a in text.reads if a.operand.inner == plan.inner}
    values = {a.tensor: f"{a.value}[i]" if a.tensor in whole else a.value for a in text.reads}
    body = Body(text, (), values | dict(known))
    body.finish(((result.expr, access) for result, access in text.results), text.columns)
    moving = [s for node, s in body.before if node.axes & set(text.walk)]
    return {
        "pieces": [],
        "prologue": [s for _, s in body.before if s not in moving],
        "row_prologue": moving,
        "declarations": [s for c in text.columns for s in c.declared()],
        "vector_columns": [],
        "row_columns": [f"if (live) {c.name}.end_row();" for c in text.columns if c.column.moments],
        "final": _results(text, whole, body.phases[-1]) | {"comments": body.heading(0)},
    }


def _results(text: KernelText, whole: Mapping[str, Access], phase: Phase) -> Context:
    """What the pass does with each element. `whole`: the operands that are loaded in vectors."""
    gathered = {a.tensor: a for a in text.reads if a.operand.inner and a.tensor not in whole}
    vectors = [whole[name] for name in phase.loads if name in whole]
    for access in vectors:
        access.repacked = access.walks
    return vars(phase) | {
        "vectors": vectors,
        "first_use": {v.value: True for v in vectors},
        "before": [],
        "unpacked": [],
        "late_parts": [],
        "statements": [*(_gather(gathered[n]) for n in phase.loads if n in gathered), *phase.statements],
        "stores": [store_of(text, access) for _, access in text.results],
        "row_stores": [],
    }


def _gather(access: Access) -> str:
    """The statement that gives an element of the row its value of an operand with some of the axes."""
    return f"const float {access.value} = {access.held if access.span else access.load};"
