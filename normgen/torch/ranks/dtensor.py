"""Norms of DTensors that are cut along an axis that the norm reduces: nothing is gathered.

Each rank takes its shards, the norm is that of ranks, and what these have of each result is a DTensor again.
Along other dimensions of the mesh operands may be cut as they may be where nothing is exchanged (`sharding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from normgen.launching.layout import REST, dimension_of, shape_of, solve
from normgen.package.records import TensorRecord
from normgen.torch.calls import Wanted
from normgen.torch.loading import spread_or_none
from normgen.torch.local import LocalStep
from normgen.torch.ranks.function import SpreadFunction
from normgen.torch.sharding import cut_freely
from normgen.torch.steps import Step

# An axis that is cut along a dimension of the mesh; which of its dimensions, where it is `...`.
Cut = tuple[str, int] | None


@dataclass(frozen=True)
class Shards:
    """How a call of DTensors is made of calls of ranks. `cuts`: of each dimension of the mesh the axis that
    is cut along it; `parts`: the operands of whose gradients its ranks have parts."""

    step: Step
    function: SpreadFunction
    mesh: Any
    cuts: tuple[Cut, ...]
    parts: tuple[tuple[str, ...], ...]

    def locals(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The tensors of this rank, which gradients find back from."""
        return tuple(
            None if tensor is None else self._local(name, tensor)
            for name, tensor in zip(self.step.operands, tensors, strict=True)
        )

    def _local(self, name: str, tensor: Any) -> Any:
        record = self.step.direction.operands[name]
        placed = [self._place(record, cut, tensor.ndim) for cut in self.cuts]
        gradients = [
            Partial() if name in parts else place for place, parts in zip(placed, self.parts, strict=True)
        ]
        if tuple(tensor.placements) != tuple(placed):
            tensor = tensor.redistribute(placements=placed)
        return tensor.to_local(grad_placements=gradients)

    def joined(self, made: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results as DTensors."""
        direction = self.step.direction
        given = zip(self.step.operands, tensors, strict=True)
        shapes = [(direction.operands[n], tuple(each.shape)) for n, each in given if each is not None]
        lengths = solve(shapes, direction.axes)
        found: list[Any] = []
        for record, result in zip(direction.results.values(), made, strict=False):
            if result is None:
                found.append(None)
                continue
            shape = shape_of(record, lengths)
            placed = [self._place(record, cut, len(shape)) for cut in self.cuts]
            lies = {"shape": torch.Size(shape), "stride": _strides(shape)}
            found.append(DTensor.from_local(result, self.mesh, placed, run_check=False, **lies))
        return tuple(found)

    @staticmethod
    def _place(record: TensorRecord, cut: Cut, dims: int) -> Any:
        if cut is None or (cut[0],) not in record.dims:
            return Replicate()
        return Shard(dimension_of(record, cut[0], dims) + cut[1])


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor; what is cached elsewhere, compilers would warn of."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.insert(0, step)
        step *= max(length, 1)
    return tuple(strides)


def plan(step: LocalStep, tensors: Sequence[Any], wanted: Wanted) -> Shards | None:
    """How to call the forward of a norm on these; None where ranks need not exchange anything, or cannot do
    so along the axes that are cut."""
    given = [(n, t) for n, t in zip(step.operands, tensors, strict=True) if t is not None]
    if not all(isinstance(tensor, DTensor) for _, tensor in given):
        return None
    mesh = given[0][1].device_mesh
    if any(tensor.device_mesh != mesh for _, tensor in given):
        return None
    freely = dict(cut_freely(step.name, wanted.names, step.updated))
    found = [_cut(step, given, k) for k in range(mesh.ndim)]
    for at, cut in enumerate(found):
        if cut is None or cut[0] in freely:
            continue
        function = _function(step, cut[0], mesh, at)
        if function is None:
            continue
        cuts = tuple(
            each if k == at or (each and each[0] in freely) else None for k, each in enumerate(found)
        )
        own = tuple(name for name in step.operands if function.placements.get(f"d{name}") == "part")
        parts = tuple(own if k == at else freely[each[0]] if each else () for k, each in enumerate(cuts))
        return Shards(function.step, function, mesh, cuts, parts)
    return None


def _cut(step: Step, given: Sequence[tuple[str, Any]], at: int) -> Cut:
    """The one axis along which tensors are cut over a dimension of the mesh; None where there is none."""
    cuts = set()
    for name, tensor in given:
        place = tensor.placements[at]
        if type(place) is Shard:
            cuts.add(_axis_at(step.direction.operands[name], place.dim % tensor.ndim, tensor.ndim))
        elif name in step.updated and not isinstance(place, Replicate):
            return None
    return cuts.pop() if len(cuts) == 1 else None


def _axis_at(record: TensorRecord, dim: int, dims: int) -> Cut:
    """The axis of a dimension of an array; None where that is several axes."""
    for group in record.dims:
        if len(group) == 1:
            first = dimension_of(record, group[0], dims)
            count = dims - len(record.dims) + 1 if group[0] == REST else 1
            if first <= dim < first + count:
                return group[0], dim - first
    return None


def _function(step: LocalStep, axis: str, mesh: Any, at: int) -> SpreadFunction | None:
    package = step.package
    found: SpreadFunction | None = spread_or_none(
        package.spec, package.folded, axis, str(mesh.get_group(at).group_name)
    )
    return found
