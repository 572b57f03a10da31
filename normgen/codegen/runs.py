"""What a rank has of a definition whose axes are spread: axes by name, and dimensions that are several axes.

A run of a dimension `(G C)` that is whole groups is a run of G, its outer axis. Where the spec fixes the
length of that, as `axis G = groups` does, each rank has a norm of fewer groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from normgen.codegen.refusals import fault
from normgen.ir.program import Axis, Definition, Program
from normgen.package.records import dims_text


def local_definition(definition: Definition, shard: Mapping[str, int]) -> tuple[Definition, tuple[str, ...]]:
    """The definition that each rank has, and the axes that are spread. `shard`: over how many ranks each axis
    or dimension is. Raises `SpecError` (code `spread`) for dimensions that are not there, and for groups that
    ranks cannot have whole."""
    axes = []
    for name, ranks in shard.items():
        if name.startswith("("):
            axis = _outer(definition, name)
            definition = _shared(definition, axis, ranks)
        else:
            axis = name
            _check_free(definition, axis)
        axes.append(axis)
    return definition, tuple(axes)


def axes_of(program: Program) -> list[str]:
    """The axes that tensors have."""
    tensors = (*program.operands, *(r.tensor for r in program.results))
    return list(dict.fromkeys(axis for tensor in tensors for axis in tensor.order))


def free_axes(program: Program) -> list[str]:
    """Those whose length the spec leaves open."""
    fixed = {axis.name for axis in program.axes if axis.extent is not None}
    return [axis for axis in axes_of(program) if axis not in fixed]


def _check_free(definition: Definition, axis: str) -> None:
    program = definition.program
    extent = next((each.extent for each in program.axes if each.name == axis), None)
    if extent is None:
        return
    where = next(tensor.span for tensor in program.operands if axis in tensor.axes)
    groups = [group for tensor in program.operands for group in tensor.dims]
    whole = [dims_text((group,)) for group in groups if len(group) > 1 and group[0] == axis]
    others = ", ".join(dict.fromkeys([*whole, *free_axes(program)]))
    message = f"{program.name}: {axis} is fixed to {extent}, so ranks cannot have runs of it"
    raise fault(definition, message, where, f"spread something else: {others}")


def _outer(definition: Definition, name: str) -> str:
    program = definition.program
    groups = [group for tensor in program.operands for group in tensor.dims if len(group) > 1]
    for group in groups:
        if dims_text((group,)) == " ".join(name.split()):
            return group[0]
    known = ", ".join(dict.fromkeys(dims_text((group,)) for group in groups)) or "none"
    message = f"{program.name} has no dimension {name} to spread"
    raise fault(definition, message, program.operands[0].span, f"of several axes it has {known}")


def _shared(definition: Definition, axis: str, ranks: int) -> Definition:
    """The definition with a rank's share of an axis that has a fixed length."""
    program = definition.program
    extent = next((each.extent for each in program.axes if each.name == axis), None)
    if extent is None:
        return definition
    if extent % ranks:
        where = next(tensor.span for tensor in program.operands if axis in tensor.axes)
        message = f"{program.name}: {axis} is fixed to {extent}, of which {ranks} ranks have no equal runs"
        cure = f"take a number of ranks that divides {extent}, or spread another axis"
        raise fault(definition, message, where, cure)

    def shared(program: Program) -> Program:
        own = Axis(axis, extent // ranks)
        return replace(program, axes=tuple(own if each.name == axis else each for each in program.axes))

    opened = None if definition.opened is None else shared(definition.opened)
    return replace(definition, program=shared(program), opened=opened)
