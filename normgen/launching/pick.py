"""Which of many schedules a kernel takes: the one that was measured, else the one with the least predicted
time.

Those that give the same bits are chosen together, by their regrets over how many rows, columns, images or
segments there may be: so that each of these has the same bits in any batch. The rest follows from how many
there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from normgen.launching.call import Call
from normgen.launching.family import LaunchFamily
from normgen.launching.knobs import Knobs, bits_of, distinct
from normgen.launching.model import lacking, microseconds
from normgen.launching.quantities import Array
from normgen.launching.table import nearest

K = TypeVar("K")
S = TypeVar("S")

COUNTS = (1, 16, 256, 4096, 65536)  # in a batch, for which bits are chosen
# Of regrets for so many: what few take is for the most part a launch, which a few threads more hardly change.
_WEIGHTS = np.array([0.5, 0.7, 1.0, 1.2, 1.2])
BUCKETS: tuple[int, ...] = tuple(4**power for power in range(11))  # for which the other knobs are
# Of its time, what counts more of a schedule for each register that its threads are expected to lack. Timings
# are all of one architecture, and have most of that in them there.
_LACKING, _LACKING_ELSEWHERE, _TIMED = 0.005, 0.02, 90.0
_WORTH = 1.05  # a second schedule, and so another text: what it must gain somewhere
_MOST_BYTES = 1 << 34  # that a call moves, of those that bits are chosen for


class Space(ABC, Generic[S]):
    """The schedules of a kernel in calls that differ in one count alone: of rows, columns, images or
    segments. Spaces that are equal have the same schedules."""

    @property
    def counts(self) -> Sequence[int]:
        """How many there may be, for which bits are chosen."""
        return (1,)

    @property
    def usual(self) -> Space[S]:
        """The same space for as many multiprocessors as are usual: bits are chosen there, since calls may
        count on fewer. For those that there are they are chosen only where none of the schedules that have
        them may run on so few."""
        return self

    @abstractmethod
    def starts(self) -> Sequence[S]:
        """The schedules that are looked at first."""

    def near(self, start: S) -> Iterable[S]:
        """Those that give the bits of a start and may run."""
        return (start,)

    @abstractmethod
    def times(self, found: Sequence[S], counts: Sequence[int]) -> Array:
        """What schedules are compared by (see `compared`), for each count."""

    def start_times(self, found: Sequence[S], counts: Sequence[int]) -> Array:
        """What starts are compared by."""
        return self.times(found, counts)

    def bits(self, schedule: S) -> Knobs:
        """What of a schedule decides the bits of results."""
        return bits_of(schedule)


@dataclass(frozen=True, slots=True)
class Ways(Generic[S]):
    """How a kernel runs, whatever the count: `many`, or `few` where there are less than `below`."""

    many: S
    few: S
    below: int = 0

    def of(self, count: int) -> S:
        """How it runs for so many."""
        return self.few if count < self.below else self.many


def pick(family: LaunchFamily[K, S], kernel: K, call: Call, space: Space[S], size: int) -> S | None:
    """The schedule that was measured for the nearest count, if it may run, else the one with the least
    predicted time for nearly so many; None where there is none."""
    key, count = family.measured_as(kernel, call) or ("", 0)
    measured = nearest(call.device.arch, key, family.schedule, count)
    legal = None if measured is None else family.settle(kernel, call, measured)
    if isinstance(legal, family.schedule):
        return legal
    ways: Ways[S] | None = predicted(space, (size,))
    return None if ways is None else ways.many


@lru_cache(maxsize=4096)
def predicted(space: Space[Any], sizes: tuple[int, ...]) -> Ways[Any] | None:
    """The schedules with the least predicted time for these counts: of the starts with the bits that do best,
    the neighbours of the one for the least of them and of the one for the most."""
    for each in dict.fromkeys((space.usual, space)):
        if not (alike := _alike(each)):
            continue
        us = space.start_times(alike, sizes)
        firsts = dict.fromkeys(alike[int(us[end].argmin())] for end in (0, -1))
        near = list(distinct(chain.from_iterable(map(space.near, firsts))))
        if near:
            many, few, below = of_two(sizes, space.times(near, sizes))
            return Ways(near[many], near[few], below)
    return None


@lru_cache(maxsize=1024)
def _alike(space: Space[Any]) -> Sequence[Any]:
    """The starts with the bits of which the regrets over all counts are least."""
    found = space.starts()
    bits = [space.bits(each) for each in found]
    if len(set(bits)) < 2:
        return found
    return [found[place] for place in of_least_regret(bits, space.start_times(found, space.counts))]


def compared(quantities: Mapping[str, Array], schedules: int) -> Array:
    """What schedules are compared by, [counts, schedules]: predicted microseconds, and more of those of which
    registers are expected to be spilled."""
    us = microseconds(quantities).reshape(-1, schedules)
    timed = np.asarray(quantities["architecture"]) == _TIMED
    return us * (1 + np.where(timed, _LACKING, _LACKING_ELSEWHERE) * lacking(quantities, schedules))


def counts_of(moved: int) -> tuple[int, ...]:
    """How many there may be in a batch, where each moves so many bytes."""
    return tuple(count for count in COUNTS if count * moved <= _MOST_BYTES) or COUNTS[:1]


def bucket_of(count: int) -> int:
    """The bucket that is nearest to a number of rows or columns."""
    return next((bucket for bucket in BUCKETS if count <= 2 * bucket), BUCKETS[-1])


def of_least_regret(bits: Sequence[Knobs], microseconds: Array) -> list[int]:
    """Places of the schedules with those bits of which the regrets over all counts are least: as squares, so
    that large ones count most.

    `microseconds`: [counts, schedules]."""
    alike: dict[Knobs, list[int]] = {}
    for place, each in enumerate(bits):
        alike.setdefault(each, []).append(place)
    best = np.stack([microseconds[:, places].min(1) for places in alike.values()], 1)
    regret = np.log(best / best.min(1, keepdims=True)) * _WEIGHTS[: len(best), None]
    return list(alike.values())[int((regret**2).sum(0).argmin())]


def around(usual: S | None, space: Space[S]) -> Iterator[S]:
    """What is offered of a kernel, each once: what it takes by itself, what else it may start from, and the
    neighbours of each. Most callers want only the first, so nothing else is made before it is asked for."""

    def every(usual: S) -> Iterator[S]:
        yield usual
        yield from (first := space.starts())
        yield from chain.from_iterable(map(space.near, (usual, *first)))

    return iter(()) if usual is None else distinct(every(usual))


class Two(NamedTuple):
    """Places of the schedules for many and for few, where fewer are less than `below`; of one schedule both
    are the same."""

    many: int
    few: int
    below: int


def of_two(counts: Sequence[int], microseconds: Array) -> Two:
    """The one or two schedules of which the worst regret is least, each up to or from some number.

    `microseconds`: [counts, schedules]."""
    regret = microseconds / microseconds.min(1, keepdims=True)
    up_to, from_ = np.maximum.accumulate(regret), np.maximum.accumulate(regret[::-1])[::-1]
    alone = int(from_[0].argmin())
    both = [max(up_to[place - 1].min(), from_[place].min()) for place in range(1, len(counts))]
    if not both or from_[0, alone] < _WORTH * min(both):
        return Two(alone, alone, 0)
    turn = 1 + int(np.argmin(both))
    below = round((counts[turn - 1] * counts[turn]) ** 0.5)
    return Two(int(from_[turn].argmin()), int(up_to[turn - 1].argmin()), below)
