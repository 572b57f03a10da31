"""Calls of a rank whose runs straddle groups, by kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from normgen import arrays
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.runtime.ranks.division import Division
from normgen.runtime.ranks.group import run_alone
from normgen.runtime.ranks.stages import LocalCall
from normgen.runtime.ranks.straddling import Straddling
from normgen.torch.calls import Numbers, Tensors
from normgen.torch.ranks.group import ProcessRanks


class BlocksPlan:
    """The stages of calls that differ in values alone, for given runs on all ranks. `copied`: the results
    whose channels are to lie innermost."""

    def __init__(
        self,
        spread: SpreadDirection,
        call: LocalCall,
        divided: Sequence[Division],
        copied: frozenset[str],
    ) -> None:
        """`call`: one of them, without its tensors."""
        self._spread, self._call, self._divided, self.copied = spread, call, divided, copied
        self._stages = spread.stages(call, blocks=True)

    def run(self, ranks: ProcessRanks, tensors: Tensors, numbers: Numbers) -> tuple[Any, ...]:
        """The results of a call in order, None for those that are not wanted. What ranks tell goes by the
        backend of the group, in exchanges of their own: no kernel that tells rows has blocks."""
        direction = self._spread.direction
        given = {n: t.detach() for n, t in zip(direction.reads, tensors, strict=True) if t is not None}
        like = arrays.view(next(iter(given.values())))
        named = dict(zip((attr.name for attr in self._spread.package.attrs), numbers, strict=True))
        call = replace(self._call, operands=given, numbers=named, like=like)
        made = run_alone(Straddling(self._stages, direction, self._divided, call).run(), ranks)
        return tuple([made.get(name) for name in direction.results])
