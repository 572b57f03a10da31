"""Every provider's norms on a GPU, in one run, measured the same way: what `make bench` runs.

    python bench/run.py --out bench/results/h100
    python bench/run.py --out $OUT/bench --ops rmsnorm,softmax --dtypes bf16 --shapes 32768x4096 --budget 240
    python bench/run.py --out $OUT/bench --missing
    python bench/run.py --out $OUT/smoke --small

First each provider runs each problem once, in processes of their own, side by side: that compiles what the
measurement needs, and a crash costs one task. Then everything is checked against PyTorch in float64 and
timed, in this process, alone, by `normgen.measure`: buffers that rotate through four times the second-level
cache, CUDA graphs, in three rounds in which every provider has its turn. A figure is the median of its
rounds, and its spread the distance between the slowest and the fastest round. Where a call cannot be
captured, it is timed by events. rho is the time of the fastest copy (for what reads two bytes for one that it
writes: triad) of the fewest bytes over the time of the call. Forwards run without gradients, whoever provides
them.

OUT/results.json holds one run: the same device, packages and kernels. A new run starts it anew; --missing
goes on with the run that is there, and is refused where anything of it has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from workers import ALONE, share_out

os.environ.update(ALONE)  # before PyTorch reads it
import results
import torch
from clock import HostClock, Queued, TorchClock
from commits import commit_of_tree
from problems import DTYPES, LAYOUTS, OPS, Problem, problems, small
from providers import PROVIDERS, Sets, absent, calls, error, forget_compiled, has, plans, truth, wrong
from results import Row
from tables import lines_table

import normgen
from normgen import bundled
from normgen.measure.arithmetic import Bytes, rho, sets_for
from normgen.measure.ceiling import Ceiling
from normgen.measure.timing import BATCHES, Clock, Timer, Timing, in_turn, spread

PREPARING = 0.5  # of the budget, after which nothing is prepared any more
ONE_TASK = 100  # seconds for one provider and problem, compilation included
ROUNDS = 3  # in each of which every provider has its turn
FEW = 3  # batches where only the program is tried out
PACKAGES = ("torch", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl", "pycuda", "normgen")


def main() -> None:
    """See the module."""
    given = _arguments()
    listed = (
        small(given.ops) if given.small else problems(given.ops, given.dtypes, given.shapes, given.layouts)
    )
    if given.worker:
        _work(listed, given.device)
        return
    start = time.monotonic()
    reasons = {provider: absent(provider) for provider in given.providers}
    for provider, reason in reasons.items():
        if reason:
            print(f"{provider} is absent: {reason}", flush=True)
    there = [provider for provider, reason in reasons.items() if not reason]
    header = _header(given.device, reasons, given.commit or commit_of_tree())
    if given.missing:
        results.expect_same_run(given.out, results.read(given.out)[0], header)
    else:
        results.start(given.out, header)
    done = _done(given.out)
    wanted = _wanted(listed, there, done)
    tasks = list(dict.fromkeys(f"{p} {listed.index(problem)}" for problem, _, p in wanted))
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Row] = {}
    if given.jobs:
        command, log = [sys.executable, *sys.argv, "--worker"], given.out / "prepared.log"
        found = share_out(tasks, command, given.jobs, log, PREPARING * given.budget)
        print(f"{len(found)} of {len(tasks)} prepared in {time.monotonic() - start:.0f} s", flush=True)
    station = Station(given.device, FEW if given.small else BATCHES // ROUNDS, given.queued)
    rows: list[Row] = []
    left = len(wanted)
    for problem, direction in dict.fromkeys((problem, direction) for problem, direction, _ in wanted):
        if time.monotonic() - start > given.budget:
            break
        mine = [p for other, d, p in wanted if (other, d) == (problem, direction)]
        faults = {p: found.get(f"{p} {listed.index(problem)}", {}) for p in mine}
        made = station.measure(problem, direction, faults)
        rows += made
        left -= len(mine)
        results.add(given.out, header, made)
    print(lines_table(rows))
    print(f"{time.monotonic() - start:.0f} s in all; {left} rows are left for a later run (--missing)")


Wanted = list[tuple[Problem, str, str]]


def _wanted(listed: list[Problem], there: list[str], done: set[tuple[Any, ...]]) -> Wanted:
    """What is to be measured: a problem, a direction, a provider. All providers of a line, where one is
    lacking: they are timed in turn."""
    wanted = []
    for problem in listed:
        for direction in problem.directions:
            mine = [p for p in there if has(p.partition(":")[0], problem, direction)]
            if any(results.key_of(_about(problem, direction, p)) not in done for p in mine):
                wanted += [(problem, direction, p) for p in mine]
    return wanted


def _done(out: Path) -> set[tuple[Any, ...]]:
    return {results.key_of(row) for row in results.read(out)[1] if "us" in row}


def _about(problem: Problem, direction: str, provider: str) -> Row:
    return {
        "op": problem.op,
        "direction": direction,
        "shape": list(problem.shape),
        "dtype": problem.dtype,
        "layout": problem.layout,
        "provider": provider,
    }


class Station:
    """What measures on one device."""

    def __init__(self, device: str, batches: int, queued: list[str]) -> None:
        self.device, self._batches, self._queued = device, batches, queued
        self.clock: Clock = TorchClock() if device == "cuda" else HostClock()
        self.ceiling: Ceiling | None = None  # none without a device
        self._cache = 0
        if device == "cuda":
            from normgen.devices.cuda.executor import executor_of

            self.executor = executor_of(("cuda", 0))
            self.ceiling = Ceiling(self.executor, self.clock)
            self._cache = self.executor.device.cache

    def measure(self, problem: Problem, direction: str, prepared: dict[str, Row]) -> list[Row]:
        """A row for each provider, all timed in turn; `prepared`: what came of running each once."""
        least = problem.bytes(direction)
        rows = {p: _about(problem, direction, p) | {"bytes": least.total} for p in prepared}
        forget_compiled()
        try:
            sets = Sets(problem, problem.sets or sets_for(least.total, self._cache), self.device)
            wanted, copy_us = truth(sets, direction), self._ceiling(problem, least)
        except Exception as fault:
            self._survive(fault)
            return [self._told(row | {"fault": _first_line(fault)}) for row in rows.values()]
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
                row["fault"] = _first_line(raised)
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
        if provider in plans and self.ceiling is not None:
            row["plan"] = plans[provider].told(self.executor)
        return timer

    def _clean(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _survive(self, raised: Exception) -> None:
        """End where the device is lost: nothing that came after would be true."""
        try:
            self._clean()
        except Exception as fault:
            raise SystemExit(f"the device is lost, go on with --missing: {_first_line(raised)}") from fault

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


def _work(listed: list[Problem], device: str) -> None:
    """Run tasks that come on standard input once each, and say on standard output what came of them."""
    for line in sys.stdin:
        provider, index = line.split()
        problem = listed[int(index)]
        print("task", problem.text, provider, file=sys.stderr, flush=True)
        signal.alarm(ONE_TASK)  # without a handler: a kernel that hangs ends this process
        verdict: Row = {d: _try_out(problem, provider, device, d) for d in problem.directions}
        try:
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        except Exception:  # after an illegal access nothing works here: end, and be replaced
            verdict["last"] = True
        signal.alarm(0)
        print("verdict", json.dumps(verdict), flush=True)
        if "last" in verdict:
            return


def _try_out(problem: Problem, provider: str, device: str, direction: str) -> str:
    """The fault of running it once, or nothing. Where other processes hold the memory, again when they are
    done."""
    if not has(provider.partition(":")[0], problem, direction):
        return ""
    told = ""
    for _ in range(20):
        try:
            calls(provider, Sets(problem, 1, device), direction)(0)
            if device == "cuda":
                torch.cuda.synchronize()
            return ""
        except torch.OutOfMemoryError as fault:
            told = _first_line(fault)
        except Exception as fault:
            return _first_line(fault)
        torch.cuda.empty_cache()
        time.sleep(2)
    return told


def _header(device: str, reasons: dict[str, str], commit: str) -> Row:
    """What rows are measured with."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    gone = {provider: reason for provider, reason in reasons.items() if reason}
    return {
        "device": name,
        "versions": versions,
        "kernels": _kernels(),
        "commit": commit,
        "absent": gone,
    }


