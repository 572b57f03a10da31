"""The local programs of a rank by PyTorch's operators: float64 on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.runtime.ranks.steps import Compute, Computes, LocalRun
from normgen.torch.calls import Wanted
from normgen.torch.derived import Derived
from normgen.torch.dtypes import TYPES

if TYPE_CHECKING:
    from normgen.codegen.ranks import Spread


def by_operators(spread: Spread) -> Computes:
    """What runs the local programs."""
    programs = (*spread.rounds, spread.merge, spread.apply)

    def compute_of(place: int, direction: Direction, package: Package) -> Compute:
        derived = Derived(direction, programs[place], tuple(attr.name for attr in package.attrs))

        def compute(run: LocalRun) -> Mapping[str, Any]:
            tensors = tuple([run.operands[name] for name in direction.reads])
            # With the types of the whole call, one of which is float64, all are computed in that.
            asked = Wanted(run.wanted, tuple([(name, TYPES[kind]) for name, kind in run.types.items()]))
            with torch.no_grad():
                made = derived.prepare(tensors, asked, reuses=True)(tensors, tuple(run.numbers.values()))
            for name, state in made.states.items():
                run.operands[name].copy_(state)
            found = dict(zip(direction.results, made.results, strict=True))
            for name, array in run.out.items():
                array.copy_(found[name])
            return found

        return compute

    return compute_of
