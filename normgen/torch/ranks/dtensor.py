"""Norms of DTensors that are cut along an axis that the norm reduces: nothing is gathered.

Each rank takes its shards, the norm is that of ranks, and what these have of each result is a DTensor again.
Along other dimensions of the mesh operands may be cut as they may be where nothing is exchanged (`sharding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from normgen.launching.layout import dimension_of, shape_of, solve
from normgen.package.records import TensorRecord, dims_text
from normgen.torch.calls import Wanted
from normgen.torch.layouts import channels_last, empty_last
from normgen.torch.local import LocalStep
from normgen.torch.ranks.function import SpreadFunction
from normgen.torch.ranks.loading import spread_or_none
from normgen.torch.sharding import cut_freely
from normgen.torch.steps import Step


class Cut(NamedTuple):
    """An axis that is cut along a dimension of the mesh: its name, that of the dimension of arrays that is
    cut, and which of its dimensions, where it is `...`. `straddles`: ranks have runs of the dimension that
    are no runs of its outer axis, and tensors of that alone are whole."""

    axis: str
    name: str
    turn: int
    straddles: bool = False

    def lies(self, record: TensorRecord, dims: int) -> int | None:
        """The dimension of an array of so many that is cut, None where none is."""
        for group in record.dims:
            if dims_text((group,)) == self.name or (group[0] == self.axis and not self.straddles):
                return dimension_of(record, group[0], dims) + self.turn
        return None


Cuts = tuple[Cut, ...]


@dataclass(frozen=True)
class Shards:
    """How a call of DTensors is made of calls of ranks. `whole`: what it is a call of; `cuts`: of each
    dimension of the mesh the axes that are cut along it, each of other tensors; `parts`: the operands of
    whose gradients its ranks have parts."""

    step: Step
    whole: Step
    function: SpreadFunction
    mesh: Any
    cuts: tuple[Cuts, ...]
    parts: tuple[tuple[str, ...], ...]

    def locals(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The tensors of this rank, which gradients find back from."""
        return tuple(
            None if tensor is None else self._local(name, tensor)
            for name, tensor in zip(self.step.operands, tensors, strict=True)
        )

    def _local(self, name: str, tensor: Any) -> Any:
        record = self.step.direction.operands[name]
        placed = [self._place(record, cuts, tensor.ndim) for cuts in self.cuts]
        gradients = [
            Partial() if name in parts else place for place, parts in zip(placed, self.parts, strict=True)
        ]
        if tuple(tensor.placements) != tuple(placed):
            tensor = tensor.redistribute(placements=placed)
        return tensor.to_local(grad_placements=gradients)

    def joined(self, made: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results as DTensors."""
        direction = self.whole.direction
        given = zip(self.step.operands, tensors, strict=True)
        shapes = [(direction.operands[n], tuple(each.shape)) for n, each in given if each is not None]
        lengths = solve(shapes, direction.axes)
        found: list[Any] = []
        for record, result in zip(direction.results.values(), made, strict=False):
            if result is None:
                found.append(None)
                continue
            shape = shape_of(record, lengths)
            placed = [self._place(record, cuts, len(shape)) for cuts in self.cuts]
            like = torch.empty((), device="meta")
            whole = empty_last(like, shape, like.dtype) if channels_last(result) else like.new_empty(shape)
            lies = {"shape": whole.shape, "stride": whole.stride()}
            found.append(DTensor.from_local(result, self.mesh, placed, run_check=False, **lies))
        return tuple(found)

    @staticmethod
    def _place(record: TensorRecord, cuts: Cuts, dims: int) -> Any:
        found = (cut.lies(record, dims) for cut in cuts)
        return next((Shard(at) for at in found if at is not None), Replicate())


def plan(step: LocalStep, tensors: Sequence[Any], wanted: Wanted) -> Shards | None:
    """How to call the forward of a norm on these; None where ranks need not exchange anything, or cannot do
    so along the axes that are cut."""
    given = [(n, t) for n, t in zip(step.operands, tensors, strict=True) if t is not None]
    mesh = _mesh_of([tensor for _, tensor in given])
    if mesh is None:
        return None
    freely = dict(cut_freely(step.name, wanted.names, step.updated))
    found = [_cuts(step, given, k, mesh.size(k)) for k in range(mesh.ndim)]
    free = [cuts if all(cut.axis in freely for cut in cuts) else () for cuts in found]
    for at, cuts in enumerate(found):
        if free[at] == cuts:
            continue
        function = _function(step, [cut.name for cut in cuts], mesh, at)
        if function is None or not _takes(function, step, cuts, [name for name, _ in given], wanted):
            continue
        own = tuple(name for name in step.operands if function.placements.get(f"d{name}") == "part")
        parts = [tuple(name for cut in cuts for name in freely[cut.axis]) for cuts in free]
        free[at], parts[at] = cuts, own
        return Shards(function.step, step, function, mesh, tuple(free), tuple(parts))
    return None


def _mesh_of(tensors: Sequence[Any]) -> Any:
    """The mesh that all tensors are on; None where they are on several, or are no DTensors."""
    if not all(isinstance(tensor, DTensor) for tensor in tensors):
        return None
    mesh = tensors[0].device_mesh
    return None if any(tensor.device_mesh != mesh for tensor in tensors) else mesh


def _cuts(step: Step, given: Sequence[tuple[str, Any]], at: int, ranks: int) -> Cuts:
    """The axes along which tensors are cut over a dimension of the mesh; none where that cannot be kept,
    since ranks have parts of the values of states."""
    cuts: list[Cut] = []
    for name, tensor in given:
        place = tensor.placements[at]
        if type(place) is Shard:
            dim = place.dim % tensor.ndim
            found = _cut_at(step, step.direction.operands[name], dim, tuple(tensor.shape), ranks)
            cuts += [] if found in cuts else [found]
        elif name in step.updated and not isinstance(place, Replicate):
            return ()
    return tuple(cuts)


def _cut_at(step: Step, record: TensorRecord, dim: int, shape: tuple[int, ...], ranks: int) -> Cut:
    """The axis of a dimension of an array. Of several axes it is the outer one."""
    starts = [dimension_of(record, group[0], len(shape)) for group in record.dims]
    place = max(k for k, start in enumerate(starts) if start <= dim)
    group, turn = record.dims[place], dim - starts[place]
    straddles = len(group) > 1 and solve([(record, shape)], step.direction.axes).axes[group[0]] % ranks > 0
    return Cut(group[0], dims_text((group,)), turn, straddles)


def _takes(function: SpreadFunction, step: Step, cuts: Cuts, given: Sequence[str], wanted: Wanted) -> bool:
    """Whether a function takes what straddles groups, with tensors of groups alone on all ranks if there are
    any."""
    straddling = [cut.axis for cut in cuts if cut.straddles]
    grouped, direction = function.spread.grouped, step.direction
    if not straddling or grouped is None:
        return not straddling
    shared = {pair.outer for pair in grouped.pairs if pair.groups is None}
    tensors = [direction.operands[name] for name in given] + [
        direction.results[name] for name in wanted.names
    ]
    return not any((axis,) in tensor.dims for axis in straddling for tensor in tensors if axis in shared)


def _function(step: LocalStep, names: Sequence[str], mesh: Any, at: int) -> SpreadFunction | None:
    package = step.package
    group = str(mesh.get_group(at).group_name)
    return spread_or_none(package.spec, package.folded, tuple(names), group)
