"""Calls of a rank in float64 on the CPU, by the meaning of the local programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normgen.launching.layout import REST, Lengths, Shape, shape_of
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.group import RankCall
from normgen.runtime.ranks.stages import IDENTITY, LocalCall
from normgen.torch.dtypes import TYPES
from normgen.torch.float64 import array_of

if TYPE_CHECKING:
    from normgen.codegen.ranks import Spread
    from normgen.ir.program import Program, Tensor

Values = dict[str, Any]


def in_float64(
    direction: SpreadDirection,
    cut: Callable[[tuple[str, ...], bool], Spread],
    call: LocalCall,
    along: Mapping[str, np.ndarray[Any, Any]],
) -> RankCall:
    """The wanted results of a call by name, as tensors; states are updated. `cut`: the local programs that
    give some results, of blocks or not; `along`: of each spread axis the lengths on all ranks."""
    divided, wanted = direction.divided(along), direction.computed(call)
    if not divided:
        return (yield from interpreted(direction, cut(wanted, False), *direction.by_groups(call, along)))
    arrays = {n: None if each is None else array_of(each) for n, each in call.operands.items()}
    for name in direction.direction.mentioned:
        if arrays.get(name) is None:
            arrays[name] = np.zeros(shape_of(direction.direction.operands[name], call.lengths))
    programs = BlockPrograms(cut(wanted, True), call.types)
    made = yield from direction.straddled(replace(call, operands=arrays), divided, programs)
    for name in direction.direction.updated:
        state = call.operands.get(name)
        if state is not None:
            state.copy_(torch.from_numpy(arrays[name]))
    return {name: _tensor(made[name], *call.results[name]) for name in call.results}


class BlockPrograms:
    """The local programs of blocks by their meaning (see `runtime.ranks.straddling.Programs`)."""

    def __init__(self, spread: Spread, types: Mapping[str, str]) -> None:
        self._rank, self._types = spread.names.rank, types
        self._stages = (*spread.rounds, spread.merge, spread.apply)

    def run(
        self,
        stage: int,
        hold: Mapping[str, Any],
        numbers: Mapping[str, float],
        lengths: Lengths,
        into: Mapping[str, Any],
    ) -> Values:
        """See `Programs`."""
        from normgen.ir.reference import evaluate

        program = self._stages[stage]
        handed = [r for r in program.results if r.tensor.role == "temporary"]
        results = [r for r in program.results if r.tensor.name in into or r in handed]
        ranks = next((len(hold[t.name]) for t in program.operands if self._rank in t.order), 1)
        extents = {REST: 1, **lengths.axes, self._rank: ranks}
        arrays = {
            tensor.name: hold[tensor.name].reshape([extents[axis] for axis in tensor.order])
            for tensor in program.operands
            if tensor.name in hold
        }
        updates = tuple(update for update in program.updates if update.state in hold)
        local = replace(program, results=tuple(results), updates=updates)
        made = evaluate(local, arrays, extents, numbers, rounding=True, dtypes=dict(self._types))
        for name, array in into.items():
            array[...] = made[name].reshape(array.shape)
        for update in updates:
            state = hold[update.state]
            state[...] = made[f"update:{update.state}"].reshape(state.shape)
        return {r.tensor.name: made[r.tensor.name] for r in handed if r.tensor.name not in into}

    def zeros(self, shape: Shape, dtype: str) -> Any:
        """An array of this shape, in float64 whatever its type is to be."""
        return np.zeros(shape)

    def without_gaps(self, array: Any) -> bool:
        """Whether results can be written there."""
        return True


def interpreted(
    direction: SpreadDirection, spread: Spread, call: LocalCall, every: Mapping[str, np.ndarray[Any, Any]]
) -> RankCall:
    """The wanted results of a call by name, as tensors; states are updated. `every`: of each spread axis the
    lengths on all ranks."""
    rank = _Rank(direction, spread, call, every)
    made: Values = {}
    for program, told in zip(spread.rounds, spread.told, strict=True):
        found = rank.values(program)
        made |= found
        sizes = [found[tensor.name].size for tensor in told]
        answers = yield np.concatenate([found[tensor.name].reshape(-1) for tensor in told])
        pieces = np.split(answers, np.cumsum(sizes)[:-1], axis=1)
        rank.hold |= {own: found[name] for own, name in spread.own.items() if name in found}
        rank.hold |= {
            tensor.name: piece.reshape(len(answers), *found[tensor.name].shape)
            for tensor, piece in zip(told, pieces, strict=True)
        }
    for program in (spread.merge, spread.apply):
        found = rank.values(program)
        made |= found
        rank.hold |= found
    for name, state in call.operands.items():
        if state is not None and f"update:{name}" in made:
            state.copy_(torch.from_numpy(made[f"update:{name}"].reshape(state.shape)))
    return {name: _tensor(made[name], *call.results[name]) for name in call.results}


class _Rank:
    """What one rank has, and what it makes of that."""

    def __init__(
        self,
        direction: SpreadDirection,
        spread: Spread,
        call: LocalCall,
        every: Mapping[str, np.ndarray[Any, Any]],
    ) -> None:
        self.spread, self.call, names = spread, call, spread.names
        own = {REST: 1, **call.lengths.axes}
        ranks = len(next(iter(every.values())))
        self.extents = {**own, names.rank: ranks}
        self.empty = {axis for axis in every if own[axis] == 0}
        self.numbers = {
            **call.numbers,
            **{names.size(axis): float(each.sum()) for axis, each in every.items()},
            **{names.length(axis): float(length) for axis, length in own.items()},
        }
        self.hold: Values = {names.count(axis): each.astype(np.float64) for axis, each in every.items()}
        for name, record in direction.direction.operands.items():
            axes = [part for axis in record.axes for part in direction.parts(axis)]
            shape = [own[axis] for axis in axes if axis in own]
            tensor = call.operands.get(name)
            if tensor is not None:
                self.hold[name] = array_of(tensor).reshape(shape)
            elif name in direction.direction.mentioned:
                self.hold[name] = np.zeros(shape)

    def values(self, program: Program) -> Values:
        """The results of a local program, and new states as `update:<state>`. What is made of elements along
        an axis of which this rank has none is nothing."""
        from normgen.ir.reference import evaluate

        updates = tuple(u for u in program.updates if u.state in self.hold and not self._lacks([u.expr]))
        results = [r for r in program.results if not self._lacks([r.expr], r.tensor)]
        local = replace(program, results=tuple(results), updates=updates)
        made = evaluate(
            local, self.hold, self.extents, self.numbers, rounding=True, dtypes=dict(self.call.types)
        )
        rest = {r.tensor.name: self._nothing(r.tensor) for r in program.results if r not in results}
        return {**made, **rest}

    def _lacks(self, roots: Collection[Any], tensor: Tensor | None = None) -> bool:
        from normgen.ir.nodes import walk

        axes = {axis for node in walk(*roots) for axis in node.axes}
        return not self.empty.isdisjoint(axes | (tensor.axes if tensor is not None else frozenset()))

    def _nothing(self, tensor: Tensor) -> Any:
        shape = [self.extents[axis] for axis in tensor.order]
        return np.full(shape, IDENTITY[self.spread.parts.get(tensor.name, "sum")])


def _tensor(value: Any, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(value).reshape(shape)).to(TYPES[dtype])
