"""What a rank has of a definition whose axes are spread: axes by name, and dimensions that are several axes.

A run of a dimension `(G C)` that is whole groups is a run of G, its outer axis. Where the spec fixes the
length of that, as `axis G = groups` does, each rank has a norm of fewer groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from normgen.codegen.refusals import fault
from normgen.diagnostics import Span
from normgen.ir.program import Axis, Definition, Program
from normgen.package.records import dims_text


def local_definition(
    definition: Definition, names: Iterable[str], ranks: int
) -> tuple[Definition, tuple[str, ...]]:
    """The definition that each of so many ranks has, and the axes that are spread. `names`: of axes, and of
    dimensions as they are written in the spec.

    Raises `SpecError` (code `spread`) for what cannot be spread whatever is computed: what is not there, an
    axis of fixed length, groups that ranks cannot have equal runs of, and two axes of a tensor.
    """
    axes = []
    for name in names:
        if name.startswith("("):
            axes.append(_outer(definition, name))
            definition = _shared(definition, axes[-1], ranks)
        else:
            axes.append(name)
            _check_axis(definition, name)
    _check_pairs(definition, axes)
    return definition, tuple(axes)


def _axes_of(program: Program) -> list[str]:
    """The axes that tensors have."""
    tensors = (*program.operands, *(r.tensor for r in program.results))
    return list(dict.fromkeys(axis for tensor in tensors for axis in tensor.order))


def _free_axes(program: Program) -> list[str]:
    """Those whose length the spec leaves open."""
    fixed = {axis.name for axis in program.axes if axis.extent is not None}
    return [axis for axis in _axes_of(program) if axis not in fixed]


def _check_axis(definition: Definition, axis: str) -> None:
    program = definition.program
    free = _free_axes(program)
    if axis in free:
        return
    if axis not in _axes_of(program):
        message = f"{program.name} has no axis {axis!r} to spread"
        raise fault(definition, message, f"it has {', '.join(free)}", program.operands[0].span)
    groups = [group for tensor in program.operands for group in tensor.dims]
    whole = [dims_text((group,)) for group in groups if len(group) > 1 and group[0] == axis]
    others = ", ".join(dict.fromkeys([*whole, *free]))
    message = f"{program.name}: {axis} is fixed to {_extent(program, axis)}, so ranks cannot have runs of it"
    raise fault(definition, message, f"spread something else: {others}", _place(program, axis))


def _check_pairs(definition: Definition, axes: Collection[str]) -> None:
    program = definition.program
    for tensor in (*program.operands, *(r.tensor for r in program.results)):
        both = [axis for axis in tensor.order if axis in axes]
        if len(both) > 1:
            message = f"{tensor.name} has two spread axes, {both[0]} and {both[1]}"
            raise fault(definition, message, "spread one of them", tensor.span)


def _extent(program: Program, axis: str) -> int | None:
    return next((each.extent for each in program.axes if each.name == axis), None)


def _place(program: Program, axis: str) -> Span | None:
    """Of the first operand with an axis."""
    return next(tensor.span for tensor in program.operands if axis in tensor.axes)


def _outer(definition: Definition, name: str) -> str:
    program = definition.program
    groups = [group for tensor in program.operands for group in tensor.dims if len(group) > 1]
    for group in groups:
        if dims_text((group,)) == " ".join(name.split()):
            return group[0]
    known = ", ".join(dict.fromkeys(dims_text((group,)) for group in groups)) or "none"
    message = f"{program.name} has no dimension {name} to spread"
    raise fault(definition, message, f"of several axes it has {known}", program.operands[0].span)


def _shared(definition: Definition, axis: str, ranks: int) -> Definition:
    """The definition with a rank's share of an axis that has a fixed length."""
    program = definition.program
    extent = _extent(program, axis)
    if extent is None:
        return definition
    if extent % ranks:
        message = f"{program.name}: {axis} is fixed to {extent}, of which {ranks} ranks have no equal runs"
        cure = f"take a number of ranks that divides {extent}, or spread another axis"
        raise fault(definition, message, cure, _place(program, axis))

    def shared(program: Program) -> Program:
        own = Axis(axis, extent // ranks)
        return replace(program, axes=tuple(own if each.name == axis else each for each in program.axes))

    opened = None if definition.opened is None else shared(definition.opened)
    return replace(definition, program=shared(program), opened=opened)
