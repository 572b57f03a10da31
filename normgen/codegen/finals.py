"""The finalising kernel: adds the partials of accumulators, and computes what is made of them."""

from __future__ import annotations

from normgen.codegen.render import Context, parameters_of, render
from normgen.codegen.text import Access, KernelText, digits_of
from normgen.ir.program import Result
from normgen.runtime.records import FormRecord, axis_name


def finalise_form(text: KernelText) -> FormRecord:
    """The text of the kernel that adds the partials of column sums."""
    plan = text.plan
    values = {a.operand.tensor.name: a.value for a in text.final_reads}
    printer = text.printer(values)
    for c in text.columns:
        printer.names[c.column.reduce] = c.name
    finals = [_final(text, r, printer.text(r.expr)) for r in plan.finals]
    parameters = parameters_of(text, "finalise")
    kernel = {
        "flags": text.flags(text.final_reads),
        "formulas": text.formulas,
        "finals": finals,
    }
    entry = f"{plan.name}_finalise"
    return FormRecord("finalise", entry, parameters, render(text, "finalise", kernel, entry, parameters))


def _final(text: KernelText, result: Result, value: str) -> Context:
    access = text.result(result)
    columns = [c for c in text.columns if result.tensor.name in c.wanted_by]
    kept = columns[0].column.kept
    assert all(c.column.kept == kept and c.wide == columns[0].wide for c in columns), (
        "column sums of unlike shape"
    )
    rest = tuple(a for a in text.plan.segment if a not in kept)
    reads = [a for a in text.final_reads if result.tensor.name in a.wanted_by]
    return {
        "want": text.wants[result.tensor.name],
        "comment": f"{result.tensor.name}",
        "wide": columns[0].wide,
        "columns": columns,
        "outer_count": " * ".join(f"size_{axis_name(a)}" for a in kept) or "1",
        "digits": digits_of(kept, "outer", always=True),
        "count": " * ".join(["index_t(blocks_per_segment)", *(f"size_{axis_name(a)}" for a in rest)]),
        "row_of": _row_of(text.plan.segment, kept, rest),
        "statements": [f"const float {a.value} = {_final_load(a)};" for a in reads],
        "accumulates": result.tensor.name in text.accumulated,
        "address": _final_address(access),
        "value": value,
    }


def _final_load(access: Access) -> str:
    text = f"load_scalar({_final_address(access)})"
    return f"{access.flag} ? {text} : {access.missing}" if access.flag else text


def _final_address(access: Access) -> str:
    offset = "".join(
        f" + at_{axis_name(a)} * {access.identifier}_stride_{axis_name(a)}" for a in access.operand.kept
    )
    return f"{access.pointer}{offset}" + (" + column" if access.operand.inner else "")


def _row_of(segment: tuple[str, ...], kept: tuple[str, ...], rest: tuple[str, ...]) -> list[str]:
    """Statements that find the k-th partial row of a result, among those of all segments and blocks."""
    if not segment or not kept:
        return ["return k;"]
    if not rest:
        return ["return outer * blocks_per_segment + k;"]
    number = ""
    for axis in segment:
        at = f"at_{axis_name(axis)}"
        number = f"({number}) * size_{axis_name(axis)} + {at}" if number else at
    return [
        *digits_of(rest, "k / blocks_per_segment", always=True),
        f"return ({number}) * blocks_per_segment + k % blocks_per_segment;",
    ]
