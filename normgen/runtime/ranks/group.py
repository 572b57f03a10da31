"""What ranks are to a norm: who there is, and a way to have what each of them has.

A call of one rank is a generator: it yields an array that all ranks are to have, and is sent what all of them
have yielded. So one call serves ranks that are processes and ranks that are simulated.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

MOST_AXES = 4
# Yields an array; is sent those of all ranks, with a first axis of ranks; returns what a rank is to have.
RankCall = Generator[Any, Any, Any]


class Ranks(Protocol):
    """The ranks that an axis is spread over, as one of them sees them.

    `gather` takes a NumPy array and returns those that all ranks gave, which have the same shape and element
    type, in the order of ranks: an array of shape [size, *array.shape]. All ranks call it in the same order.
    """

    @property
    def rank(self) -> int:
        """Which one this is, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather(self, array: Any, /) -> Any:
        """The arrays that all ranks give."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """So many ranks in one process, for tests and to try things out: calls take and return lists, with an
    array for each rank."""

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"Simulated takes a number of ranks, at least 1, not {self.size!r}")


class PeerFault(RuntimeError):
    """Another rank could not make the call, for a reason that is its own."""


def run_alone(call: RankCall, ranks: Ranks) -> Any:
    """The result of a call of this rank, which meets the others in `ranks.gather`."""
    answer = None
    while True:
        try:
            told = call.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = ranks.gather(told)
        if isinstance(told, np.ndarray):
            answer = np.asarray(answer)
        if answer.shape != (ranks.size, *told.shape) or answer.dtype != told.dtype:
            raise ValueError(
                f"gather gave {answer.dtype} of shape {answer.shape} for {told.dtype} of shape {told.shape}: "
                f"it must give what all {ranks.size} ranks gave, one after the other"
            )


def run_together(calls: Sequence[RankCall]) -> list[Any]:
    """The results of the calls of all ranks, made in turns. Where some fail, what the first of them raised
    that did not fail for another's sake."""
    answer = None
    while True:
        told, done, faults = [], [], []
        for call in calls:
            try:
                told.append(call.send(answer))
            except StopIteration as stop:
                done.append(stop.value)
            except Exception as fault:
                faults.append(fault)
        if faults:
            raise next((fault for fault in faults if not isinstance(fault, PeerFault)), faults[0])
        if done:
            return done
        answer = np.stack(told)


def checked_ranks(shard: Mapping[str, Any]) -> Any:
    """The one group of ranks that all axes are spread over. ValueError or TypeError where it is none."""
    if not shard:
        raise ValueError("shard names no axis: write shard={'D': ranks}")
    if len(shard) > MOST_AXES:
        raise ValueError(f"shard names {len(shard)} axes: spread {MOST_AXES} at most")
    (first, ranks), *others = shard.items()
    for axis, group in shard.items():
        if not isinstance(group, Simulated) and not all(
            hasattr(group, n) for n in ("rank", "size", "gather")
        ):
            kind = type(group).__name__
            raise TypeError(
                f"shard: {axis} is spread over a {kind}: give normgen.Simulated(n), or an object with rank, "
                f"size and gather(array)"
            )
    for axis, group in others:
        if group is not ranks and group != ranks:
            raise ValueError(f"{first} and {axis} are spread over different ranks: spread one of them")
    return ranks
