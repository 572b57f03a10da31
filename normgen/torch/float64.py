"""Steps in float64 on the CPU, by the meaning of their programs: what gradients are checked with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normgen.launching.layout import REST, Lengths, shape_of, solve
from normgen.package.direction import Direction
from normgen.runtime.calls.binding import check_reductions, result_dtype
from normgen.torch.calls import Wanted
from normgen.torch.dtypes import NAMES, TYPES

if TYPE_CHECKING:
    from normgen.ir.program import Program


@dataclass(frozen=True, eq=False)
class Interpreter:
    """One direction of a norm as its program states it, on CPU tensors. Kernels' f32 is float64."""

    direction: Direction
    program: Program

    def run(
        self, given: Mapping[str, torch.Tensor], scalars: Mapping[str, float], wanted: Wanted
    ) -> tuple[torch.Tensor | None, ...]:
        """The results in order, None for those that are not wanted. States are updated in place. A call
        without elements has results of zeros, as with kernels."""
        records = self.direction.operands
        lengths = solve([(records[name], tuple(t.shape)) for name, t in given.items()], self.direction.axes)
        check_reductions(self.direction, lengths)
        dtypes = element_types({name: t.dtype for name, t in given.items()}, wanted)
        empty = 0 in lengths.axes.values()
        made = self._zeros(lengths) if empty else self._values(given, scalars, wanted, lengths, dtypes)
        found: list[torch.Tensor | None] = []
        for name, record in self.direction.results.items():
            if name not in wanted.names:
                found.append(None)
                continue
            # Shaped before it is a tensor: a view may not be modified in place by who asked for it.
            value = np.ascontiguousarray(made[name]).reshape(shape_of(record, lengths))
            found.append(torch.from_numpy(value).to(TYPES[dtype_of(self.direction, name, dtypes)]))
        return tuple(found)

    def _values(
        self,
        given: Mapping[str, torch.Tensor],
        scalars: Mapping[str, float],
        wanted: Wanted,
        lengths: Lengths,
        dtypes: Mapping[str, str],
    ) -> dict[str, Any]:
        """The results that are wanted, by name. States are updated."""
        from normgen.ir.reference import evaluate

        records = self.direction.operands
        values = {
            name: array_of(t).reshape([lengths.axes[axis] for axis in records[name].axes])
            for name, t in given.items()
        }
        for name in self.direction.mentioned - given.keys():
            values[name] = np.zeros([lengths.axes[axis] for axis in records[name].axes])
        results = tuple(result for result in self.program.results if result.tensor.name in wanted.names)
        updates = tuple(update for update in self.program.updates if update.state in given)
        made = evaluate(
            replace(self.program, results=results, updates=updates),
            values,
            {REST: 1, **lengths.axes},
            scalars,
            rounding=True,
            dtypes=dtypes,
        )
        for update in updates:
            state = given[update.state]
            state.copy_(torch.from_numpy(made[f"update:{update.state}"].reshape(state.shape)))
        return made

    def _zeros(self, lengths: Lengths) -> dict[str, Any]:
        return {name: np.zeros(shape_of(record, lengths)) for name, record in self.direction.results.items()}


def array_of(tensor: torch.Tensor) -> Any:
    """The values of a tensor, in float64."""
    return tensor.to(torch.float64).resolve_neg().numpy()


def element_types(given: Mapping[str, torch.dtype], wanted: Wanted) -> dict[str, str]:
    """The names of element types: of the operands of a call, and of those that it is told of alone."""
    return {name: NAMES[dtype] for name, dtype in (*given.items(), *wanted.types)}


def dtype_of(direction: Direction, result: str, dtypes: Mapping[str, str]) -> str:
    """The element type of a result: beside an f64 operand, f32 is what is like an f32 operand."""
    record = direction.results[result]
    found = result_dtype(direction, record, dtypes)
    like = record.source if record.role == "gradient" else record.like
    return "f64" if found == "f32" and "f64" in dtypes.values() and like not in dtypes else found
