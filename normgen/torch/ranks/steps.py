"""Steps of norms whose axes are spread: each rank computes its shards, and they exchange a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from normgen.arrays.torch import resolved
from normgen.launching.layout import shape_of
from normgen.runtime.ranks.direction import Run, SpreadDirection
from normgen.runtime.ranks.group import run_alone
from normgen.runtime.ranks.stages import HostMemory, LocalCall
from normgen.torch import layouts
from normgen.torch.calls import Numbers, Tensors, Wanted
from normgen.torch.dtypes import NAMES
from normgen.torch.errors import check_host, check_kinds, check_numbers, check_run
from normgen.torch.float64 import dtype_of, element_types
from normgen.torch.ranks.float64 import interpreted
from normgen.torch.ranks.group import ProcessRanks, TensorMemory
from normgen.torch.steps import Outline, Step, without_data

if TYPE_CHECKING:
    from normgen.codegen.ranks import Spread


class SpreadStep(Step):
    """A direction of a norm on one of the ranks that its axes are spread over. All ranks make its calls, in
    the same order."""

    def __init__(
        self,
        outline: Outline,
        spread: SpreadDirection,
        ranks: ProcessRanks,
        cut: Callable[[tuple[str, ...]], Spread],
    ) -> None:
        """`spread`: the direction on one rank; `cut`: the local programs that give these results."""
        super().__init__(replace(outline, direction=spread.direction))
        self.spread, self.ranks = spread, ranks
        self._cut = cut

    def _run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        if without_data(tensors):
            return self.imagined(tensors, wanted)
        types = {tensor.dtype for tensor in tensors if tensor is not None} | set(dict(wanted.types).values())
        asked = self._in_float64 if torch.float64 in types else self._by_kernels
        self.ranks.meet(self.spread.title)
        made = run_alone(self.spread.call(lambda: asked(tensors, numbers, wanted)), self.ranks)
        found = tuple([made.get(name) for name in self.results])
        return self.laid(found, layouts.results_last(self.direction, tensors))

    def _by_kernels(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[LocalCall, Run]:
        check_run(self.direction.reads, tensors)
        given = tuple([each if each is None else resolved(each.detach()) for each in tensors])
        request = self.spread.arguments.request(given, self._named(numbers))
        types = tuple((name, NAMES[dtype]) for name, dtype in wanted.types)
        device = next(each.device for each in given if each is not None)
        return self.spread.asked(request._replace(wanted=wanted.names, types=types), TensorMemory(device))

    def _in_float64(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[LocalCall, Run]:
        reads, records = self.direction.reads, self.direction.results
        check_kinds(reads, tensors)
        check_numbers(self.attrs, numbers)
        given = {name: each.detach() for name, each in zip(reads, tensors, strict=True) if each is not None}
        check_host(given)
        lengths = self.spread.lengths({name: tuple(each.shape) for name, each in given.items()})
        types = element_types({name: each.dtype for name, each in given.items()}, wanted)
        call = LocalCall(
            operands={name: given.get(name) for name in reads},
            numbers=self._named(numbers),
            like=None,
            memory=HostMemory(),
            lengths=lengths,
            results={
                n: (shape_of(records[n], lengths), dtype_of(self.direction, n, types)) for n in wanted.names
            },
            types=types,
            idle=False,
        )
        made = self._cut(self.spread.computed(call))
        return call, lambda local, every: interpreted(self.direction, made, local, every)

    def _named(self, numbers: Numbers) -> dict[str, float]:
        return {attr.name: number for attr, number in zip(self.attrs, numbers, strict=True)}
