"""What a family of kernels is asked to plan: results that share one iteration space."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from normgen.ir.nodes import Axes, Expr, Load, walk
from normgen.ir.program import Program, Result, Tensor

P = ParamSpec("P")
T = TypeVar("T")
Order = tuple[str, ...]  # axes, the outermost first


class Misfit(Exception):
    """A group that a family of kernels does not cover. The text says why, in the words of the spec.

    Who tries something else keeps the text and not the exception, which holds the frames that it passed, and
    with them the arrays of the call that had kernels made.
    """


@dataclass(frozen=True, slots=True)
class Group:
    """Results of a centred program whose values range over the same axes.

    `name` is the kernel's, `space` every axis that some value of the group varies over or is reduced over.
    """

    name: str
    program: Program
    space: Axes
    results: tuple[Result, ...]

    @property
    def roots(self) -> list[Expr]:
        """What the results are."""
        return [r.expr for r in self.results]

    @property
    def read(self) -> list[Tensor]:
        """The tensors that they are computed from, in the order of their use."""
        operands = {t.name: t for t in self.program.operands}
        return [operands[n.tensor] for n in walk(*self.roots) if isinstance(n, Load)]

    def misfit(self, why: str) -> Misfit:
        """That its program does, or has, what a family does not cover."""
        return Misfit(f"`{self.program.name}` {why}")


def memory_order(axes: Axes, tensors: Iterable[Tensor]) -> Order:
    """The axes in the memory order of a tensor that has all of them; else in order of appearance, in the
    tensors of most axes first."""
    found = list(tensors)
    full = next((t for t in found if t.axes >= axes), None)
    longest = [full] if full else sorted(found, key=lambda t: -len(t.axes))
    return tuple(dict.fromkeys(a for t in longest for a in t.order if a in axes))


def without(order: Order, axes: Collection[str]) -> Order:
    """The axes that are none of these."""
    return tuple(a for a in order if a not in axes)


def first_plan(planners: Iterable[Callable[P, T]], *given: P.args, **named: P.kwargs) -> T:
    """What the first makes that covers what is given; raises the `Misfit` of the first where none does."""
    reasons: list[str] = []
    for planner in planners:
        try:
            return planner(*given, **named)
        except Misfit as misfit:
            reasons.append(str(misfit))
    raise Misfit(reasons[0])
