"""Bytes moved by the launches of a pass: what the checked host executor measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normgen.counting import bytes_text
from normgen.measure.arithmetic import operand_bytes

if TYPE_CHECKING:
    from normgen.launching.launch import Binding
    from normgen.runtime.planning.choose import Alternative


@dataclass(frozen=True, slots=True)
class Bytes:
    """`moved` by the launches, per array; `least`: each operand and each result once."""

    moved: dict[str, int]
    least: int

    @property
    def total(self) -> int:
        """All that is moved."""
        return sum(self.moved.values())

    @property
    def text(self) -> str:
        """The total, also in terms of the least."""
        return f"{bytes_text(self.total)} moved, {self.total / max(1, self.least):.3f} times the minimum"


def count_bytes(alternative: Alternative, binding: Binding) -> Bytes:
    """The bytes that a strategy moves in a call.

    A value that all rows share counts once per kernel, since it stays in the cache.
    """
    moved: Counter[str] = Counter()
    for each in alternative.kernels:
        moved.update(each.moved)
    return Bytes(dict(moved), sum(operand_bytes(binding).values()))
