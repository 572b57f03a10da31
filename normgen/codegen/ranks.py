"""A definition whose axes are spread over ranks -> the records of its local programs; and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from normgen.codegen.compilation import Compilation
from normgen.codegen.package import package, package_of
from normgen.codegen.refusals import fault
from normgen.codegen.runs import Runs, local_definition
from normgen.codegen.strategies.ranks import Spread, spread
from normgen.codegen.strategies.told import number_of, told_program, told_strategy
from normgen.diagnostics import Source, SpecError
from normgen.ir.channels_last import channels_last
from normgen.ir.kinds import CutAxes, Unspreadable
from normgen.ir.nodes import Axes, Expr, walk
from normgen.ir.program import Definition, Program, Tensor
from normgen.kernel.group import Misfit
from normgen.locks import cached_property
from normgen.package.records import Package, TensorRecord
from normgen.package.spread import NumberRecord, SpreadRecord, StageRecord, ToldRecord

__all__ = [
    "CutAxes",
    "RankCompilation",
    "Spread",
    "local_definition",
    "rank_compilation",
    "signature_package",
    "spread_program",
    "spread_record",
    "told_record",
    "wanted_part",
]


class RankCompilation:
    """What becomes of a definition on each of some ranks, or of a level of derivatives of one. `apart`: that
    of blocks of dimensions that are two axes; None where ranks have none."""

    def __init__(self, runs: Runs, whole: Compilation, apart: Compilation | None) -> None:
        self.runs, self.whole, self.apart = runs, whole, apart

    @cached_property
    def signature(self) -> Package:
        """What calls of a rank take and return, without kernels."""
        return self.runs.flat(signature_package(self.whole.definition, self.whole.derived))

    @cached_property
    def differentiated(self) -> RankCompilation | None:
        """That of the level above; None where there is nothing to differentiate."""
        whole = self.whole.differentiated
        apart = None if self.apart is None else self.apart.differentiated
        return None if whole is None else RankCompilation(self.runs, whole, apart)

    def record(
        self, direction: str, wanted: Iterable[str], whole: Iterable[str] = (), blocks: bool = False
    ) -> SpreadRecord:
        """The local programs of a direction that give these results, compiled. `blocks`: for runs that
        straddle groups. Raises what `spread_record` does."""
        made, cut = self._made(blocks)
        return spread_record(made.definition, wanted_part(dict(made.programs)[direction], wanted), cut, whole)

    def program(
        self, direction: str, wanted: Iterable[str], whole: Iterable[str] = (), blocks: bool = False
    ) -> Spread:
        """The same, not compiled."""
        made, cut = self._made(blocks)
        return spread_program(
            made.definition, wanted_part(dict(made.programs)[direction], wanted), cut, whole
        )

    def innermost(self, direction: str, wanted: Iterable[str], whole: Iterable[str]) -> SpreadRecord | None:
        """The same, compiled for tensors whose channels lie innermost; None where there are none."""
        made = self._innermost
        if made is None or self.runs.whole is None:
            return None
        program = wanted_part(dict(made.programs)[direction], wanted)
        try:
            return spread_record(made.definition, program, self.runs.axes, whole)
        except SpecError:
            return None

    def in_kernel(
        self, direction: str, wanted: Iterable[str], whole: Iterable[str], ranks: int
    ) -> ToldRecord | None:
        """The same, compiled with one kernel that exchanges; None where there is none."""
        program = wanted_part(dict(self.whole.programs)[direction], wanted)
        return told_record(self.whole.definition, program, self.runs.axes, whole, ranks)

    @cached_property
    def _innermost(self) -> Compilation | None:
        definition = channels_last(self.whole.definition)
        return None if definition is None else Compilation(definition, self.whole.level)

    def _made(self, blocks: bool) -> tuple[Compilation, CutAxes]:
        if not blocks:
            return self.whole, CutAxes(frozenset(self.runs.axes))
        assert self.apart is not None
        return self.apart, self.runs.cut


def rank_compilation(definition: Definition, names: Iterable[str], ranks: int) -> RankCompilation:
    """That of a definition on so many ranks. Raises what `local_definition` does."""
    runs = local_definition(definition, names, ranks)
    apart = None if runs.split is None else Compilation(runs.split)
    return RankCompilation(runs, Compilation(runs.definition), apart)


def wanted_part(program: Program, wanted: Iterable[str] | None) -> Program:
    """A program with some of its results alone, by name; all of them by default."""
    names = {r.tensor.name for r in program.results} if wanted is None else set(wanted)
    return replace(program, results=tuple(r for r in program.results if r.tensor.name in names))


def spread_program(
    definition: Definition, program: Program, cut: CutAxes | Iterable[str], whole: Iterable[str] = ()
) -> Spread:
    """The local programs of a direction. `cut`: the axes, or what is cut, as `local_definition` tells them;
    `whole`: the operands whose gradients ranks add up. Raises `SpecError` (code `spread`) where ranks cannot
    compute it."""
    cotangents = [t.name for t in program.operands if t.role == "cotangent"]
    cut = cut if isinstance(cut, CutAxes) else CutAxes(frozenset(cut))
    try:
        return spread(program, cut, cotangents, [f"d{name}" for name in whole])
    except Unspreadable as found:
        raise _refused(definition, program, found) from found


def spread_record(
    definition: Definition, program: Program, cut: CutAxes | Iterable[str], whole: Iterable[str] = ()
) -> SpreadRecord:
    """The same, compiled. Raises what `package` raises too."""
    made = spread_program(definition, program, cut, whole)
    source, names = definition.source, made.names
    every = [axis.name for axis in program.axes]
    return SpreadRecord(
        axes=tuple(sorted(names.axes)),
        rounds=tuple(_stage(each, source, made) for each in made.rounds),
        merge=_stage(made.merge, source, made),
        apply=_stage(made.apply, source, made),
        placements=tuple(made.placements.items()),
        sizes=tuple((names.size(axis), axis) for axis in sorted(names.axes)),
        lengths=tuple((names.length(axis), axis) for axis in every),
        counts=tuple((names.count(axis), axis) for axis in sorted(names.axes)),
        own=tuple(made.own.items()),
        numbers=tuple(NumberRecord(n.name, n.pair, n.over) for n in names.numbers),
    )


def told_record(
    definition: Definition, program: Program, axes: Iterable[str], whole: Iterable[str], ranks: int
) -> ToldRecord | None:
    """The local programs of a direction with one kernel that exchanges by words with those of the other
    ranks; None where there is none. Raises what `spread_record` does."""
    made = spread_program(definition, program, axes, whole)
    names = made.names
    try:
        found = told_program(made, ranks)
        planned = told_strategy(found.rows)
    except Misfit:
        return None
    compiled = package_of(Definition(found.rows, (), (), definition.source, ()), (planned,))
    told = [_told(r.tensor) for r in made.rounds[0].results if r.tensor.role == "temporary"]
    (kernel,) = compiled.forward.kernels
    if any(each.axes != kernel.kept for each in told):
        return None
    counts = ((number_of(names.count(axis), k), axis, k) for axis in sorted(names.axes) for k in range(ranks))
    rest = None if found.rest is None else _stage(found.rest, definition.source, made)
    return ToldRecord(compiled, found.channel, tuple(told), tuple(counts), found.handed, rest)


def signature_package(definition: Definition, derived: Program | None) -> Package:
    """What calls of a norm take and return: its package without kernels."""
    return package(definition, derived, forward=False, backward_too=False)


def _stage(program: Program, source: Source, made: Spread) -> StageRecord:
    if not program.results and not program.updates:
        return StageRecord(None)
    temporaries = [r.tensor for r in program.results if r.tensor.role == "temporary"]
    told = [tensor for tensor in temporaries if tensor.name in made.parts]
    outputs = tuple(replace(r, tensor=_output(r.tensor, made)) for r in program.results)
    plain = Definition(replace(program, results=outputs), (), (), source, ())
    compiled = package(plain)
    record = replace(compiled.forward, reduced=())
    axes = {r.tensor.name: r.tensor.axes | _axes_of(r.expr) for r in program.results}
    axes |= {u.state: _axes_of(u.expr) for u in program.updates}
    return StageRecord(
        replace(compiled, forward=record),
        tuple((_told(t), made.parts[t.name]) for t in told),
        tuple(t.name for t in temporaries if t not in told),
        tuple((name, tuple(sorted(own & made.names.axes))) for name, own in axes.items()),
    )


def _output(tensor: Tensor, made: Spread) -> Tensor:
    """A result as the program has it: parts of blocks are added up before they are rounded."""
    if made.names.cut.pairs and made.placements.get(tensor.name) == "part":
        return replace(tensor, role="output", dtype="f32", like=None)
    return replace(tensor, role="output") if tensor.role == "temporary" else tensor


def _told(tensor: Tensor) -> TensorRecord:
    return TensorRecord(tensor.name, "output", tensor.dims, "f32")


def _axes_of(value: Expr) -> Axes:
    return frozenset(axis for node in walk(value) for axis in node.axes)


def _refused(definition: Definition, program: Program, found: Unspreadable) -> SpecError:
    """What is said of a value that no rank can compute: where the spec makes it, and what to do."""
    values = [(b.span, b.expr) for b in definition.program.bindings]
    values += [(r.tensor.span, r.expr) for r in definition.program.results]
    spans = [span for span, value in values if found.node in set(walk(value))]
    spans += [tensor.span for tensor in definition.program.operands if found.axis in tensor.axes]
    others = [a.name for a in program.axes if a.extent is None and a.name != found.axis]
    cure = f"shard another axis ({', '.join(others)}), or gather {found.axis} before the call"
    return fault(definition, f"{definition.program.name} {found.reason}", cure, *spans)