def _kernels() -> str:
    """A digest of normgen's own files and specs, which decide what its kernels are."""
    digest, package = hashlib.sha256(), Path(normgen.__file__).parent
    for path in sorted(p for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    for name in bundled.names():
        digest.update(name.encode() + b"\0" + bundled.read(name).text.encode())
    return digest.hexdigest()[:16]


def _first_line(fault: Exception) -> str:
    """The fault in one line, without what differs from run to run."""
    lines = [re.sub(r"\(kept as .*?\)", "", line).strip() for line in str(fault).splitlines()] or [""]
    told = [line for i, line in enumerate(lines) if i == 0 or " error: " in line][:2]
    return f"{type(fault).__name__}: {' / '.join(told)}"[:240]


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def known(names: Any) -> Any:
        def chosen(text: str) -> list[str]:
            if unknown := [word for word in words(text) if word not in names]:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(names)}")
            return words(text)

        return chosen

    def providers(text: str) -> list[str]:
        known(PROVIDERS)(",".join(word.partition(":")[0] for word in words(text)))
        return words(text)

    def shapes(text: str) -> list[tuple[int, ...]]:
        return [tuple(map(int, one.split("x"))) for one in words(text)]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench/results/h100"), help="folder of the results")
    parser.add_argument("--ops", type=known(OPS), default=list(OPS), help=", ".join(OPS))
    parser.add_argument("--dtypes", type=known(DTYPES), default=list(DTYPES), help=", ".join(DTYPES))
    parser.add_argument(
        "--shapes", type=shapes, default=[], help="of those there are: 32768x4096,8x320x64x64"
    )
    parser.add_argument("--layouts", type=known(LAYOUTS), default=list(LAYOUTS), help=", ".join(LAYOUTS))
    parser.add_argument(
        "--providers",
        type=providers,
        default=list(PROVIDERS),
        help=f"{', '.join(PROVIDERS)}, normgen:STRATEGY",
    )
    parser.add_argument("--queued", type=words, default=[], help="providers that are timed without graphs")
    parser.add_argument("--missing", action="store_true", help="only what the file lacks")
    parser.add_argument("--jobs", type=int, default=14, help="processes that prepare; 0: prepare nothing")
    parser.add_argument("--budget", type=float, default=500, help="seconds after which nothing is timed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    parser.add_argument("--commit", default="", help="of the tree, where git cannot tell")
    parser.add_argument("--small", action="store_true", help="each op once, to try it out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
