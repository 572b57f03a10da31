"""How many bytes the launches of a pass move: the figures that the checked host executor measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normgen.measure.arithmetic import operand_bytes

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.runtime.planning.choose import Alternative


@dataclass(frozen=True, slots=True)
class Bytes:
    """`moved` by the launches, by array; `least`: each operand and each result of the pass once."""

    moved: dict[str, int]
    least: int

    @property
    def total(self) -> int:
        """What is moved in all."""
        return sum(self.moved.values())


def count_bytes(alternative: Alternative, binding: Binding) -> Bytes:
    """What a strategy moves in a call.

    A value that all rows share is counted once for each kernel, since it stays in the cache.
    """
    moved: Counter[str] = Counter()
    for each in alternative.kernels:
        moved.update(each.cost.moved)
    return Bytes(dict(moved), sum(operand_bytes(binding).values()))
