"""Definition -> Package: both directions of a norm, planned and emitted, as plain records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import family_of
from normgen.codegen.strategies.stages import PlannedStrategy
from normgen.diagnostics import Source
from normgen.ir.expr import reductions
from normgen.ir.grad import backward
from normgen.ir.limit import limited
from normgen.ir.program import Definition, Program, Tensor
from normgen.ir.reads import tensors_read
from normgen.ir.show import show_results
from normgen.kernel.folding import WIDTH, wrapped
from normgen.kernel.text import Wording
from normgen.package.records import AttrRecord, AxisRecord, Package, PassRecord, Strategy, TensorRecord


def package(
    definition: Definition, derived: Program | None = None, forward: bool = True, backward_too: bool = True
) -> Package:
    """The package of a checked spec, or of a level (see `ir.levels`). `derived`: its backward, where the
    caller has derived it already. `forward`, `backward_too`: whether these have kernels; the forward of a
    level is never run, and of a norm that is spread over ranks neither is.

    Raises `SpecError`: code `unsupported` where a direction has no kernel yet, `size` where planning takes
    too many steps (see `ir.limit`).
    """
    if derived is None and definition.of:
        derived = backward(definition)
    with limited(definition, "planning"):
        return _package(definition, derived, forward, backward_too)


def package_of(definition: Definition, ways: Iterable[PlannedStrategy]) -> Package:
    """The package of a program that is planned already, as its forward."""
    with limited(definition, "planning"):
        made = package(definition, forward=False)
        forward = _pass(definition.program, definition.source, ways, frozenset(), (), frozenset())
        return replace(made, forward=forward)


def _package(
    definition: Definition, derived: Program | None, with_forward: bool, with_backward: bool
) -> Package:
    program = definition.program
    params = frozenset(f"d{t.name}" for t in program.operands if t.role == "param")
    reduced = reduced_axes(program)
    of, source = frozenset(definition.of), definition.source
    ways = strategies(program, definition, f"{program.name}_forward") if with_forward else ()
    forward = _pass(program, source, ways, frozenset(), reduced, of)
    gradients = None
    if derived:
        ways = strategies(derived, definition, f"{program.name}_backward") if with_backward else ()
        gradients = _pass(derived, source, ways, params, reduced, of)
        gradients = replace(gradients, made_of=_made_of(definition, derived))
    return Package(
        name=program.name,
        doc=program.doc,
        spec=definition.source.text,
        attrs=tuple(
            AttrRecord(a.name, _number(a.value), _number(a.low), a.low_strict, a.doc)
            for a in program.attrs
            if not a.folded
        ),
        axes=tuple(AxisRecord(a.name, a.extent) for a in program.axes),
        forward=forward,
        backward=gradients,
        folded=tuple((a.name, _plain(a.value)) for a in program.attrs if a.folded and a.value is not None),
    )


def reduced_axes(program: Program) -> tuple[str, ...]:
    """The axes whose length may not be 0, since the forward has statistics over them. An empty batch, the
    first axis of an input, and an empty space, `...`, make an empty call instead."""
    derived = {t.name for t in program.operands if t.role == "cotangent"}  # sums of these are no statistics
    found = reductions(*(r.expr for r in program.results))
    over = {axis for r in found if not derived & tensors_read([r]) for axis in r.over}
    inputs = [t for t in program.operands if t.role == "input"]
    batch = {"...", *(inputs[0].order[:1] if inputs and len(inputs[0].order) > 1 else ())}
    return tuple(a.name for a in program.axes if a.name in over - batch)


def _pass(
    program: Program,
    source: Source,
    ways: Iterable[PlannedStrategy],
    accumulated: frozenset[str],
    reduced: tuple[str, ...],
    of: frozenset[str],
) -> PassRecord:
    wording = Wording(source, accumulated, _formulas(program))
    return PassRecord(
        reads=tuple(_tensor(t, _partner(t, of)) for t in program.operands),
        writes=tuple(_tensor(r.tensor, _partner(r.tensor, of)) for r in program.results),
        strategies=tuple(_strategy(way, wording) for way in ways),
        notes=program.notes,
        reduced=reduced,
    )


def _formulas(program: Program) -> tuple[str, ...]:
    """The mathematics, as comments of a text have it."""
    return tuple(part for line in show_results(program).splitlines() for part in wrapped(line, WIDTH - 3))


def _made_of(definition: Definition, derived: Program) -> tuple[str, ...]:
    """The operands of the forward that the saves of it are made of which the backward reads. What it kept of
    its outputs stands for itself."""
    read = {tensor.name for tensor in derived.operands} - set(definition.of)
    made = tensors_read([r.expr for r in definition.program.results if r.tensor.name in read])
    return tuple(tensor.name for tensor in definition.program.operands if tensor.name in made)


def _strategy(planned: PlannedStrategy, wording: Wording) -> Strategy:
    assert len({plan.name for plan in planned.plans}) == len(planned.plans), (
        "schedules and scratch go by name"
    )
    return Strategy(
        planned.name,
        tuple(family_of(plan).emit(plan, wording) for plan in planned.plans),
        tuple(_tensor(t, "") for t in planned.temporaries),
    )


def _tensor(t: Tensor, source: str) -> TensorRecord:
    return TensorRecord(t.name, t.role, t.dims, t.dtype, t.like, _number(t.default), t.doc, source)


def _partner(t: Tensor, of: frozenset[str]) -> str:
    """The tensor that a cotangent or gradient belongs to: what a level has as an operand belongs to none."""
    found = t.name[1:] if t.role in ("cotangent", "gradient") else ""
    return found if t.role == "gradient" or found in of else ""


def _number(value: Fraction | int | bool | None) -> float | None:
    return None if value is None else float(value)


def _plain(value: Fraction | int | bool) -> float | int | bool:
    return float(value) if isinstance(value, Fraction) else value
