"""Ranks as a norm sees them: their number, and a way to gather an array from each.

A call of one rank is a generator: it yields an array for all ranks, and is sent the arrays that all ranks
have yielded. So the same call serves processes and simulated ranks.
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
    """The ranks that an axis is sharded over, as one of them sees them.

    `gather` takes a NumPy array and returns the arrays of all ranks, which have the same shape and element
    type, in the order of ranks: an array of shape [size, *array.shape]. All ranks call it in the same order.
    """

    @property
    def rank(self) -> int:
        """The index of this rank, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def gather(self, array: Any, /) -> Any:
        """The arrays of all ranks."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """`size` ranks in one process, for tests and experiments: calls take and return lists, with an array for
    each rank."""

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"Simulated takes a number of ranks, at least 1, but got {self.size!r}")


class PeerFault(RuntimeError):
    """Another rank could not make the call. The reason is reported on that rank."""


def run_alone(call: RankCall, ranks: Ranks) -> Any:
    """The result of a call of this rank, which exchanges with the others by `ranks.gather`."""
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
                f"gather returned {answer.dtype} of shape {answer.shape} for {told.dtype} of shape "
                f"{told.shape}: it must stack the arrays of all {ranks.size} ranks along a new first "
                "dimension"
            )


def run_together(calls: Sequence[RankCall]) -> list[Any]:
    """The results of the calls of all ranks, which run in lockstep. If some fail, raises the first error that
    is not a consequence of another rank's."""
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
    """The only group of ranks that all axes are spread over. ValueError or TypeError if there is none."""
    if not shard:
        raise ValueError("shard names no axis: write shard={'D': ranks}")
    if len(shard) > MOST_AXES:
        raise ValueError(f"shard names {len(shard)} axes, and at most {MOST_AXES} are supported")
    (first, ranks), *others = shard.items()
    for axis, group in shard.items():
        if not isinstance(group, Simulated) and not all(
            hasattr(group, n) for n in ("rank", "size", "gather")
        ):
            kind = type(group).__name__
            raise TypeError(
                f"shard: {axis} is sharded over a {kind}: pass normgen.Simulated(n), or an object with rank, "
                "size and gather(array)"
            )
    for axis, group in others:
        if group is not ranks and group != ranks:
            raise ValueError(f"{first} and {axis} are sharded over different ranks: shard one of them")
    return ranks
