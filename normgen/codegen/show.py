"""Kernel plans as text, for `explain --emit plan`."""

from __future__ import annotations

from normgen.codegen.strategies.cut import PlannedStrategy
from normgen.codegen.strategies.registry import family_of


def show_strategies(strategies: tuple[PlannedStrategy, ...]) -> str:
    """Every strategy of a pass with its kernels in launch order, and what they hand on to one another."""
    parts = []
    for strategy in strategies:
        if len(strategies) > 1:
            parts.append(f"strategy {strategy.name}\n")
        parts += [family_of(plan).show(plan) for plan in strategy.plans]
    return "\n".join(parts)
