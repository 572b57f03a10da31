"""What a backward is given: the tensors whose elements, element types or lengths its gradients depend on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from normgen.ir.nodes import Expr, Extent, Load, types_named, walk
from normgen.ir.program import Definition, Tensor, determined, dims_of, is_given


def operands_read(definition: Definition, exprs: Sequence[Expr]) -> tuple[Tensor, ...]:
    """The operands of a backward: cotangents, then what is read, as the spec declares it."""
    program, read = definition.program, tensors_read(exprs)
    cotangents = [
        Tensor(f"d{name}", "cotangent", dims_of(program, name), None, None, None, "", None)
        for name in definition.of
    ]
    saved = (replace(r.tensor, role="saved") for r in program.results if r.kept)
    declared = sorted((*program.operands, *saved), key=lambda t: t.span.start if t.span else 0)
    # (of several cotangents a call may leave some out)
    known = [*cotangents] if len(cotangents) == 1 else []
    known += [t for t in declared if t.name in read and (is_given(t) or t.role == "cotangent")]
    read |= _measured(definition, exprs, known)
    return (*cotangents, *(t for t in declared if t.name in read))


def _measured(definition: Definition, exprs: Sequence[Expr], known: Sequence[Tensor]) -> set[str]:
    """The operands to read for the lengths of their axes alone: as few as tell what the tensors that are
    `known` do not."""
    program = definition.program
    fixed = [axis.name for axis in program.axes if axis.extent is not None]
    needed = {axis for name in definition.wrt for dim in dims_of(program, name) for axis in dim}
    for node in walk(*exprs):
        needed |= {node.axis} if isinstance(node, Extent) else node.axes

    def told(more: Sequence[Tensor]) -> set[str]:
        return needed & determined([*known, *more], fixed)

    found = [tensor for tensor in program.operands if is_given(tensor)]
    every = told(found)
    for tensor in reversed(found):
        others = [t for t in found if t is not tensor]
        found = others if told(others) == every else found
    return {tensor.name for tensor in found}


def tensors_read(exprs: Iterable[Expr]) -> set[str]:
    """The tensors whose elements or whose element types these values depend on."""
    nodes = list(walk(*exprs))
    return {n.tensor for n in nodes if isinstance(n, Load)} | {*types_named(nodes)}
