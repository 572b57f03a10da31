"""How many bytes the launches of a pass move: the figures that the checked host executor measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from normgen.codegen.plan import KernelPlan, plan
from normgen.dtypes import DTYPES
from normgen.ir.nodes import Expr, Load, children
from normgen.runtime.launch import choose_schedules, plan_launches

if TYPE_CHECKING:
    from normgen.diagnostics import Source
    from normgen.ir.program import Program
    from normgen.runtime.direction import Direction
    from normgen.runtime.records import Binding, Device, OperandRecord


@dataclass(frozen=True, slots=True)
class Bytes:
    """`moved` by the launches, by array; `least`: each operand and each result of the pass once."""

    moved: dict[str, int]
    least: int

    @property
    def total(self) -> int:
        """What is moved in all."""
        return sum(self.moved.values())


def count_bytes(
    direction: Direction, program: Program, source: Source, binding: Binding, device: Device
) -> Bytes:
    """What a pass moves where every result is wanted.

    A value that all rows share is counted once for each kernel, since it stays in the cache.
    """
    plans = plan(program, source, f"{program.name}_{direction.name}")
    launches = plan_launches(direction.record, binding, device)
    extents = dict(binding.extents)
    sizes = {
        name: prod(extents[axis] for axis, _ in operand.strides) * DTYPES[operand.dtype].bytes
        for name, operand in binding.operands
    }
    scratch = {name: prod(shape) * DTYPES[dtype].bytes for name, shape, dtype in launches.workspace}
    by_name = {kernel.name: kernel for kernel in plans}
    moved: dict[str, int] = {}

    def add(name: str, count: int) -> None:
        moved[name] = moved.get(name, 0) + count

    for one in choose_schedules(direction.record, binding, device):
        kernel, streams = one.kernel, one.schedule.form == "stream"
        present = [operand for operand in kernel.reads if operand.tensor in sizes]
        for operand in present:
            passes = 1
            if (
                streams
                and not one.schedule.staged
                and _changes_with_the_row(operand, kernel.inner, kernel.kept)
            ):
                passes = _passes(by_name[kernel.name], operand.tensor)
            add(operand.tensor, passes * sizes[operand.tensor])
        for operand in (*kernel.writes, *kernel.finals, *kernel.final_reads):
            if operand.tensor in sizes:
                add(operand.tensor, sizes[operand.tensor])
        rows = prod(extents[axis] for axis in kernel.kept)
        for column in kernel.columns:
            name = f"{kernel.name}.{column.name}"
            add(name, 2 * scratch[name])
            if streams and column.wide:
                # Too long for registers, the sum is in memory: read and written again by each further row.
                width = prod(extents[axis] for axis in kernel.inner) * DTYPES["f32"].bytes
                add(name, 2 * (rows * width - scratch[name]))
    return Bytes(moved, sum(sizes.values()))


def _changes_with_the_row(operand: OperandRecord, inner: Sequence[str], kept: Sequence[str]) -> bool:
    return tuple(operand.inner) == tuple(inner) and bool(set(operand.kept) & set(kept))


def _passes(plan: KernelPlan, tensor: str) -> int:
    """How many passes over a row read it: one for each level of reductions that needs it, and the last."""
    row_sums = frozenset(reduce for level in plan.levels for reduce in level.sums)
    levels = [[reduce.arg for reduce in level.sums] for level in plan.streamed_levels]
    last = [result.expr for result in plan.results] + [column.reduce.arg for column in plan.columns]
    return sum(tensor in _loads(roots, row_sums) for roots in (*levels, last))


def _loads(roots: Iterable[Expr], stop: frozenset[Expr]) -> set[str]:
    """The tensors that the roots read for each element, not looking below what is already summed."""
    found: set[str] = set()
    seen: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen or node in stop:
            continue
        seen.add(node)
        if isinstance(node, Load):
            found.add(node.tensor)
        stack.extend(children(node))
    return found
