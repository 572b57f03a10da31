"""Times of calls that the processes of a group make together.

The clock is `clock.TorchClock` on a GPU and `clock.HostClock` on the CPU. How often a call is repeated is
agreed on: a rank that repeated an exchange more often than others would wait for ever.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from clock import HostClock, TorchClock
from station import first_line

from normgen.measure.timing import Clock

ROUNDS = 3
WARM = 3  # calls before any is timed: they compile, allocate and, of normgen, agree on what graphs repeat
EAGER_US, FEWEST, MOST = 20_000.0, 5, 50  # of the calls of a round, and how many these are
GRAPH_US, SHORTEST, LONGEST = 10_000.0, 3, 20  # of a graph by its eager time, and its calls
REPLAYS = 10  # of a graph in a round, queued at once, so that only the first is waited for

Step = Callable[[], tuple[torch.Tensor, ...]]


class Differs(Exception):
    """A call failed on this or another rank; the message has the fault of the first."""


class Together:
    """What times calls on all ranks of the default group, and has them decide alike."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clock: Clock = TorchClock() if device.type == "cuda" else HostClock()

    def most(self, value: float) -> float:
        """The largest of what ranks give."""
        told = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return float(told)

    def first(self, value: float) -> float:
        """What rank 0 gives."""
        told = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(told, 0)
        return float(told)

    def attempt(self, what: Callable[[], Any]) -> Any:
        """What this returns; on all ranks `Differs` where it raises on any."""
        made, fault = None, ""
        try:
            made = what()
            self.clock.wait()
        except Exception as raised:
            fault = first_line(raised)
        if self.most(bool(fault)):
            every: list[str] = [""] * dist.get_world_size()
            dist.all_gather_object(every, fault)
            rank = next(k for k, each in enumerate(every) if each)
            raise Differs(every[rank] if all(every) else f"on rank {rank}: {every[rank]}")
        return made

    def eager(self, step: Step) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Microseconds per call, and the results of one. Calls are queued one after the other."""

        def warm() -> tuple[torch.Tensor, ...]:
            for _ in range(WARM - 1):
                step()
            return step()

        made = self.attempt(warm)
        guess = self._round(step, WARM)
        count = min(MOST, max(FEWEST, round(EAGER_US / guess)))
        return statistics.median(self._round(step, count) for _ in range(ROUNDS)), made

    def graph(self, step: Step, eager_us: float) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Microseconds per call of a CUDA graph of calls, and the results of its last. `Differs` where they
        cannot be captured."""
        count = min(LONGEST, max(SHORTEST, round(GRAPH_US / eager_us)))
        made: list[tuple[torch.Tensor, ...]] = []

        def calls() -> None:
            for _ in range(count):
                made[:] = [step()]

        replay = self.attempt(lambda: self.clock.record(calls))
        self._round(replay, 1)
        rounds = [self._round(replay, REPLAYS) / count for _ in range(ROUNDS)]
        return statistics.median(rounds), made[0]

    def _round(self, call: Callable[[], Any], count: int) -> float:
        """Microseconds per call on the slowest rank."""
        with _no_collection():
            self.clock.wait()
            dist.barrier()
            begin = self.clock.mark()
            for _ in range(count):
                call()
            end = self.clock.mark()
            self.clock.wait()
        return self.most(self.clock.microseconds(begin, end)) / count


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: the other ranks would wait for it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
