"""What schedules take: kernels of calls drawn at random, each with the one that it takes and with others.

    PYTHONPATH=. python -m bench.measure --seed 1 --seconds 500 --out timings.jsonl

Of each kernel those schedules are timed that it takes by itself, that are expected to be fastest, that are
near the one taken, and some at random. A line of JSON each: the device, the commit, the call, the kernel, the
knobs that differ from their defaults, and microseconds. `bench.fit` makes the model of it.

Processes compile ahead, one text each at a time, while this one times what is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.calls import CLASSES, call_of, draw, kinds_of, package_of
from bench.commits import commit_of_tree
from bench.drawn import Drawn, line_of
from normgen.devices.cuda.executor import executor_of, use_driver
from normgen.dtypes import DTYPES
from normgen.errors import CompileError
from normgen.launching.knobs import short
from normgen.launching.launch import Binding, Launch, LaunchPlan
from normgen.launching.machine import Machine
from normgen.launching.model import matrix
from normgen.measure.arithmetic import operand_bytes, sets_for
from normgen.measure.clock import DriverClock
from normgen.measure.norms import numbers_of
from normgen.measure.plans import measure_plan
from normgen.measure.timing import FEW
from normgen.runtime.planning.choose import Alternative, Candidate, alternatives, candidates, predicted
from normgen.runtime.planning.registry import family_of

EACH = 20  # schedules of a kernel
LIKELY, WILD = 1.6, 5.0  # times the least estimate: of most schedules that are drawn, and of the others
NEAR = 2  # knobs in which neighbours differ at most
POOL = 8 << 30  # bytes that arrays are cut out of, of each type
DEVICE = ("cuda", 0)


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel with a schedule, as it is to be timed."""

    strategy: str
    kernel: str
    knobs: dict[str, Any]
    usual: bool  # whether the kernel takes it by itself
    launches: tuple[Launch, ...]
    workspace: tuple[tuple[str, tuple[int, ...], str], ...]


# ------------------------------------------------------------------------------------------------ offers


def offers(drawn: Drawn, device: Machine, seed: int) -> list[tuple[Alternative, Candidate]]:
    """The kernels of a call, each with the schedules to be timed."""
    source = random.Random(f"{seed} {drawn.text}")
    return [(taken, each) for taken, every in kernels(drawn, device) for each in _some(every, source)]


def kernels(drawn: Drawn, device: Machine) -> Iterator[tuple[Alternative, list[Candidate]]]:
    """Every strategy's kernels, each with all its schedules: of the family that the class of a call is of, if
    it is of one."""
    direction, binding = call_of(drawn)
    family = CLASSES[drawn.kind].family
    for alternative in alternatives(direction.record, binding, device):
        for every in candidates(alternative.strategy, binding, device):
            if not family or every[0].kernel.family == family:
                yield alternative, list(every)


def _some(every: list[Candidate], source: random.Random) -> list[Candidate]:
    """The first, the likeliest, neighbours of these, and others at random, of each form."""
    every = told_apart(every)
    if len(every) <= EACH:
        return every
    times = predicted(every)
    ranked = sorted(range(len(every)), key=lambda place: times[place])
    usual, likely = every[0], [every[place] for place in ranked[:8]]
    near = [each for each in every if any(0 < _apart(each, one) <= NEAR for one in (usual, likely[0]))]
    taken = [usual, *likely, *source.sample(near, min(len(near), 4))]
    for factor in (LIKELY, LIKELY, LIKELY, LIKELY, LIKELY, WILD, WILD, WILD, WILD):
        some = [each for each, us in zip(every, times, strict=True) if us <= factor * times[ranked[0]]]
        form = source.choice(sorted({getattr(each.schedule, "form", "") for each in some}))
        taken.append(source.choice([e for e in some if getattr(e.schedule, "form", "") == form]))
    return list({each.knobs: each for each in taken}.values())[:EACH]


def told_apart(every: list[Candidate]) -> list[Candidate]:
    """The schedules of a kernel but for those that have the quantities of an earlier one: the model would
    predict the same of them."""
    kernel, call = every[0].kernel, every[0].call
    found = family_of(kernel).quantities(kernel, call, [each.schedule for each in every])
    _, first = np.unique(matrix(found, tuple(found), len(every)), axis=0, return_index=True)
    return [every[place] for place in sorted(first)]


def _apart(one: Candidate, other: Candidate) -> int:
    return sum(a != b for a, b in zip(one.knobs, other.knobs, strict=True) if a[0] != "shared")


def _start() -> None:
    use_driver("cuda-bindings", "nvrtc")


