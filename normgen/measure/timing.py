"""How calls are timed: the one method, whatever is called and through whatever package.

Buffers rotate, so caches are cold. Where a clock can record calls into a graph, the graph is replayed between
marks; elsewhere calls are queued between marks while the device is kept busy. Either way the marks see the
device alone, however slow the host, and the clock around the queueing sees the host alone. All figures are
medians over batches.

What others left in the second-level cache stays there while a kernel asks for streaming only, and slows it.
So the cache is filled with such lines first, and no figure depends on what was measured before.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

BATCHES = 31
FEW = 7  # batches that tell variants apart
GRAPH_US = 1500.0  # of a graph, so that what surrounds it does not count
LARGEST_GRAPH = 1000
QUEUED_US = 500.0
LARGEST_BATCH = 20  # calls that are queued at a time: the queue must hold all of their launches
FIRST_WAIT_US = 50.0
LONGEST_WAIT_US = 60_000.0
SECOND_US = 1e6
ASKED = 4  # calls that tell how long others take
LEAST_US = 1e-3  # of a turn: what is faster counts as this
CROWD = 4  # times the second-level cache that are read and written to fill it

Call = Callable[[int], object]


class CannotRecord(Exception):
    """The calls cannot be made a graph; the message says why."""


class Clock(Protocol):
    """One stream of a device, and marks on it."""

    @property
    def stream(self) -> int:
        """The stream's handle; what is timed is queued there."""

    def mark(self) -> Any:
        """A mark after all that is queued now."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has come to a mark."""

    def microseconds(self, begin: Any, end: Any) -> float:
        """The device's time between two marks that it has passed."""

    def hold(self, microseconds: float) -> None:
        """Queue something that keeps the device busy for about so long."""

    def crowd(self) -> None:
        """Queue what fills the second-level cache with lines that nobody asks for again."""

    def wait(self) -> None:
        """Wait until all that is queued is done."""

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """What queues all that `calls` queues, as one graph. CannotRecord where that fails."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over batches, in microseconds a call: on the device, and on the host that queued it.

    `method`: graph or events; `why`: the reason, where calls could not be recorded.
    """

    us: float
    host_us: float
    method: str
    why: str = ""


def measure(clock: Clock, call: Call, sets: int, batches: int = BATCHES) -> Timing:
    """`call(i)` queues the i-th call on the set of buffers `i % sets`.

    Whatever a first call does once, compiling and allocating, is done before anything is timed. Raises what
    the call raises.
    """
    return Timer(clock, call, sets, batches).round()


class Timer:
    """A call that is ready to be timed, as often as asked: so that several can be timed in turn.

    Making it compiles, allocates and, where the clock can, records the graph. `batches`: of each round.
    """

    def __init__(self, clock: Clock, call: Call, sets: int, batches: int = BATCHES) -> None:
        self._clock, self._call, self._batches = clock, call, batches
        self._first = 2 * sets + 2  # of the calls that are timed
        for i in range(self._first):
            call(i)
        clock.wait()
        with _no_collection():
            clock.crowd()
            self._queued = _queued(clock, call, self._first, batches)
            self._count = graph_calls(self._queued.us, sets)
            self._replay: Callable[[], None] | None = None
            self._why = ""
            try:
                self._replay = clock.record(lambda: _run(call, self._count))
            except CannotRecord as fault:
                self._why = str(fault)

    def round(self) -> Timing:
        """The medians of one round of batches."""
        with _no_collection():
            if self._replay is None:
                queued = _queued(self._clock, self._call, self._first, self._batches)
                return Timing(queued.us, queued.host_us, "events", self._why)
            us = _replayed(self._clock, self._replay, self._batches) / self._count
            return Timing(us, self._queued.host_us, "graph")


def in_turn(timers: Mapping[str, Timer], rounds: int) -> dict[str, list[Timing]]:
    """The rounds of each timer, one timer after the other in every round.

    What drifts while they run, the clock of the device for one, then meets all of them alike.
    """
    made: dict[str, list[Timing]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            made[name].append(timer.round())
    return made


def spread(rounds: Sequence[Timing]) -> float:
    """The distance between the slowest and the fastest round, as a fraction of their median."""
    times = [timing.us for timing in rounds]
    return (max(times) - min(times)) / statistics.median(times)


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: it would count as the host's time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def graph_calls(us: float, sets: int) -> int:
    """How many calls of `us` microseconds a graph has: whole turns of the rotation, enough to be timed."""
    turns = min(ceil(GRAPH_US / max(us * sets, LEAST_US)), LARGEST_GRAPH // sets)
    return sets * max(1, turns)


def _run(call: Call, count: int) -> None:
    for i in range(count):
        call(i)


def _replayed(clock: Clock, replay: Callable[[], None], batches: int) -> float:
    """The median time of a replay. All are queued before the first begins."""
    replay()
    clock.crowd()
    clock.wait()
    clock.hold(FIRST_WAIT_US)
    marks = []
    for _ in range(batches):
        begin = clock.mark()
        replay()
        marks.append((begin, clock.mark()))
    clock.wait()
    return statistics.median(clock.microseconds(begin, end) for begin, end in marks)


def _queued(clock: Clock, call: Call, first: int, batches: int) -> Timing:
    """Batches of calls behind a kernel that keeps the device busy. A batch that the device reached before
    all of it was queued does not count: it is repeated behind a longer wait."""
    begin = time.perf_counter()
    for i in range(first, first + ASKED):
        call(i)
    host_us = (time.perf_counter() - begin) * SECOND_US / ASKED
    clock.wait()
    both_us = (time.perf_counter() - begin) * SECOND_US / ASKED
    size = max(2, min(LARGEST_BATCH, round(QUEUED_US / both_us)))
    wait_us, count = FIRST_WAIT_US + 2 * host_us * size, first + ASKED
    device: list[float] = []
    host: list[float] = []
    while len(device) < batches:
        taken, took = _batch(clock, call, count, size, wait_us)
        count += size
        if taken is None:
            if wait_us >= LONGEST_WAIT_US:
                raise RuntimeError(f"queueing {size} calls takes longer than {LONGEST_WAIT_US:.0f} us")
            wait_us *= 2
            continue
        device.append(taken / size)
        host.append(took / size)
    return Timing(statistics.median(device), statistics.median(host), "events")


def _batch(clock: Clock, call: Call, first: int, size: int, wait_us: float) -> tuple[float | None, float]:
    """The device's time for a batch, None where it was too early, and the host's time to queue it."""
    clock.hold(wait_us)
    begin = clock.mark()
    start = time.perf_counter()
    for i in range(first, first + size):
        call(i)
    took = (time.perf_counter() - start) * SECOND_US
    early = clock.passed(begin)
    end = clock.mark()
    clock.wait()
    return (None if early else clock.microseconds(begin, end)), took
