"""Centring (stub)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from normgen.ir.expr import extent, factors, mul
from normgen.ir.nodes import Axes, Expr, Reduce


@dataclass(frozen=True, slots=True)
class Mean:
    """coefficient * mean[over](arg)."""

    coefficient: Fraction
    arg: Expr
    over: Axes

    def of(self, image: Mapping[Expr, Expr]) -> Expr:
        """What it is the mean of, with nodes replaced by their images."""
        return mul(self.coefficient, image[self.arg])


def as_mean(node: Expr) -> Mean | None:
    """The node as a mean over axes of something, if it is one."""
    coefficient, pairs = factors(node)
    sums = [b for b, e in pairs if isinstance(b, Reduce) and b.op == "sum" and not b.window and e == 1]
    if len(sums) != 1:
        return None
    (total,) = sums
    rest = {(b, e) for b, e in pairs if b is not total}
    if rest != {(extent(axis), Fraction(-1)) for axis in total.over}:
        return None
    return Mean(coefficient, total.arg, total.over)


def centre(program: Program) -> Program:
    """The program with its differences from a mean corrected."""
    return program
