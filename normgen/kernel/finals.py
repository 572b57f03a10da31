"""The second-stage kernel: combines the partials of accumulators, and computes what is made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import partial

from normgen.ir.expr import Expr, Load, walk
from normgen.ir.program import Result
from normgen.kernel.access import ColumnText
from normgen.kernel.accumulators import Column
from normgen.kernel.forms import Context, form_record, row_parameters, store_of
from normgen.kernel.group import without
from normgen.kernel.identifiers import Numbered, identifier
from normgen.kernel.levels import is_missed
from normgen.kernel.naming import named_values
from normgen.kernel.plan import KernelPlan
from normgen.kernel.printer import Printer
from normgen.kernel.text import KernelText, digits_of, factor, lengths_of
from normgen.package.operands import FormRecord, Parameter, axis_name

_RESULT = re.compile(r"(?:save |output |gradient |update )+(\w+)")


def second_stage_form(text: KernelText, several: bool = False) -> FormRecord:
    """The text of the kernel that combines the partials of accumulators. `several`: MEMBERS blocks have one
    number, of which each leaves its own value of an accumulator that has one for all elements."""
    plan = text.plan
    used = [r.expr for r in plan.finals]
    own = () if plan.part else (Parameter("blocks"),)
    tensors = [*text.final_reads, *map(text.result, plan.finals)]
    parameters = row_parameters(text, used, own, tensors, final=True)
    return form_record(
        text, "second_stage", "shared/second_stage", partial(_second_stage, several=several), parameters
    )


def _second_stage(text: KernelText, several: bool) -> Context:
    plan, every = text.plan, final_groups(text.plan)
    wanted = [tuple(r for r in group if text.wants[r.tensor.name]) for group in every]
    return {
        "formulas": formulas_of(text.wording.formulas, {r.tensor.name for r in plan.finals}),
        "groups": [finals_view(text, group, several) if group else None for group in wanted],
        "does": "Adds" if all(c.op == "sum" for c in text.accumulators) else "Combines",
        "alone": all(len(group) == 1 for group in every),
        "scratch": any(c.op != "moments" for c in text.columns),
        "merged": any(c.op == "moments" for c in text.columns),
    }


def formulas_of(lines: Iterable[str], results: Collection[str]) -> list[str]:
    """The lines of the mathematics that say what these results are, and what they are made of."""
    found, kept = [], True
    for line in lines:
        if not line.startswith(" "):
            result = _RESULT.match(line)
            kept = result is None or result[1] in results
        found += [line] if kept else []
    return found


def finals_view(text: KernelText, results: tuple[Result, ...], several: bool = False) -> Context:
    """The template's view of finals that one thread computes together."""
    plan, wanted = text.plan, tuple(r.tensor.name for r in results)
    columns = [c for c in text.columns if set(wanted) & set(c.wanted_by)]
    reads = [a for a in text.final_reads if set(wanted) & set(a.wanted_by)]
    printer = text.printer({a.tensor: a.value for a in reads})
    for column in columns:
        _name_column(printer, column)
    # (where rows are summed in parts, or folded, their axes are numbered like the others)
    address = partial(text.element_of, numbered=bool(plan.part or plan.folded))
    statements = [f"const float {a.value} = {a.loaded(address(a))};" for a in reads]
    statements += _shared(text, results, printer)
    writes = [(r, text.result(r)) for r in results]
    return {
        "comment": ", ".join(wanted),
        "columns": columns,
        **_partials(plan, columns[0].column, several),
        "statements": statements,
        "stores": [store_of(text, a, printer.text(r.expr), address(a)) for r, a in writes],
    }


