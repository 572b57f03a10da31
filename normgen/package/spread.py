"""A direction of a norm whose axes are spread over ranks, as local programs that are packages of their own.

What a call does of these is in `runtime/ranks`: each round and an exchange of what it told, then `merge` and
`apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from normgen.package.records import AxisRecord, Package, TensorRecord


@dataclass(frozen=True, slots=True)
class PairRecord:
    """A dimension that is two axes, of which each rank has a run, whole groups or not. `groups`: how many
    there are, and `members`: how many elements each has, where the spec fixes that; it fixes one at least.
    `shared`: whether ranks have some of the groups each in tensors of groups alone, and not all."""

    outer: str
    inner: str
    groups: int | None
    members: int | None
    shared: bool

    @property
    def name(self) -> str:
        """How a declaration writes it: `(G C)`."""
        return f"({self.outer} {self.inner})"

    @property
    def axes(self) -> tuple[str, str]:
        """Both axes."""
        return self.outer, self.inner


@dataclass(frozen=True, slots=True)
class GroupsRecord(AxisRecord):
    """The axis of the groups that a rank has in tensors of groups alone, where it has those that begin in its
    run of a dimension: that of `along` over `members`, rounded up."""

    along: str = ""
    members: int = 1

    def length(self, known: Mapping[str, int]) -> int | None:
        """Its length, where that of the run is known."""
        return -(-known[self.along] // self.members) if self.along in known else None


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A local program. `package` has a forward alone, and is None where there is nothing to compute.

    `told`: the results that are exchanged, each with the part that a rank has of its value: of a sum, a
    maximum or a minimum. `handed`: those that later stages read. `concerned`: of each result and updated
    state, the spread axes that it is made of elements along: a rank that has none of these computes nothing.
    """

    package: Package | None
    told: tuple[tuple[TensorRecord, str], ...] = ()
    handed: tuple[str, ...] = ()
    concerned: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class NumberRecord:
    """A tensor that holds how many elements `over` axes of a pair each rank has: over both, or over one for
    each element along the other."""

    name: str
    pair: tuple[str, str]
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpreadRecord:
    """One direction whose `axes` are spread.

    `placements`: whether a rank has a "shard", the "whole" or a "part" of the sum of each result, and of each
    updated state as `update:<state>`. `sizes`, `lengths`: the number that a stage takes for the global length
    of an axis, and for that on a rank. `counts`: the tensor that holds the lengths on all ranks. `own`: what
    `apply` calls a tensor that was exchanged, as this rank told it. `numbers`: where `axes` are those of
    dimensions that are two axes, the tensors that hold how much of these ranks have.
    """

    axes: tuple[str, ...]
    rounds: tuple[StageRecord, ...]
    merge: StageRecord
    apply: StageRecord
    placements: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, str], ...]
    lengths: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...] = ()
    numbers: tuple[NumberRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldRecord:
    """One direction whose axes are spread, with a kernel that tells the other ranks what they need.

    `package` has a forward alone. `channel`: the operand that says where ranks exchange. `told`: what they
    do, of which the kernel tells the values of each row. `counts`: (a number that it takes, a spread axis, a
    rank): the length of the axis on that rank. `rest`: what is accumulated over rows, of results of the
    kernel that it has `handed`.
    """

    package: Package
    channel: str
    told: tuple[TensorRecord, ...]
    counts: tuple[tuple[str, str, int], ...]
    handed: tuple[str, ...] = ()
    rest: StageRecord | None = None
