"""The finalising kernel: combines the partials of accumulators, and computes what is made of them."""

from __future__ import annotations

from itertools import count

from normgen.ir.expr import Expr, Load, walk
from normgen.ir.program import Result
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.forms import Context, form_record, row_parameters, store_of
from normgen.kernel.group import without
from normgen.kernel.levels import is_missed
from normgen.kernel.naming import named_values
from normgen.kernel.plan import KernelPlan
from normgen.kernel.printer import Printer
from normgen.kernel.text import KernelText, digits_of, factor, lengths_of
from normgen.package.operands import FormRecord, Parameter, axis_name


def finalise_form(text: KernelText) -> FormRecord:
    """The text of the kernel that combines the partials of accumulators."""
    plan = text.plan
    groups = [_Group(text, group).context() for group in final_groups(plan)]
    sums = all(c.op == "sum" for c in text.columns)
    kernel = {
        "flags": text.flags(text.final_reads),
        "groups": groups,
        "does": "Adds" if sums else "Combines",
        "alone": all(len(group["stores"]) == 1 for group in groups),
        "scratch": any(c.op != "moments" for c in text.columns),
        "merged": any(c.op == "moments" for c in text.columns),
    }
    used = [r.expr for r in plan.finals]
    own = () if plan.part else (Parameter("blocks"),)
    tensors = [*text.final_reads, *map(text.result, plan.finals)]
    parameters = row_parameters(text, used, own, tensors, final=True)
    return form_record(text, "finalise", "shared/finalise", kernel, parameters)


def finals_view(text: KernelText, results: tuple[Result, ...]) -> Context:
    """The template's view of finals that one thread computes together."""
    return _Group(text, results).context()


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


class _Group:
    """The template's view of the finals that one thread computes together."""

    def __init__(self, text: KernelText, results: tuple[Result, ...]) -> None:
        self.text, self.results = text, results
        self.wanted = tuple(r.tensor.name for r in results)
        self.columns = [c for c in text.columns if set(self.wanted) & set(c.wanted_by)]
        self.reads = [a for a in text.final_reads if set(self.wanted) & set(a.wanted_by)]
        self.names = text.scope()
        self.printer = text.printer({a.tensor: a.value for a in self.reads})
        for column in self.columns:
            _name_column(self.printer, column)

    def context(self) -> Context:
        plan, first = self.text.plan, self.columns[0].column
        folded = factor(lengths_of(first.folded))
        beside = plan.inner[: len(plan.inner) - len(first.folded)] if folded else ()
        across = plan.kept if first.part else plan.segment
        rest = without(across, first.kept)
        outer = first.kept + first.part
        each = "index_t(RUNS)" if first.part else "index_t(blocks_per_segment)"
        values = [f"const float {a.value} = {self._loaded(a)};" for a in self.reads]
        return {
            "want": self._want(),
            "comment": ", ".join(self.wanted),
            "wide": first.wide,
            "width": f"LENGTH / {folded}" if folded else "LENGTH" if first.wide else "1",
            "columns": [{"text": c, "guarded": set(c.wanted_by) != set(self.wanted)} for c in self.columns],
            "outer_count": lengths_of(outer) or "1",
            "digits": digits_of(outer, "outer", always=True) + digits_of(beside, "column", always=True),
            "count": " * ".join([each, *(f"size_{axis_name(a)}" for a in rest)]),
            "row_of": _run_of(plan, rest) if first.part else _row_of(plan.segment, first.kept, rest),
            "statements": values + self._shared(),
            "stores": [self._store(r) for r in self.results],
        }

    def _want(self) -> str:
        flags = (c.flag for c in self.columns if c.wanted_by == self.wanted)
        return next(flags, " || ".join(self.text.wants[name] for name in self.wanted))

    def _shared(self) -> list[str]:
        """Statements for the values that have a name, or that several results or expressions use."""
        text, numbers = self.text, count(1)
        found = {n for n in self.printer.names if n in text.bindings and not isinstance(n, Load)}

        def name(node: Expr, uses: int) -> str:
            binding = text.bindings.get(node)
            if binding is None and uses < 2:
                return ""
            return self.names.claim(binding.name if binding else f"value_{next(numbers)}")

        roots = [r.expr for r in self.results]
        return list(named_values(roots, self.printer, name, text.comment, found).values())

    def _store(self, result: Result) -> Context:
        access = self.text.result(result)
        store = store_of(self.text, access, self.printer.text(result.expr), self._address(access))
        return store | {"guard": "" if len(self.results) == 1 else store["want"]}

    def _loaded(self, access: Access) -> str:
        return access.loaded(self._address(access))

    def _address(self, access: Access) -> str:
        """Where rows are summed in parts, or folded, what an operand has of their axes is numbered like the
        others."""
        return self.text.element_of(access, bool(self.text.plan.part or self.text.plan.folded))


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


def _row_of(segment: tuple[str, ...], kept: tuple[str, ...], rest: tuple[str, ...]) -> list[str]:
    """Statements that find the k-th partial row of a result, among those of all segments and blocks."""
    if not segment or not kept:
        return ["return k;"]
    if not rest:
        return ["return outer * blocks_per_segment + k;"]
    return [
        *digits_of(rest, "k / blocks_per_segment", always=True),
        f"return {factor(_number(segment))} * blocks_per_segment + k % blocks_per_segment;",
    ]