def prepared(drawn: Drawn, seed: int) -> list[Timed]:
    """The schedules of a call, their texts compiled. (In a process of its own.)"""
    executor = executor_of(DEVICE)
    found = []
    for alternative, each in offers(drawn, executor.device, seed):
        lowered = each.lowered
        try:
            for launch in lowered.launches:
                executor.binary(launch.source)
        except CompileError:
            continue
        found.append(
            Timed(
                alternative.strategy.name,
                each.kernel.name,
                short(each.schedule),
                each.schedule in [k.schedule for k in alternative.kernels],
                lowered.launches,
                (*alternative.temporaries, *lowered.workspace),
            )
        )
    return found


# ------------------------------------------------------------------------------------------------ times


class Pools:
    """Random values of each element type, out of which the arrays of calls are cut."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._pools: dict[str, Any] = {}

    def addresses(self, binding: Binding, count: int) -> list[dict[str, int]]:
        """As many sets of arrays, side by side."""
        ends: dict[str, int] = {}
        types = {name: operand.dtype for name, operand in binding.operands}
        sets = []
        for _ in range(count):
            one = {}
            for name, size in operand_bytes(binding).items():
                begin = ends.get(types[name], 0)
                one[name] = self._pool(types[name]) + begin
                ends[types[name]] = begin + -(-size // 256) * 256 + 256
            sets.append(one)
        if max(ends.values()) > POOL:
            raise MemoryError("the arrays are larger than what they are cut out of")
        return sets

    def _pool(self, dtype: str) -> int:
        if dtype not in self._pools:
            torch = self._torch
            kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype, torch.float32)
            count = POOL // DTYPES[dtype].bytes if dtype in ("bf16", "f16") else POOL // 4
            made = torch.empty(count, dtype=kind, device="cuda")
            for part in made.split(1 << 28):
                part.normal_()
            self._pools[dtype] = made
        return int(self._pools[dtype].data_ptr())


def measure(seed: int, seconds: float, out: Path, commit: str = "", kinds: Sequence[str] = ()) -> None:
    """Time what is drawn, of some classes if there are any, until there is no time left."""
    end = time.monotonic() + seconds
    _start()
    executor = executor_of(DEVICE)
    clock, pools = DriverClock(executor), Pools()
    about = {"device": executor.device.name, "commit": commit or commit_of_tree()}
    workers = max(1, len(os.sched_getaffinity(0)) - 1)
    calls, lines, done = draw(seed, kinds), 0, 0
    with (
        ProcessPoolExecutor(workers, get_context("spawn"), _start) as pool,
        out.open("a") as file,
    ):
        waiting: list[tuple[Drawn, Future[list[Timed]]]] = []
        while time.monotonic() < end:
            while len(waiting) < 2 * workers:
                drawn = next(calls)
                waiting.append((drawn, pool.submit(prepared, drawn, seed)))
            ready = next((n for n, (_, task) in enumerate(waiting) if task.done()), None)
            if ready is None:
                time.sleep(0.01)
                continue
            drawn, task = waiting.pop(ready)
            if task.exception():
                print("not prepared:", drawn.text, repr(task.exception())[:300], flush=True)
                continue
            try:
                for line in _times(drawn, task.result(), executor, clock, pools):
                    file.write(json.dumps({**about, "seed": seed, **line}) + "\n")
                    lines += 1
            except MemoryError as fault:
                print("not measured:", drawn.text, fault, flush=True)
            file.flush()
            done += 1
        for _, task in waiting:
            task.cancel()
        print(f"{lines} timings of {done} calls", flush=True)
        for process in list(pool._processes.values()):
            process.kill()


def _times(
    drawn: Drawn, tries: list[Timed], executor: Any, clock: Any, pools: Pools
) -> Iterator[dict[str, Any]]:
    _, binding = call_of(drawn)
    numbers = numbers_of(package_of(drawn.norm, drawn.attrs))
    total = sum(operand_bytes(binding).values())
    addresses = pools.addresses(binding, sets_for(total, executor.device.cache))
    for each in tries:
        plan = LaunchPlan(each.launches, each.workspace)
        reports = [executor.function(one.source, one.entry, one.shared).report for one in each.launches]
        us = measure_plan(executor, clock, plan, addresses, numbers, FEW).us
        yield {
            **line_of(drawn), "strategy": each.strategy, "kernel": each.kernel, "knobs": each.knobs,
            "usual": each.usual, "us": round(us, 3),
            "registers": max(r.registers for r in reports), "spilled": max(r.local for r in reports),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="what calls and schedules are drawn from")
    parser.add_argument("--seconds", type=float, default=500, help="that it may take")
    parser.add_argument("--out", type=Path, default=Path("timings.jsonl"), help="what lines are added to")
    parser.add_argument("--commit", default="", help="which is measured, where git does not know it")
    parser.add_argument("--kinds", type=kinds_of, default=(), help=f"only some of {', '.join(CLASSES)}")
    given = parser.parse_args()
    measure(given.seed, given.seconds, given.out, given.commit, given.kinds)


if __name__ == "__main__":
    main()
