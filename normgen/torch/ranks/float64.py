"""Calls of a rank in float64 on the CPU, by the meaning of the local programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normgen.launching.layout import REST
from normgen.package.direction import Direction
from normgen.runtime.ranks.group import RankCall
from normgen.runtime.ranks.stages import IDENTITY, LocalCall
from normgen.torch.dtypes import TYPES
from normgen.torch.float64 import array_of

if TYPE_CHECKING:
    from normgen.codegen.ranks import Spread
    from normgen.ir.program import Program, Tensor

Values = dict[str, Any]


def interpreted(
    direction: Direction, spread: Spread, call: LocalCall, every: Mapping[str, np.ndarray[Any, Any]]
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
        direction: Direction,
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
        for name, record in direction.operands.items():
            shape = [own[axis] for axis in record.axes if axis in own]
            tensor = call.operands.get(name)
            if tensor is not None:
                self.hold[name] = array_of(tensor).reshape(shape)
            elif name in direction.mentioned:
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