def _partials(plan: KernelPlan, column: Column, several: bool) -> Context:
    """The template's view of where the partials of an accumulator lie."""
    folded = factor(lengths_of(column.folded))
    beside = plan.inner[: len(plan.inner) - len(column.folded)] if folded else ()
    rest = without(plan.kept if column.part else plan.segment, column.kept)
    outer = column.kept + column.part
    blocks = "blocks_per_segment" if column.wide or not several else "blocks_per_segment * MEMBERS"
    each = "index_t(RUNS)" if column.part else f"index_t({blocks})"
    return {
        "wide": column.wide,
        "width": f"LENGTH / {folded}" if folded else "LENGTH" if column.wide else "1",
        "outer_count": lengths_of(outer) or "1",
        "digits": digits_of(outer, "outer", always=True),
        "column_digits": digits_of(beside, "column", always=True),
        "count": " * ".join([each, *(f"size_{axis_name(a)}" for a in rest)]),
        "row_of": _run_of(plan, rest) if column.part else _row_of(plan.segment, column.kept, rest, blocks),
    }


def final_groups(plan: KernelPlan) -> tuple[tuple[Result, ...], ...]:
    """Finals by what one thread computes together: those that share an accumulator, or a state that one of
    them updates.
    """
    updated = {r.tensor.name for r in plan.finals if r.tensor.role == "state"}
    groups: list[tuple[set[object], list[Result]]] = []
    for result in plan.finals:
        nodes = set(walk(result.expr))
        touched: set[object] = {c for c in plan.columns if nodes & set(c.nodes)}
        touched |= {n.tensor for n in nodes if isinstance(n, Load)} & updated | {result.tensor.name} & updated
        joined = [group for group in groups if group[0] & touched]
        groups = [group for group in groups if group not in joined]
        members = [r for _, found in joined for r in found] + [result]
        groups.append((touched.union(*(found for found, _ in joined)), members))
    order = {id(r): k for k, r in enumerate(plan.finals)}
    return tuple(tuple(sorted(members, key=lambda r: order[id(r)])) for _, members in groups)


def _shared(text: KernelText, results: tuple[Result, ...], printer: Printer) -> list[str]:
    """Statements for the values that have a name, or that several results or expressions use."""
    names, numbered = text.scope(), Numbered()
    found = {n for n in printer.names if n in text.bindings and not isinstance(n, Load)}

    def name(node: Expr, uses: int) -> str:
        binding = text.bindings.get(node)
        if binding is None and uses < 2:
            return ""
        if binding is not None:
            return names.claim(binding.name)
        found = identifier(node, lambda part: text.name_of(part, printer.names))
        return names.take(numbered.of(found, "value"))

    return list(named_values((r.expr for r in results), printer, name, text.comment, found).values())


def _name_column(printer: Printer, column: ColumnText) -> None:
    """What the finals call that which an accumulator finds."""
    moments = column.column.moments
    if moments is None:
        missed = is_missed(column.column.reduce)
        printer.names[column.column.reduce] = f"if_finite({column.name})" if missed else column.name
        return
    printer.names[column.column.reduce] = f"{column.name}.total()"
    for node, field in ((moments.mean, "mean"), (moments.centred, "centred"), (moments.squares, "squares")):
        if node is not None:
            printer.names[node] = f"{column.name}.{field}"


def _run_of(plan: KernelPlan, rest: tuple[str, ...]) -> list[str]:
    """Statements that find the k-th partial of a part of rows, among those of all runs and rows."""
    rows, parts = factor(lengths_of(plan.kept)), factor(lengths_of(plan.part))
    return [
        *digits_of(rest, "k / RUNS", always=True),
        f"const index_t row = {_number(plan.kept)};",
        f"return (k % RUNS * {rows} + row) * {parts} + {_number(plan.part)};",
    ]


def _number(axes: tuple[str, ...]) -> str:
    """The number of an element among those of some axes."""
    number = ""
    for axis in axes:
        at = f"at_{axis_name(axis)}"
        number = f"{factor(number)} * size_{axis_name(axis)} + {at}" if number else at
    return number


def _row_of(segment: tuple[str, ...], kept: tuple[str, ...], rest: tuple[str, ...], blocks: str) -> list[str]:
    """Statements that find the k-th partial row of a result, among those of all segments and blocks."""
    if not segment or not kept:
        return ["return k;"]
    if not rest:
        return [f"return outer * {factor(blocks)} + k;"]
    return [
        *digits_of(rest, f"k / {factor(blocks)}", always=True),
        f"return {factor(_number(segment))} * {factor(blocks)} + k % {factor(blocks)};",
    ]
