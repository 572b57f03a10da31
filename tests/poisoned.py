"""Norms planned for so many multiprocessors, in scratch memory that is NaN wherever nothing has written."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from normgen.dtypes import DTYPES
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import Machine
from normgen.runtime.calls.utility_kernels import fill_launch
from normgen.runtime.planning.choose import plan_launches

NAN = 0xFFFFFFFF  # in each of the element types, whatever part of it is taken


def poisoned(multiprocessors: int, strategy: str = "") -> Any:
    """A planner (see `Norm`). Launches ahead of all others fill the scratch memory with NaN, but for what is
    zeros between calls."""

    def plan(record: Any, binding: Any, device: Machine) -> LaunchPlan:
        made = plan_launches(
            record, binding, replace(device, multiprocessors=multiprocessors), strategy=strategy
        )
        fills = [
            fill_launch(name, prod(shape), DTYPES[dtype].bytes, NAN)
            for name, shape, dtype in made.workspace
            if name not in made.zeros and prod(shape)
        ]
        return replace(made, launches=(*fills, *made.launches))

    return plan
