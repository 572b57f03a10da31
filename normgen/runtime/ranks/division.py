"""Runs of a dimension `(G C)`, of any length on each rank: where they begin and end among groups of channels.

A run is at most three blocks of so many groups by so many channels, in this order:

    3 groups of 4, runs of 5, 4 and 3      rank 0:  group 0, whole; 1 channel of group 1
                                           rank 1:  3 channels of group 1; 1 channel of group 2
                                           rank 2:  3 channels of group 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from normgen.locks import cached_property
from normgen.package.spread import NumberRecord, PairRecord

BLOCKS = 3  # of a run: the rest of a group, whole groups, the beginning of a group


@dataclass(frozen=True, slots=True)
class Span:
    """So many elements from one on."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """One past the last element."""
        return self.start + self.length

    def within(self, other: Span) -> Span:
        """The same, counted from where the other begins."""
        return Span(self.start - other.start, self.length)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a run: where it lies in that, which groups it has elements of, and which elements of each."""

    run: Span
    groups: Span
    members: Span


@dataclass(frozen=True)
class Division:
    """The runs that ranks have of a dimension of `groups` of `members` each, as `divided` makes them."""

    pair: PairRecord
    lengths: tuple[int, ...]
    groups: int
    members: int

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.lengths)

    @property
    def _ends(self) -> list[int]:
        """Where runs begin and end."""
        return [0, *np.cumsum(self.lengths).tolist()]

    @cached_property
    def blocks(self) -> tuple[tuple[Block, ...], ...]:
        """The three blocks of each rank, of which some may be empty."""
        return tuple(self._blocks(a, b - a) for a, b in pairwise(self._ends))

    @cached_property
    def touched(self) -> tuple[Span, ...]:
        """The groups of which each rank has elements."""
        return tuple(_hull([block.groups for block in each if block.run.length]) for each in self.blocks)

    @cached_property
    def straddles(self) -> bool:
        """Whether some group is not on one rank alone, or ranks have other numbers of groups where they
        should have the same one."""
        if self.pair.groups is not None:
            return len(set(self.lengths)) > 1 or bool(self.groups % self.ranks)
        return any(length % self.members for length in self.lengths)

    @cached_property
    def owned(self) -> tuple[Span, ...]:
        """The groups that each rank has in tensors of groups alone: all, or where these are shared, as many
        as others of a fixed number of groups; those that begin in its run where the number is open."""
        if not self.pair.shared:
            return (Span(0, self.groups),) * self.ranks
        if self.pair.groups is None:
            begun = [-(-end // self.members) for end in self._ends]
            return tuple(Span(a, b - a) for a, b in pairwise(begun))
        share = self.groups // self.ranks
        return tuple(Span(rank * share, share) for rank in range(self.ranks))

    @property
    def whole_groups(self) -> tuple[int, ...]:
        """How many groups each rank has, where runs are whole groups."""
        if self.pair.groups is not None:
            return (self.groups // self.ranks,) * self.ranks
        return tuple(length // self.members for length in self.lengths)

    @property
    def all_owned(self) -> bool:
        """Whether each rank has all groups in these tensors."""
        return all(own.length == self.groups for own in self.owned)

    def numbers(self, record: NumberRecord, slots: int) -> np.ndarray[Any, Any]:
        """What a tensor of numbers holds: [ranks * slots], and the axis that is kept. `slots`: of each rank,
        1 or one for each block."""
        made = np.zeros((self.ranks * slots, self.groups, self.members), np.float32)
        for rank, blocks in enumerate(self.blocks):
            for k, block in enumerate(blocks):
                groups, members = block.groups, block.members
                at = rank * slots + min(k, slots - 1)
                made[at, groups.start : groups.end, members.start : members.end] = 1
        summed = tuple(place for place, axis in enumerate(self.pair.axes, 1) if axis in record.over)
        return np.asarray(made.sum(summed))

    def _blocks(self, start: int, length: int) -> tuple[Block, ...]:
        members = self.members
        group, within = divmod(start, members) if members else (0, 0)
        head = min(-within % members, length) if members else 0
        whole = (length - head) // members if members else 0
        tail = length - head - whole * members
        after = group + (1 if head else 0)
        return (
            Block(Span(0, head), Span(group, 1 if head else 0), Span(within, head)),
            Block(Span(head, whole * members), Span(after, whole), Span(0, members if whole else 0)),
            Block(Span(length - tail, tail), Span(after + whole, 1 if tail else 0), Span(0, tail)),
        )


def divided(pair: PairRecord, lengths: Sequence[int]) -> Division:
    """How ranks with runs of these lengths have the groups. ValueError where all runs together are not whole
    groups."""
    total = sum(lengths)
    axis, known = (pair.outer, pair.groups) if pair.groups is not None else (pair.inner, pair.members)
    assert known is not None, "one of both is fixed"
    if total % known or (pair.groups and pair.members and total != pair.groups * pair.members):
        runs = "+".join(map(str, lengths))
        raise ValueError(
            f"{pair.name} is {total} over all ranks ({runs}), which is not a multiple of {axis} = {known}"
        )
    groups, members = (known, total // known) if pair.groups is not None else (total // known, known)
    return Division(pair, tuple(lengths), groups, members)


def divisions(pairs: Sequence[PairRecord], along: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Division, ...]:
    """Those of all dimensions. `along`: of each, by name, the lengths on all ranks."""
    return tuple(divided(pair, along[pair.name].tolist()) for pair in pairs)


def _hull(spans: Sequence[Span]) -> Span:
    if not spans:
        return Span(0, 0)
    start = min(span.start for span in spans)
    return Span(start, max(span.end for span in spans) - start)
