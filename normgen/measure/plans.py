"""The time of a launch plan: what compares schedules and strategies, and nothing of a call around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from normgen.devices.cuda.context import Memory
from normgen.devices.cuda.executor import CudaExecutor
from normgen.dtypes import DTYPES
from normgen.launching.launch import LaunchPlan
from normgen.measure.timing import BATCHES, Clock, Timing, measure

Addresses = Mapping[str, int]


def measure_plan(
    executor: CudaExecutor,
    clock: Clock,
    plan: LaunchPlan,
    buffers: Sequence[Addresses],
    numbers: Mapping[str, float] | None = None,
    batches: int = BATCHES,
) -> Timing:
    """The time of all launches of a plan, once, with caches as cold as the rotation of `buffers` keeps them.

    `buffers`: the address of every operand and result, by name, for each set; a name that a set lacks is a
    null pointer. Scratch memory is allocated here, once for all sets, and cleared where it is kept clear, as
    a call's is. `numbers`: the float attrs.
    """
    scratch = _scratch(executor, plan, clock.stream)
    shared = {name: memory.pointer for name, memory in scratch.items()}
    runs = [_launches(executor, plan, {**one, **shared}, numbers or {}, clock.stream) for one in buffers]
    count = len(runs)

    def call(i: int) -> None:
        for run in runs[i % count]:
            run()

    try:
        return measure(clock, call, count, batches)
    finally:
        clock.wait()  # before the scratch memory goes


def run_plan(
    executor: CudaExecutor,
    clock: Clock,
    plan: LaunchPlan,
    addresses: Addresses,
    numbers: Mapping[str, float] | None = None,
) -> None:
    """Run all launches of a plan once, and wait for them."""
    scratch = _scratch(executor, plan, clock.stream)
    shared = {name: memory.pointer for name, memory in scratch.items()}
    try:
        for run in _launches(executor, plan, {**addresses, **shared}, numbers or {}, clock.stream):
            run()
    finally:
        clock.wait()  # before the scratch memory goes


def _scratch(executor: CudaExecutor, plan: LaunchPlan, stream: int) -> dict[str, Memory]:
    """The scratch arrays of a plan, zeros where it leaves zeros."""
    sizes = {name: prod(shape) * DTYPES[dtype].bytes for name, shape, dtype in plan.workspace}
    made: dict[str, Memory] = {name: executor.context.allocate(size) for name, size in sizes.items()}
    for name in plan.zeros:
        executor.context.fill_zero(made[name].pointer, sizes[name], stream)
    return made


def _launches(
    executor: CudaExecutor, plan: LaunchPlan, addresses: Addresses, numbers: Mapping[str, float], stream: int
) -> list[Callable[[], None]]:
    """The launches of a plan with their arguments packed, so that running them costs the host little."""
    made: list[Callable[[], None]] = []
    for launch in plan.repeated:
        fire = executor.prepare(executor.function(launch.source, launch.entry, launch.shared), launch)
        made.append(partial(fire, launch.packed(addresses, numbers), (), stream))
    return made
