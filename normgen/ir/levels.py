"""Derivatives of any order: the gradients of a definition as a definition of their own.

The forward of a level computes the gradients of the level below from its cotangents and its operands. A save
counts there as the function of the operands that it is, so that whatever is differentiated is whole; an
output that was kept and is differentiated is an operand, whose own gradient is one more cotangent of the
level below. `stop(v)` stops derivatives of every order, and roundings pass them on, as in the first.

    level 1   y              = f(x, w)           backward: dx, dw          = b(dy, x, w)
    level 2   grad_x, grad_w = b(grad_y, x, w)   backward: dgrad_y, dx, dw = c(dgrad_x, dgrad_w, grad_y, x, w)

The forward of a level is the backward below it, and is never run. It has the saves that the first forward
left, so that the derived backward reads those in place of computing them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from normgen.ir.adjoint import guarded_by
from normgen.ir.expr import ZERO, load
from normgen.ir.grad import as_stored, factored, gradient_tensor, gradients, kept_values
from normgen.ir.limit import limited
from normgen.ir.nodes import Expr, children, walk
from normgen.ir.program import Definition, Program, Result, Tensor, dims_of
from normgen.ir.reads import tensors_read
from normgen.ir.recover import transform, use_kept


@dataclass(frozen=True, slots=True)
class Level:
    """The derivatives of the level below, to be differentiated again.

    Operands that `cotangents` does not have are those of the level below, or outputs that it kept, by the
    same names. What a caller may differentiate by and `definition.wrt` does not have is of no influence: its
    gradient is zero.
    """

    definition: Definition
    cotangents: Mapping[str, str]  # of its operands: and what the backward below calls them
    gradients: Mapping[str, str]  # its outputs, as the results of the backward below


def differentiated(definition: Definition) -> Level | None:
    """The level above a definition; None where nothing of it is differentiated, or every gradient is zero.

    Raises `SpecError` where that takes too many steps (see `limit`).
    """
    if not definition.of:
        return None
    with limited(definition, "the derivatives"):
        return _differentiated(definition)


def _differentiated(below: Definition) -> Level | None:
    program, prefix = below.to_differentiate, _prefix(below)
    cotangents = {name: f"{prefix}{name}" for name in below.of}
    opaque = {name: e for name, e in kept_values(program) if name in below.of}
    found, read = _from_what_is_kept(below, cotangents, opaque)
    if not found:
        return None
    wrt = (*cotangents.values(), *opaque, *below.wrt)
    of = {f"{prefix}{name}": f"d{name}" for name in found}
    outputs = tuple(
        Result(gradient_tensor(below, name, own, cotangents[below.of[0]], "output"), e, kept=False)
        for own, (name, e) in zip(of, found.items(), strict=True)
    )
    saves = tuple(
        replace(r, expr=read[r.expr]) for r in program.results if r.kept and r.tensor.name not in below.of
    )
    operands = (
        *(
            Tensor(own, "cotangent", dims_of(program, name), None, None, None, "", None)
            for name, own in cotangents.items()
        ),
        *(replace(r.tensor, role="input", like=None) for r in program.results if r.tensor.name in opaque),
        *program.operands,
    )
    opened = replace(
        program,
        name=f"{program.name}_grad",
        doc=f"The gradients of {program.name}.",
        operands=operands,
        bindings=tuple(replace(b, expr=read[b.expr]) for b in program.bindings),
        results=(*outputs, *saves),
        updates=(),
    )
    lets = {t.name for t in program.operands if t.role == "let"}
    closed = _reading(_closed(opened, lets), lets)
    whole = _reading(opened, lets) if lets else None
    level = Definition(closed, tuple(of), wrt, below.source, (), whole, below.moved)
    return Level(_live(level), {own: f"d{name}" for name, own in cotangents.items()}, of)


def _from_what_is_kept(
    below: Definition, cotangents: Mapping[str, str], kept: Mapping[str, Expr]
) -> tuple[dict[str, Expr], dict[Expr, Expr]]:
    """The gradients but those that are zero, and what becomes of each value of the program."""
    program, raw = below.to_differentiate, gradients(below, cotangents)
    written = [*(b.expr for b in program.bindings), *(r.expr for r in program.results)]
    read = use_kept([*raw.values()], [*kept.items()], [*walk(*written)], smooth=True)
    results = [r.tensor for r in program.results if r.tensor.name in kept]
    stored = as_stored([read[e] for e in raw.values()], results, read.values())
    read = {node: stored[e] for node, e in read.items()}
    found = {name: read[e] for name, e in raw.items()}
    if not any(guarded_by(node) for node in walk(*found.values())):  # what is guarded stays together
        tidy = factored(found.values(), {read[e] for e in walk(*written)})
        found = {name: tidy[e] for name, e in found.items()}
    return {name: e for name, e in found.items() if e is not ZERO}, read


def _prefix(below: Definition) -> str:
    """What the names of a level begin with, and no name does that the levels below it have."""
    program = below.to_differentiate
    tensors = (*program.operands, *(r.tensor for r in program.results))
    taken = {t.name for t in tensors} | {b.name for b in program.bindings} | {a.name for a in program.attrs}
    prefixes = (f"grad{k}_" if k > 1 else "grad_" for k in count(1))
    return next(p for p in prefixes if not any(name.startswith((p, f"d{p}")) for name in taken))


def _closed(opened: Program, lets: Collection[str]) -> Program:
    """The program with opened lets as the values that they are."""
    values: dict[Expr, Expr] = {}
    for b in opened.bindings:  # in order of definition: a later let may load an earlier one
        if b.name in lets:
            values[load(b.name, b.expr.axes)] = _replaced([b.expr], values)[b.expr]
    image = _replaced([*(b.expr for b in opened.bindings), *(r.expr for r in opened.results)], values)
    return replace(
        opened,
        operands=tuple(t for t in opened.operands if t.name not in lets),
        bindings=tuple(replace(b, expr=image[b.expr]) for b in opened.bindings),
        results=tuple(replace(r, expr=image[r.expr]) for r in opened.results),
    )


def _replaced(roots: Iterable[Expr], values: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    return transform(roots, lambda node, new: values.get(node), real=False)


def _reading(program: Program, lets: Collection[str]) -> Program:
    """The program with those operands and values alone that its results, and these lets, are made of."""
    roots = [r.expr for r in program.results]
    roots += [b.expr for b in program.bindings if b.name in lets]
    read, present = tensors_read(roots), set(walk(*roots))
    operands = tuple(t for t in program.operands if t.name in read)
    names = {t.name for t in operands}

    def typed(tensor: Tensor) -> Tensor:
        return tensor if tensor.like in names else replace(tensor, like=None)

    return replace(
        program,
        operands=tuple(map(typed, operands)),
        bindings=tuple(
            b for b in program.bindings if b.name in lets or (b.expr in present and children(b.expr))
        ),
        results=tuple(replace(r, tensor=typed(r.tensor)) for r in program.results),
    )


def _live(level: Definition) -> Definition:
    """The definition without what it is differentiated by to no effect."""
    operands = {t.name for t in level.to_differentiate.operands}
    read = replace(level, wrt=tuple(name for name in level.wrt if name in operands))
    found = gradients(read, {name: f"d{name}" for name in level.of})
    return replace(read, wrt=tuple(name for name, e in found.items() if e is not ZERO))
