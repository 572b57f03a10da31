"""Which of many schedules is taken, by the microseconds that each is predicted to take.

Those that give the same bits are chosen together, by their regrets over how many rows, or columns, there may
be: so that each has the same bits in any batch. The rest follows from how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from normgen.launching.knobs import Knobs, distinct
from normgen.launching.model import lacking, microseconds
from normgen.launching.quantities import Array

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
    return min(BUCKETS, key=lambda bucket: max(bucket, count) / min(bucket, max(1, count)))


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


def around(usual: S, first: Sequence[S], near: Callable[[S], Iterable[S]]) -> Iterator[S]:
    """What is offered of a kernel, each once: what it takes by itself, what else it may start from, and the
    neighbours of each."""
    return distinct(chain([usual], first, chain.from_iterable(map(near, (usual, *first)))))


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
