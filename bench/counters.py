"""What bounds kernels that miss a mark: counters of NVIDIA's profiler (ncu) for calls of normgen.

    python bench/counters.py --out bench/results/h100 --below 0.9

Takes the lines of OUT/results.json at which normgen is below that share of its ceiling, or more than 2 %
behind a peer, those furthest from the ceiling first, runs each under the profiler, and writes
OUT/counters.md: a line for each kernel. Clocks and caches are left as they are, and sets of buffers rotate as
they do where times are taken.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import results
from results import Row
from tables import best_peer, lines, table

SETS = 3
BEHIND = 0.98  # of a peer's time
# A column of the table: the profiler's name, by what it is divided, and digits after the point.
COLUMNS = {
    "us": ("gpu__time_duration.sum", 1000.0, 1),
    "memory %": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1.0, 0),
    "found in cache %": ("lts__t_sector_hit_rate.pct", 1.0, 0),
    "issue slots %": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1.0, 0),
    "warps a quarter": ("smsp__warps_active.avg.per_cycle_active", 1.0, 1),
    "registers": ("launch__registers_per_thread", 1.0, 0),
    "loads of spills": ("smsp__inst_executed_op_local_ld.sum", 1.0, 0),
}
_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# What a warp waits for, in the profiler's words and in ours.
WAITS = {
    "long_scoreboard": "memory, or another block",
    "barrier": "barrier",
    "short_scoreboard": "shared memory",
    "mio_throttle": "queue of shared memory",
    "lg_throttle": "queue of global memory",
    "math_pipe_throttle": "arithmetic",
    "wait": "the instruction before",
    "membar": "fence",
    "sleeping": "sleep",
}
Counted = dict[str, str]  # one kernel's counters by name


def short(by: dict[str, Row], below: float) -> bool:
    """Whether normgen misses the mark there, or a peer is ahead."""
    mine, peer = by.get("normgen"), best_peer(by)
    if mine is None or "us" not in mine:
        return False
    return mine.get("rho", 1.0) < below or (peer is not None and peer["us"] < BEHIND * mine["us"])


def chosen(rows: Iterable[Row], below: float) -> list[str]:
    """The lines that miss the mark, as words, those furthest from the ceiling first."""
    missed = [(by["normgen"].get("rho", 1.0), line) for line, by in lines(rows).items() if short(by, below)]
    return [
        f"{op}:{direction}:{'x'.join(map(str, shape))}:{dtype}:{layout}"
        for _, (op, direction, shape, dtype, layout) in sorted(missed)
    ]


def kernels_table(counted: Iterable[tuple[str, Sequence[Counted]]]) -> str:
    """A line for each kernel of each case."""
    head = ["case", "kernel", *COLUMNS, "warps wait for"]
    body = []
    for case, kernels in counted:
        for found in kernels:
            cells = [
                f"{_value(found, name) / divisor:.{digits}f}" for name, divisor, digits in COLUMNS.values()
            ]
            body.append([case, f"`{found['Kernel Name'].partition('(')[0]}`", *cells, _waits(found)])
    return table(head, body) + "\n"


def _waits(found: Counted) -> str:
    """The two that most warps wait for, for each instruction that is issued."""
    waits = sorted(
        ((_value(found, _STALLED.format(name)), told) for name, told in WAITS.items()), reverse=True
    )
    return ", ".join(f"{told} {count:.1f}" for count, told in waits[:2])


def _value(found: Counted, name: str) -> float:
    text = found.get(name, "").replace(",", "")
    return float(text) if text not in ("", "n/a") else 0.0


def parsed(text: str) -> list[Counted]:
    """The kernels of what `ncu --csv --page raw` prints; a line of units comes first."""
    told = text.splitlines()
    start = next(i for i, line in enumerate(told) if line.startswith('"ID"'))
    return list(csv.DictReader(told[start:]))[1:]


def shared_out(cases: Sequence[str], counts: Sequence[int], kernels: Sequence[Counted]) -> Any:
    """Kernels in the order of the calls that launched them."""
    assert sum(counts) == len(kernels), (counts, len(kernels))
    at = 0
    for case, count in zip(cases, counts, strict=True):
        yield case, kernels[at : at + count]
        at += count


def _work(cases: Sequence[str]) -> None:
    """Run each case for every set, the last time under the profiler; says how many kernels that were."""
    import torch
    from providers import Sets, calls, plans

    for case in cases:
        direction, problem = _problem(case)
        call = calls("normgen", Sets(problem, SETS, "cuda"), direction)
        for i in range(SETS + 1):
            call(i)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call(SETS + 1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        print("LAUNCHES", len(plans["normgen"].launches), flush=True)
        del call
        torch.cuda.empty_cache()


def _problem(case: str) -> Any:
    from problems import Problem

    op, direction, shape, dtype, layout = case.split(":")
    return direction, Problem(op, tuple(map(int, shape.split("x"))), dtype, layout)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench/results/h100"), help="folder of the results")
    parser.add_argument("--below", type=float, default=0.9, help="share of the ceiling")
    parser.add_argument("--most", type=int, default=60, help="lines")
    parser.add_argument("--seconds", type=float, default=300, help="limit")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        _work(given.worker)
        return
    cases = chosen(results.read(given.out)[1], given.below)[: given.most]
    wanted = [name for name, _, _ in COLUMNS.values()] + [_STALLED.format(name) for name in WAITS]
    command = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off", "--cache-control", "none"]
    command += ["--clock-control", "none", "--metrics", ",".join(wanted)]
    command += [sys.executable, __file__, "--worker", *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=given.seconds)
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("LAUNCHES")]
    if done.returncode or len(counts) != len(cases):
        sys.exit(f"{len(counts)} of {len(cases)} cases ran:\n{done.stderr[-2000:]}\n{done.stdout[-2000:]}")
    text = kernels_table(shared_out(cases, counts, parsed(done.stdout)))
    (given.out / "counters.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
