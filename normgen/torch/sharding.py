"""Norms of DTensors: which shards of operands give shards of results, read off a step's program.

Along an axis that nothing is reduced over, every shard is a call of its own. Where a result sums over that
axis, as the gradient of a param does, shards give parts of the sum. Anything else is replicated first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from normgen.launching.layout import REST, dimension_of
from normgen.package.records import TensorRecord
from normgen.torch.calls import Wanted
from normgen.torch.local import LocalStep
from normgen.torch.private import constant, sharding_schemas
from normgen.torch.steps import Step

if TYPE_CHECKING:
    from normgen.ir.nodes import Expr

_STEPS: dict[str, Step] = {}  # by name: what compilers can hold
_WAITING: list[Step] = []  # for PyTorch's module of DTensors, which is imported by who uses them


def announce(step: Step) -> None:
    """Let PyTorch know how a step's operator is sharded, as soon as anybody may ask."""
    _WAITING.append(step)
    _STEPS[step.name] = step


def plan_of(step: Step, tensors: Sequence[Any], wanted: Wanted) -> Any:
    """How ranks make a call of DTensors that are cut along an axis that a norm reduces (`ranks.dtensor`);
    None where they do not."""
    if "torch.distributed.tensor" not in sys.modules or not isinstance(step, LocalStep):
        return None
    from torch.distributed.tensor import DTensor

    if step.direction.name != "forward" or not any(isinstance(tensor, DTensor) for tensor in tensors):
        return None
    from normgen.torch.ranks.dtensor import plan

    return plan(step, tensors, wanted)


def settle() -> None:
    """Register what has been announced, if there are DTensors."""
    if not _WAITING or "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor.experimental import register_sharding

    schemas = sharding_schemas()
    if schemas is None:
        return
    known, schema = schemas
    while _WAITING:
        step = _WAITING.pop()
        register_sharding(step.operator)(_rule(step))
        # Placements are found again by what follows the tensors too: which results are wanted.
        known[step.operator] = schema(len(step.operands), needs_pytree=True)


def _rule(step: Step) -> Any:
    """For given operands: pairs of placements, of results and of operands."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    count = len(step.operands)

    def placements(*given: Any) -> list[tuple[list[Any], list[Any]]]:
        tensors, wanted = given[:count], step.masked(given[count + len(step.attrs)]).names
        numbers = [None] * (len(given) - count)
        records = step.direction.operands
        given_states = [tensors[step.operands.index(name)] is not None for name in step.updated]
        states = tuple(name for name, there in zip(step.updated, given_states, strict=True) if there)

        def pair(axis: str | None, turn: int) -> tuple[list[Any], list[Any]]:
            summed = shards_of(step, wanted, states)[axis] if axis is not None else frozenset()

            def place(record: TensorRecord, dims: int) -> Any:
                at = _place(record, axis, turn, dims)
                return Replicate() if at is None else Shard(at)

            def result(name: str, record: TensorRecord) -> Any:
                if name not in wanted:
                    return None
                return Partial() if name in summed else place(record, _dims(record, rests))

            made = [result(name, record) for name, record in step.direction.results.items()]
            made += [Replicate() if name in states else None for name in step.updated]
            read = [
                None if tensor is None else place(records[name], tensor.ndim)
                for name, tensor in zip(step.operands, tensors, strict=True)
            ]
            return made, [*read, *numbers]

        rests = max(
            (
                tensor.ndim - len(records[name].dims) + 1
                for name, tensor in zip(step.operands, tensors, strict=True)
                if tensor is not None and (REST,) in records[name].dims
            ),
            default=0,
        )
        pairs = [pair(None, 0)]
        for axis in shards_of(step, wanted, states):
            pairs += [pair(axis, turn) for turn in range(rests if axis == REST else 1)]
        return pairs

    return placements


def _dims(record: TensorRecord, rests: int) -> int:
    """The dimensions of an array of which `...` stands for so many."""
    return len(record.dims) + (rests - 1 if (REST,) in record.dims else 0)


def _place(record: TensorRecord, axis: str | None, turn: int, dims: int) -> int | None:
    """The dimension of an axis in an array, None where that lacks it. `turn`: which one of `...`."""
    if axis is None or (axis,) not in record.dims:
        return None
    return dimension_of(record, axis, dims) + turn


@constant
def cut_freely(
    step: str, wanted: tuple[str, ...], states: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The axes along which the operands of a step, by its name, may be cut in both directions; with each the
    operands of whose gradients every cut has a part of the sum."""
    own = _STEPS[step]
    derivative = own.derive()
    if derivative is None:
        return tuple((axis, ()) for axis in shards_of(own, wanted, states))
    back = shards_of(derivative.step, derivative.step.results)
    return tuple(
        (axis, tuple(name for name, gradient in derivative.gradients.items() if gradient in back[axis]))
        for axis in shards_of(own, wanted, states)
        if axis in back
    )


@cache
def shards_of(step: Step, wanted: tuple[str, ...], states: tuple[str, ...] = ()) -> dict[str, frozenset[str]]:
    """The axes along which operands may be cut, with the results of which every cut has a part of the sum.
    `states`: those whose new values must come out whole."""
    direction, program = step.direction, step.program
    records = [*direction.operands.values(), *direction.results.values()]
    alone = {group[0] for record in records for group in record.dims if len(group) == 1}
    # An axis of fixed length, or half of a dimension, cannot be cut.
    alone -= {axis.name for axis in direction.axes if axis.extent is not None}
    alone -= {axis for record in records for group in record.dims if len(group) > 1 for axis in group}
    values = {r.tensor.name: r.expr for r in program.results if r.tensor.name in wanted}
    updates = [u.expr for u in program.updates if u.state in states]
    found: dict[str, frozenset[str]] = {}
    for axis in sorted(alone):
        parts = _parts([*values.values(), *updates], axis)
        if parts is None or any(update in parts for update in updates):
            continue
        found[axis] = frozenset(name for name, value in values.items() if value in parts)
    return found


def _parts(roots: Sequence[Expr], axis: str) -> frozenset[Expr] | None:
    """Of values that are computed for a part of an axis, those that are parts of a sum. None where ranks
    would have to exchange something, the length of the axis included."""
    from normgen.ir.kinds import Unspreadable, kinds
    from normgen.ir.nodes import Extent, walk

    if any(isinstance(node, Extent) and node.axis == axis for node in walk(*roots)):
        return None
    try:
        found = kinds(roots, frozenset({axis}))
    except Unspreadable:
        return None
    if found.needed or any(found.of[root] in ("max", "min") for root in roots):
        return None
    return frozenset(root for root in roots if found.of[root] == "sum")
