"""What a kernel's text calls things: identifiers and offsets; and which operands and results it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from normgen.diagnostics import Source
from normgen.ir.expr import Expr, Load, scalar, walk
from normgen.ir.program import Result
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.accumulators import Column, loads_below, needed_for
from normgen.kernel.group import without
from normgen.kernel.identifiers import identifier, stem_of
from normgen.kernel.levels import Level
from normgen.kernel.names import Names
from normgen.kernel.phases import line_comment
from normgen.kernel.plan import KernelPlan, Operand, operand_of
from normgen.kernel.printer import Printer, literal
from normgen.package.constants import Constants
from normgen.package.operands import axis_name, element_of, there_key, wanted_key

T = TypeVar("T", bound="KernelText")


@dataclass(frozen=True, slots=True)
class Wording:
    """What the texts of all kernels of a program are written with."""

    source: Source  # the spec, whose lines comments name
    accumulated: frozenset[str] = frozenset()  # results that a call may add to what their memory holds
    formulas: tuple[str, ...] = ()  # comment lines of the mathematics


class _Types(dict[str, str]):
    """What a kernel's texts call the types of tensors' elements: of those that it touches, and of others when
    they are first asked for."""

    def __init__(self, names: Names, ids: Mapping[str, str]) -> None:
        super().__init__({tensor: element_of(symbol) for tensor, symbol in ids.items()})
        self._names = names

    def __missing__(self, tensor: str) -> str:
        return self.setdefault(tensor, element_of(self._names.take_untouched(tensor)))


class KernelText:
    """Identifiers and offsets of one kernel, the same in all its forms.

    `needs`: for each operand of the rows the results that it is read for, where the plan's expressions do not
    say that. `far`: where a row begins is an `offset_t`, which may have 64 bits where its number has 32.
    `given`: the constants of a launch; without them every operand is there, and every result wanted.
    """

    def __init__(
        self,
        plan: KernelPlan,
        wording: Wording,
        needs: Mapping[str, tuple[str, ...]] | None = None,
        far: bool = False,
        given: Constants | None = None,
    ) -> None:
        self.plan, self.wording, self.far, self._needs = plan, wording, far, needs
        self.given = given
        self.names = Names()
        self.bindings = {b.expr: b for b in plan.bindings}
        self.walk = without(plan.kept, plan.segment)
        everything = {o.tensor.name: o for o in (*plan.operands, *plan.final_operands)}
        targets = [r.tensor for r in (*plan.results, *plan.finals)]
        self.ids = {n: self.names.take(n) for n in dict.fromkeys([*everything, *(t.name for t in targets)])}
        self.types = _Types(self.names, self.ids)
        self.scalars = {a: self.names.take(a) for a in plan.scalars}
        self.wants = {t.name: self._is(wanted_key(t.name)) for t in targets}
        in_rows, in_finals = _row_needs(plan) if needs is None else needs, _final_needs(plan)
        self.reads = [self._access(o, in_rows[o.tensor.name]) for o in plan.operands]
        self.final_reads = [self._access(o, in_finals[o.tensor.name]) for o in plan.final_operands]
        self.writes = [self.result(r) for r in plan.results]
        self.accumulators: list[ColumnText] = []
        for k, column in enumerate(plan.columns):
            self.accumulators.append(self._column(k, column))
        # those that some wanted result is made of
        self.columns = [c for c in self.accumulators if self.any_wanted(c.wanted_by)]

    # -------------------------------------------------------------------------------------------- operands

    def _offset(self, operand: Operand) -> str:
        terms = [f" + {self._step(operand, a)}" for a in operand.kept]
        if operand.inner and operand.inner != self.plan.piece:
            for axis in operand.inner:
                place = digit_of("(column + i)", self.plan.inner, axis)
                terms.append(f" + index_t({place}) * {self._stride(operand, axis)}")
        return "".join(terms)

    def _span(self, operand: Operand) -> str:
        """The length of the axes inside those that index the operand."""
        last = max((self.plan.inner.index(axis) for axis in operand.inner), default=len(self.plan.inner))
        return lengths_of(self.plan.inner[last + 1 :])

    def _step(self, operand: Operand, axis: str) -> str:
        """How far a row is along an axis."""
        digit, stride = self._digit(axis), self._stride(operand, axis)
        if self.far and not self.steps_far(axis):
            return f"row_offset<offset_t>({digit}, {stride})"
        return f"{digit} * {stride}"

    def steps_far(self, axis: str) -> bool:
        """Whether strides along an axis have as many bits as offsets: not those from one row to the next,
        which are a row's length as a rule, and would cost registers."""
        return self.far and axis in self.plan.kept[:-1]

    def _digit(self, axis: str) -> str:
        return "row" if self.walk == (axis,) else f"at_{axis_name(axis)}"

    def _stride(self, operand: Operand, axis: str) -> str:
        return f"{self.ids[operand.tensor.name]}_stride_{axis_name(axis)}"

    def _access(self, operand: Operand, wanted_by: tuple[str, ...]) -> Access:
        name = operand.tensor.name
        access = Access(operand, self.ids[name], self._offset(operand))
        access.walks = any(a in self.walk for a in operand.kept)
        access.once = all(a in operand.kept for a in self.walk)
        access.wanted_by = wanted_by
        access.updated = name in self.wants
        access.span = self._span(operand)
        if operand.tensor.default is not None:
            access.missing = literal(operand.tensor.default)
        access.has = self._is(there_key(name)) or not self.optional(operand)
        access.there = access.has and self.any_wanted(access.wanted_by)
        return access

    def _is(self, key: str) -> bool:
        """Whether a launch says so of a tensor. Of tensors that its kernel does not touch it says nothing."""
        return self.given is None or bool(self.given.get(key, True))

    def shares_vectors(self, span: str) -> bool:
        """Whether a span of neighbors, a product of lengths, is a multiple of a launch's vectors: then all
        elements of a vector have the same element of what neighbors share."""
        if self.given is None:
            return True
        return prod(int(self.given[name]) for name in span.split(" * ")) % int(self.given["VEC"]) == 0

    @property
    def realigned(self) -> bool:
        """Whether rows of a launch begin anywhere in a word of memory, and end within a vector."""
        return self.given is None or bool(self.given["REALIGNED"])

    def any_wanted(self, results: Iterable[str]) -> bool:
        """Whether a launch wants one of these results."""
        return any(self.wants[name] for name in results)

    @property
    def results(self) -> list[tuple[Result, Access]]:
        """The results of the rows that a launch wants."""
        found = zip(self.plan.results, self.writes, strict=True)
        return [(result, access) for result, access in found if self.wants[access.tensor]]

    def element_of(self, access: Access, numbered: bool) -> str:
        """Where the element of an operand is whose index along each axis is known; `numbered`: along those of
        a row too, else its number in the row is."""
        operand = access.operand
        axes = operand.kept + (operand.inner if numbered else ())
        offset = "".join(f" + at_{axis_name(a)} * {self._stride(operand, a)}" for a in axes)
        return f"{access.pointer}{offset}" + (" + column" if operand.inner and not numbered else "")

    @staticmethod
    def optional(operand: Operand) -> bool:
        """Whether a call may leave it out."""
        return operand.tensor.role == "cotangent" or operand.tensor.default is not None

    def result(self, result: Result) -> Access:
        t = result.tensor
        operand = operand_of(t, self.plan.kept, self.plan.inner, self.plan.pieces)
        return Access(operand, self.ids[t.name], self._offset(operand))

    def _column(self, index: int, column: Column) -> ColumnText:
        wanted = self._wanted_by(column)
        firsts = {self._wanted_by(c)[0] for c in self.plan.columns}
        own = len(firsts) == len(self.plan.columns) == len(self.plan.finals)
        stem = wanted[0] if own else identifier(column.value, self.name_of) or f"column_{index + 1}"
        if column.op == "moments" and isinstance(column.value, Load):
            stem = column.value.tensor
        name = f"{self.ids.get(stem, stem)}_{column.op}"
        label = self.names.label(name, {*self.ids, *(c.label for c in self.accumulators)})
        if not own or column.op != "sum" or stem not in self.ids:  # or it is the only one of its name
            name = self.names.take(name)
        return ColumnText(column, name, f"{name}_partial", wanted, self.plan.adds_pieces, label=label)

    def _wanted_by(self, column: Column) -> tuple[str, ...]:
        """The results that are computed from an accumulator."""
        nodes = set(column.nodes)
        return tuple(f.tensor.name for f in self.plan.finals if nodes & set(walk(f.expr)))

    def needs_sums(self, level: Level) -> bool:
        """Whether a launch wants the sums of a level."""
        merged = level.moments or level.exponentials
        return bool(merged) or self.any_wanted(self.plan.needing(level.sums))

    # -------------------------------------------------------------------------------------------- shared
    # pieces

    def digits(self, variable: str) -> list[str]:
        """Statements that take a row number apart into the index along each axis that the rows walk."""
        return digits_of(self.walk, variable)

    @property
    def piece_digits(self) -> list[str]:
        """Statements that find which piece of its row the vector at `column` is in, and where in that."""
        if not self.plan.pieces:
            return []
        length = factor(lengths_of(self.plan.piece))
        found = digits_of(self.plan.pieces, f"unsigned(column) / {length}", always=True)
        return [*found, f"const int place = unsigned(column) % {length};"]

    @property
    def segment_digits(self) -> list[str]:
        return digits_of(self.plan.segment, "segment", always=True)

    def printer(self, values: Mapping[str, str]) -> Printer:
        """A printer that knows the scalars and, by `values`, what the element or row value of each operand is
        called.
        """
        loads = {n.tensor: n for n in walk(*self._roots()) if isinstance(n, Load)}
        names: dict[Expr, str] = {loads[t]: text for t, text in values.items() if t in loads}
        names |= {scalar(a): identifier for a, identifier in self.scalars.items()}
        return Printer(names, self.types, frozenset(self.plan.inner))

    def _roots(self) -> list[Expr]:
        return [r.expr for r in (*self.plan.results, *self.plan.finals)]

    def scope(self) -> Names:
        """The names of one text. The value that a result stores may have its identifier, unless an operand
        shares it."""
        reads = {a.tensor for a in (*self.reads, *self.final_reads)}
        return self.names.inner({name: self.ids[name] for name in self.wants if name not in reads})

    def comment(self, node: Expr) -> str:
        """Where the spec gives a value its name, as the end of a statement."""
        return line_comment(self.bindings.get(node), self.wording.source)

    def name_of(self, node: Expr, names: Mapping[Expr, str] | None = None) -> str:
        """What the spec calls a value, or else a text by what it has in place of expressions; empty where it
        has no name."""
        if binding := self.bindings.get(node):
            return binding.name
        return stem_of(self.names.wanted((names or {}).get(node, "")))

    def known(self: T, given: Constants) -> T:
        """The same for a launch with these constants."""
        text = copy(self)
        KernelText.__init__(text, self.plan, self.wording, self._needs, self.far, given)
        return text

    def of_form(self: T) -> T:
        """The same identifiers for a form, which keeps operands in its own way."""
        text = copy(self)
        text.reads, text.writes = [*map(replace, self.reads)], [*map(replace, self.writes)]
        text.final_reads = [*map(replace, self.final_reads)]
        return text

    def viewed(self, plan: KernelPlan, reads: list[Access]) -> KernelText:
        """The same identifiers for another plan."""
        text = copy(self)
        text.plan, text.reads, text.bindings = plan, reads, {b.expr: b for b in plan.bindings}
        return text


