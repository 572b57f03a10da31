"""The reads and writes of one call's launches, in order, with their bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from normgen.dtypes import DTYPES
from normgen.measure.arithmetic import operand_bytes

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.package.direction import Direction
    from normgen.runtime.planning.choose import Alternative, Candidate


@dataclass(frozen=True, slots=True)
class Array:
    """An array in memory. `kind`: input, param, state, cotangent, saved, output, save, gradient or
    scratch."""

    name: str
    kind: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Access:
    """An array that a launch reads or writes, and the bytes that this moves."""

    array: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One launch."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A call: its launches in order, and the arrays by name."""

    steps: tuple[Step, ...]
    arrays: dict[str, Array]


def flow_of(direction: Direction, chosen: Alternative, binding: Binding) -> Flow:
    """The bytes that a call moves."""
    steps = [step for kernel in chosen.kernels for step in _steps(kernel)]
    return Flow(tuple(steps), {each.name: each for each in _arrays(direction, chosen, binding)})


def _steps(kernel: Candidate) -> Iterator[Step]:
    """The launches of a kernel, each with its share of what the kernel moves."""
    launches, cost = kernel.lowered.launches, kernel.moved
    times = Counter(name for each in launches for name in (*each.reads, *each.writes))
    moved = {name: Access(name, cost.get(name, 0) // count) for name, count in times.items()}
    for each in launches:
        reads, writes = (tuple(moved[name] for name in names) for names in (each.reads, each.writes))
        yield Step(each.entry, each.grid, each.block, reads, writes)


def _arrays(direction: Direction, chosen: Alternative, binding: Binding) -> list[Array]:
    sizes, extents = operand_bytes(binding), dict(binding.extents)
    found = []
    for name, operand in binding.operands:
        record = direction.operands.get(name) or direction.results[name]
        shape = tuple(extents[axis] for axis, _ in operand.strides)
        found.append(Array(name, record.role, sizes[name], shape, operand.dtype))
    for name, shape, dtype in chosen.plan.workspace:
        found.append(Array(name, "scratch", prod(shape) * DTYPES[dtype].bytes, shape, dtype))
    return found
