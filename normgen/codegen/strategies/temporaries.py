"""What the kernels of a strategy hand on to one another: float32 tensors in the workspace.

A cut computes some reductions on their own. The largest values that are made of nothing else that is reduced
become temporaries, and what follows is computed from those.

    sum of x^2 first; y = x * rsqrt(mean[D](x^2) + eps)       t1[...] = rsqrt(mean[D](x^2) + eps); y = x * t1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from normgen.ir.expr import load, power, rewrite
from normgen.ir.nodes import Axes, Expr, Mul, Reduce, children, is_condition, reductions, walk
from normgen.ir.program import Program, Result, Tensor
from normgen.kernel.accumulators import above
from normgen.kernel.group import memory_order


class Workspace:
    """Makes the temporaries of one program and of what cuts leave of it, their axes in the order that they
    have in its tensors."""

    def __init__(self, program: Program) -> None:
        self.tensors = (*program.operands, *(r.tensor for r in program.results))
        self.taken = {t.name for t in self.tensors} | {b.name for b in program.bindings}
        self.taken |= {a.name for a in program.attrs}

    def names(self, program: Program) -> Iterator[str]:
        """Names for further temporaries, which nothing has in the whole program or in what is left of it."""
        taken = self.taken | {t.name for t in program.operands}
        return (f"t{k}" for k in count(1) if f"t{k}" not in taken)

    def temporary(self, name: str, value: Expr) -> Result:
        """A temporary that holds a value."""
        dims = tuple((axis,) for axis in self.order(value.axes))
        return Result(Tensor(name, "temporary", dims, "f32", None, None, "", None), value, False)

    def temporaries(self, program: Program, values: Iterable[Expr]) -> tuple[Result, ...]:
        """A temporary for each of these values of a program."""
        return tuple(map(self.temporary, self.names(program), values))

    def order(self, axes: Axes) -> tuple[str, ...]:
        """Axes as they lie in memory."""
        return memory_order(axes, self.tensors)


def settled(roots: Iterable[Expr], sums: frozenset[Reduce]) -> frozenset[Expr]:
    """The values that are made of these reductions, have the axes of one of them, and can be stored."""
    found: set[Expr] = set()
    for node in walk(*roots):
        below = reductions(node)
        made = set(below) <= sums and any(node.axes <= n.axes for n in below)
        if made and not is_condition(node):
            found.add(node)
    return frozenset(found)


def frontier(roots: list[Expr], values: frozenset[Expr]) -> list[Expr]:
    """The largest of the values that the roots are computed from, in the order in which they are used; roots
    of values too, which are slow to compute again for every element."""
    users = set(above(roots, values))
    used = [part for node in walk(*roots) if node in users for part in _parts(node, values)]
    return [node for node in dict.fromkeys((*used, *roots)) if node in values or _is_root(node, values)]


def _parts(node: Expr, values: frozenset[Expr]) -> Iterator[Expr]:
    """What a node is computed from, a root of a value as one."""
    if not isinstance(node, Mul):
        yield from children(node)
        return
    for base, exponent in node.factors:
        root = power(base, exponent)
        yield root if _is_root(root, values) else base


def _is_root(node: Expr, values: frozenset[Expr]) -> bool:
    match node:
        case Mul(coefficient=1, factors=((base, exponent),)):
            return base in values and exponent.denominator > 1
        case _:
            return False


def loads_of(temporaries: Iterable[Result]) -> dict[Expr, Expr]:
    """What stands for the values of temporaries in the kernels that follow."""
    return {t.expr: load(t.tensor.name, t.expr.axes) for t in temporaries}


def reading(program: Program, temporaries: Iterable[Result], table: Mapping[Expr, Expr]) -> Program:
    """The program with temporaries to read, computed by the expressions that stand for others."""
    return replace(
        program,
        operands=(*program.operands, *(t.tensor for t in temporaries)),
        bindings=tuple(replace(b, expr=rewrite(b.expr, table)) for b in program.bindings),
        results=tuple(replace(r, expr=rewrite(r.expr, table)) for r in program.results),
    )