def lengths_of(axes: tuple[str, ...]) -> str:
    """The product of the lengths of some axes; empty for none."""
    return " * ".join(f"size_{axis_name(a)}" for a in axes)


def factor(text: str) -> str:
    """A text as a factor of a product: in brackets, if it is more than a name."""
    return f"({text})" if " " in text else text


def digit_of(variable: str, axes: tuple[str, ...], axis: str) -> str:
    """The index along one of the axes that a number runs over, the last of them fastest."""
    k = axes.index(axis)
    below = "".join(f" / size_{axis_name(a)}" for a in reversed(axes[k + 1 :]))
    return f"{variable}{below}{f' % size_{axis_name(axis)}' if k else ''}"


def digits_of(axes: tuple[str, ...], variable: str, always: bool = False) -> list[str]:
    if not axes or (len(axes) == 1 and not always):
        return []
    out, rest = [], variable
    for axis in reversed(axes[1:]):
        name = axis_name(axis)
        out.append(f"[[maybe_unused]] const index_t at_{name} = {rest} % size_{name};")
        rest = f"{rest} / size_{name}"
    out.append(f"[[maybe_unused]] const index_t at_{axis_name(axes[0])} = {rest};")
    return out


def _row_needs(plan: KernelPlan) -> dict[str, tuple[str, ...]]:
    """For each operand of the rows, the results that they need it for: those that they write, and those that
    are made of accumulators."""
    read = {r.tensor.name: loads_below([r.expr], frozenset()) for r in plan.results}
    for result in plan.finals:
        below = set(walk(result.expr))
        values = [c.value for c in plan.columns if below & set(c.nodes)]
        read[result.tensor.name] = loads_below(values, frozenset())
    return needed_for(read)


def _final_needs(plan: KernelPlan) -> dict[str, tuple[str, ...]]:
    """For each operand of the second-stage kernel, the results whose expressions load it beside accumulators:
    where those are kept, it has a place."""
    known = frozenset(n for c in plan.columns for n in c.nodes)
    return needed_for({r.tensor.name: loads_below([r.expr], known) for r in plan.finals})
