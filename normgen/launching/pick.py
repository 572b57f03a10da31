"""Which of many schedules a kernel takes: the one that was measured for nearly as many rows, else the one
with the least predicted time.

Calls that differ in the number of rows, columns, images or segments alone share schedules. Such counts fall
into buckets, one for each power of four, and neighbouring buckets have one schedule unless another gains
enough. So a kernel has few texts in batches of all sizes. The choice depends on nothing but the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, pairwise
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from normgen.launching.call import Call
from normgen.launching.family import LaunchFamily
from normgen.launching.knobs import distinct
from normgen.launching.model import lacking, microseconds
from normgen.launching.quantities import Array
from normgen.launching.table import measured, nearest

K = TypeVar("K")
S = TypeVar("S")
Known = tuple[tuple[int, S], ...]  # counts, each with a schedule

# Each is for counts from half as many to less than twice as many.
BUCKETS: tuple[int, ...] = tuple(4**power for power in range(11))
# Of a kernel in calls that differ in the count alone: with a text for blocks that have a multiprocessor each,
# at most four texts.
MOST_SCHEDULES = 3
_WORTH = 1.05  # a further schedule, and so another text: what it must gain, over all buckets together
_MOST_BYTES = 1 << 34  # that a call of a bucket moves
_NEVER = 1e9  # microseconds
# Of its time, what counts more of a schedule for each register that its threads are expected to lack. Timings
# are all of one architecture, and have most of that in them there.
_LACKING, _LACKING_ELSEWHERE, _TIMED = 0.005, 0.02, 90.0


class Space(ABC, Generic[S]):
    """The schedules of a kernel in calls that differ in one count alone: of rows, columns, images or
    segments. Spaces that are equal have the same schedules."""

    @property
    def counts(self) -> Sequence[int]:
        """The buckets of this count."""
        return (1,)

    @abstractmethod
    def starts(self) -> Sequence[S]:
        """The schedules that are looked at first."""

    def near(self, start: S) -> Iterable[S]:
        """A start, and its neighbours that may run."""
        return (start,)

    @abstractmethod
    def times(self, found: Sequence[S], counts: Sequence[int]) -> Array:
        """What schedules are compared by (see `compared`), for each count."""


@dataclass(frozen=True, slots=True)
class Ranges(Generic[S]):
    """How a kernel runs, whatever the count: by the first schedule below the first of `ends`, and so on; by
    the last from there on."""

    schedules: tuple[S, ...]
    ends: tuple[int, ...] = ()

    def of(self, count: int) -> S:
        """How it runs for so many."""
        ranges = zip(self.ends, self.schedules, strict=False)
        return next((schedule for end, schedule in ranges if count < end), self.schedules[-1])


def pick(family: LaunchFamily[K, S], kernel: K, call: Call, space: Space[S], count: int) -> S | None:
    """The schedule that was measured for a count of the same bucket, else the predicted one; None where there
    is none. (What was measured needs no prediction, so that such calls are planned soonest.)"""
    known = _measured(family, kernel, call)
    own = nearest([each for each in known if together(count, each[0])], count)
    if own is not None:
        return own
    found: Ranges[S] | None = predicted(space, known)
    return None if found is None else found.of(count)


def every(
    family: LaunchFamily[K, S], kernel: K, call: Call, space: Space[S]
) -> Iterator[tuple[S, float, float]]:
    """The schedules that `pick` takes for any count: each with the least count for which it may, and the
    first beyond."""
    known = _measured(family, kernel, call)
    for count, schedule in known:
        bucket = bucket_of(count)
        yield schedule, bucket // 2, inf if bucket == BUCKETS[-1] else 2 * bucket
    found: Ranges[S] | None = predicted(space, known)
    if found is not None:
        yield from zip(found.schedules, (0, *found.ends), (*found.ends, inf), strict=True)


def _measured(family: LaunchFamily[K, S], kernel: K, call: Call) -> Known[S]:
    """The counts for which schedules were measured, each with the schedule, if it may run."""
    key, _ = family.measured_as(kernel, call) or ("", 0)
    found = measured(call.device.arch, key, family.schedule)
    settled = ((count, family.settle(kernel, call, each)) for count, each in found)
    return tuple((count, each) for count, each in settled if isinstance(each, family.schedule))


@lru_cache(maxsize=4096)
def predicted(space: Space[Any], known: Known[Any] = ()) -> Ranges[Any] | None:
    """The schedules with the least predicted times: a start for each range of buckets, and then the neighbour
    of it that does best in its range. `known`: what was measured, which is taken in its bucket."""
    counts, fixed = space.counts, dict(known)
    starts = list(dict.fromkeys((*space.starts(), *fixed.values())))
    if not starts:
        return None
    us = space.times(starts, counts)
    for count, schedule in known:
        place = next((place for place, each in enumerate(counts) if count < 2 * each), -1)
        us[place] = np.where(np.arange(len(starts)) == starts.index(schedule), 1.0, _NEVER)
    schedules, ends = [], []
    for begin, end, place in ranges_of(us, MOST_SCHEDULES):
        start = starts[place]
        near = [start] if start in fixed.values() else list(space.near(start))
        schedules.append(near[least_regret(space.times(near, counts[begin:end]))])
        ends.append(2 * counts[end - 1])
    return Ranges(tuple(schedules), tuple(ends[:-1]))


def compared(quantities: Mapping[str, Array], schedules: int) -> Array:
    """What schedules are compared by, [counts, schedules]: predicted microseconds, and more of those of which
    registers are expected to be spilled."""
    us = microseconds(quantities).reshape(-1, schedules)
    timed = np.asarray(quantities["architecture"]) == _TIMED
    return us * (1 + np.where(timed, _LACKING, _LACKING_ELSEWHERE) * lacking(quantities, schedules))


def buckets_of(moved: int) -> tuple[int, ...]:
    """The buckets of what moves so many bytes each, as far as calls may have so many."""
    return tuple(count for count in BUCKETS if count * moved <= _MOST_BYTES) or BUCKETS[:1]


def bucket_of(count: int) -> int:
    """The bucket of a count: the nearest one."""
    return next((bucket for bucket in BUCKETS[:-1] if count < 2 * bucket), BUCKETS[-1])


def together(count: int, known: int) -> bool:
    """Whether two counts are of one bucket. (Of the first, which may be open, nothing else is asked.)"""
    bucket = bucket_of(known)
    return count >= bucket // 2 and (bucket == BUCKETS[-1] or count < 2 * bucket)


class Range(NamedTuple):
    """Buckets that share a schedule: the place of the first, that after the last, and that of the
    schedule."""

    begin: int
    end: int
    schedule: int


def ranges_of(microseconds: Array, most: int) -> list[Range]:
    """The ranges, at most so many, in which the product of all regrets is least: the time of what is taken
    over the least. A further range has to gain `_WORTH`.

    `microseconds`: [buckets, schedules]."""
    count = len(microseconds)
    regret = np.log(microseconds / microseconds.min(1, keepdims=True))
    spans = {(a, b): regret[a:b].sum(0) for a, b in combinations(range(count + 1), 2)}
    least = {span: float(each.min()) for span, each in spans.items()}

    def cost(cuts: tuple[int, ...]) -> float:
        return len(cuts) * float(np.log(_WORTH)) + sum(least[span] for span in pairwise((0, *cuts, count)))

    divisions = chain.from_iterable(combinations(range(1, count), cuts) for cuts in range(most))
    taken = min(divisions, key=cost)
    return [Range(*span, int(spans[span].argmin())) for span in pairwise((0, *taken, count))]


def least_regret(microseconds: Array) -> int:
    """The place of the schedule of which the product of regrets is least."""
    return int(np.log(microseconds).sum(0).argmin())


def around(usual: S | None, space: Space[S]) -> Iterator[S]:
    """What is offered of a kernel, each once: what it takes by itself, what else it may start from, and the
    neighbours of each. Most callers want only the first, so nothing else is made before it is asked for."""

    def every(usual: S) -> Iterator[S]:
        yield usual
        yield from (first := space.starts())
        yield from chain.from_iterable(map(space.near, (usual, *first)))

    return iter(()) if usual is None else distinct(every(usual))
