"""What measures one problem after the other on one device: every provider checked, then timed in turn."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from clock import HostClock, Queued, TorchClock
from problems import Problem
from providers import Sets, calls, error, forget_compiled, plans, truth, wrong
from results import Row

from normgen.devices.cuda.executor import CudaExecutor, executor_of
from normgen.measure.arithmetic import Bytes, rho, sets_for
from normgen.measure.ceiling import Ceiling
from normgen.measure.timing import Clock, Timer, Timing, in_turn, spread

ROUNDS = 3  # in each of which every provider has its turn
FEW = 3  # batches where only the program is tried out


def about(problem: Problem, direction: str, provider: str) -> Row:
    """What names a row."""
    return {
        "op": problem.op,
        "direction": direction,
        "shape": list(problem.shape),
        "dtype": problem.dtype,
        "layout": problem.layout,
        "provider": provider,
    }


class DeviceLost(Exception):
    """Nothing runs on the device any more in this process; the message says after what."""


class Station:
    """What measures on one device.

    `batches`: of each round. `queued`: providers that are timed without graphs. `ceilings`: whether the
    fastest copy of the same bytes is timed too.
    """

    def __init__(self, device: str, batches: int, queued: Sequence[str] = (), ceilings: bool = True) -> None:
        self.device, self._batches, self._queued = device, batches, queued
        self.clock: Clock = TorchClock() if device == "cuda" else HostClock()
        self.executor: CudaExecutor | None = None  # none without a device
        self.ceiling: Ceiling | None = None
        self._cache = 0
        if device == "cuda":
            self.executor = executor_of(("cuda", 0))
            self.ceiling = Ceiling(self.executor, self.clock) if ceilings else None
            self._cache = self.executor.device.cache

    def measure(self, problem: Problem, direction: str, prepared: dict[str, Row]) -> list[Row]:
        """A row for each provider, all timed in turn; `prepared`: what came of running each once."""
        least = problem.bytes(direction)
        rows = {p: about(problem, direction, p) | {"bytes": least.total} for p in prepared}
        forget_compiled()
        try:
            sets = Sets(problem, problem.sets or sets_for(least.total, self._cache), self.device)
            wanted, copy_us = truth(sets, direction), self._ceiling(problem, least)
        except Exception as fault:
            self._survive(fault)
            return [self._told(row | {"fault": first_line(fault)}) for row in rows.values()]
        ready: dict[str, Timer] = {}
        for provider, row in rows.items():
            fault = prepared[provider].get("fault") or prepared[provider].get(direction)
            if fault:
                row["fault"] = fault
                continue
            try:
                ready[provider] = self._ready(provider, sets, direction, wanted, row)
            except Exception as raised:
                self._survive(raised)
                row["fault"] = first_line(raised)
        for provider, rounds in in_turn(ready, ROUNDS).items():
            rows[provider] |= _figures(rounds, copy_us)
        ready.clear()
        self._clean()
        return [self._told(row) for row in rows.values()]

    def _ceiling(self, problem: Problem, least: Bytes) -> float | None:
        if self.ceiling is None:
            return None
        return self.ceiling.microseconds(least.ceiling, least.total, problem.sets)

    def _ready(self, provider: str, sets: Sets, direction: str, wanted: list[Any], row: Row) -> Timer:
        """A provider's call, ready to be timed; its error, and the plan of normgen's, go into the row."""
        call = calls(provider, sets, direction)
        row["error"] = found = error(call(0), wanted)
        if wrong(sets.problem, found):
            row["wrong"] = f"relative error {found:.3g}"
        clock = Queued(self.clock) if provider in self._queued else self.clock
        timer = Timer(clock, call, sets.count, self._batches)
        if provider in plans and self.executor is not None:
            row["plan"] = plans[provider].told(self.executor)
        return timer

    def _clean(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _survive(self, raised: Exception) -> None:
        """DeviceLost where the device is: nothing that came after would be true."""
        try:
            self._clean()
        except Exception as fault:
            raise DeviceLost(f"the device is lost after {first_line(raised)}") from fault

    def _told(self, row: Row) -> Row:
        names = ("op", "direction", "shape", "dtype", "layout", "provider")
        figures = ("us", "spread", "rho", "host_us", "method", "why", "wrong", "fault")
        print(*(row[k] for k in names), *(f"{k}={row[k]}" for k in figures if k in row), flush=True)
        return row


def _figures(rounds: list[Timing], copy_us: float | None) -> Row:
    """What the rounds of a provider come to: the median of their medians, and how far apart they are."""
    us = statistics.median(timing.us for timing in rounds)
    host_us = statistics.median(timing.host_us for timing in rounds)
    row: Row = {"us": round(us, 3), "spread": round(spread(rounds), 4), "host_us": round(host_us, 2)}
    row["method"] = rounds[0].method
    if copy_us is not None:
        row |= {"copy_us": round(copy_us, 3), "rho": round(rho(copy_us, us), 4)}
    if rounds[0].why:
        row["why"] = rounds[0].why
    return row


def first_line(fault: Exception) -> str:
    """The fault in one line, without what differs from run to run."""
    lines = [re.sub(r"\(kept as .*?\)", "", line).strip() for line in str(fault).splitlines()] or [""]
    told = [line for i, line in enumerate(lines) if i == 0 or " error: " in line][:2]
    return f"{type(fault).__name__}: {' / '.join(told)}"[:240]
