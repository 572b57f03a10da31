"""What it takes to simulate a case on the host: its elements, and the threads that its kernels start."""

from __future__ import annotations

from normgen.launching.launch import HOST
from normgen.launching.layout import REST
from normgen.launching.machine import HOST_MACHINE
from normgen.package.direction import Direction, directions
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case
from normgen.verify.expected import Subject

THREADS_PER_ELEMENT = 4  # a thread that finds nothing to do costs a fraction of an element that is computed


def work(subject: Subject, case: Case) -> int:
    """In elements: many short rows may cost a block of threads each."""
    if 0 in case.extents.values():
        return 0
    started = sum(
        _threads(subject, each, case) for each in directions(subject.norm.package) if each is not None
    )
    return max(case.work(subject.definition), started // THREADS_PER_ELEMENT)


def _threads(subject: Subject, direction: Direction, case: Case) -> int:
    """How many threads the launches of a direction start, of arrays that are aligned and contiguous."""
    axes = {axis for record in direction.operands.values() for axis in record.axes}
    sizes = {axis: case.rest if axis == REST else n for axis, n in case.extents.items() if axis in axes}
    dtypes = {name: case.dtypes[name] for name in direction.operands if name in case.dtypes}
    bound = bind_sizes(direction, sizes, dtypes, 16, HOST)
    if bound.idle:
        return 0
    plan = plan_launches(direction.record, bound.binding, HOST_MACHINE, strategy=subject.strategy)
    return sum(launch.grid[0] * launch.grid[1] * launch.grid[2] * launch.block[0] for launch in plan.launches)
