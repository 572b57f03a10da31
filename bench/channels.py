"""Channel norms on a GPU: normgen beside PyTorch and its compiler, in one run, measured the same way.

    python bench/channels.py --out $OUT/bench
    python bench/channels.py --out $OUT/bench --ops group_norm,batch_norm --dtypes bf16 --layouts nchw

First every provider's results are compared with PyTorch in float64, in processes of their own, which also
compiles what the measurement needs; what is wrong or fails is not timed, and its line says why. Then
everything is timed in this process, alone: device time between events around batches of calls that were all
queued before, on buffers that rotate through more than three times the second-level cache, the median of 31
batches. rho is the time of the fastest copy (for a backward: triad) of the fewest bytes over the time of the
call.

Writes OUT/channels.json, a row for each line after it is measured, and OUT/channels.md. A row of normgen says
under `plan` which schedule ran, with what grid, and what the compiler made of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from checking import ALONE, check_all

os.environ.update(ALONE)  # before PyTorch reads it
import torch
from problems import OPS, USUAL, Problem, problems
from providers import PROVIDERS, Sets, calls, check, plans, strategies, wrong
from report import channels_table
from timing import Ceiling, HostTimer, QueueTimer, rotation_bytes, sets_for

Row = dict[str, Any]
CHECKS = 0.6  # of the budget, after which no check is begun
ONE_CHECK = 100  # seconds for one provider's results of one problem, compilation included


def main() -> None:
    """See the module."""
    given = _arguments()
    listed = problems(given.ops, given.dtypes, given.shapes, given.layouts)
    if given.tiny:
        listed = list(dict.fromkeys(_tiny(problem) for problem in listed))
    if given.worker:
        _work(listed, given.device)
        return
    start = time.monotonic()
    chosen = [given.providers + (_strategies(problem) if given.strategies else []) for problem in listed]
    tasks = [f"{provider} {i}" for i, providers in enumerate(chosen) for provider in providers]
    command, log = [sys.executable, *sys.argv, "--worker"], given.out / "checks.log"
    found = check_all(tasks, command, given.jobs, log, CHECKS * given.budget)
    print(f"{len(tasks)} checks took {time.monotonic() - start:.0f} s", flush=True)
    rows: list[Row] = []
    ceiling, timer = _instruments(given.device)
    for i, problem in enumerate(listed):
        for direction in problem.directions:
            late = time.monotonic() - start > given.budget
            named = _strategies(problem, direction) if given.strategies else []
            verdicts = {p: found[f"{p} {i}"] for p in [*given.providers, *named]}
            rows += _measure(problem, direction, verdicts, ceiling, timer, given.device, late)
            _write(given.out, rows, given.device)
    print(channels_table(rows))
    print(f"{time.monotonic() - start:.0f} s in all")


def _measure(
    problem: Problem,
    direction: str,
    verdicts: dict[str, Row],
    ceiling: Ceiling | None,
    timer: QueueTimer | HostTimer,
    device: str,
    late: bool,
) -> list[Row]:
    """A row for each provider."""
    if device == "cuda":
        torch.cuda.empty_cache()
    total = problem.bytes(direction)
    kind = "triad" if direction == "backward" else "copy"
    about = {"op": problem.op, "direction": direction, "shape": list(problem.shape), "dtype": problem.dtype}
    about |= {"layout": problem.layout, "bytes": total, "provider": ""}
    faults = {
        provider: "the time that was given is over" if late else _fault(problem, direction, verdict)
        for provider, verdict in verdicts.items()
    }
    rows: list[Row] = []
    sets, copy_us = None, 0.0
    for provider, verdict in verdicts.items():
        row: Row = about | {"provider": provider, "error": _number(verdict.get(direction))}
        if not faults.get(provider):
            try:
                sets = sets or Sets(problem, sets_for(total, rotation_bytes(device)), device)
                copy_us = copy_us or (ceiling.microseconds(kind, total) if ceiling else 0.0)
                timing = timer.measure(calls(provider, sets, direction), 2 * sets.count + 2)
                row |= {
                    "us": round(timing.us, 2),
                    "copy_us": round(copy_us, 2),
                    "rho": round(copy_us / timing.us, 4),
                    "host_us": round(timing.host_us, 2),
                }
            except Exception as fault:
                faults[provider] = _first_line(fault)
        if faults.get(provider):
            row["fault"] = faults[provider]
        elif provider in plans and ceiling:
            row["plan"] = plans[provider].told(ceiling.executor)
        rows.append(row)
        print(
            problem.text,
            *(row.get(k, "") for k in ("direction", "provider", "us", "rho", "host_us", "fault")),
        )
        sys.stdout.flush()
    return rows


def _strategies(problem: Problem, *directions: str) -> list[str]:
    """A provider for each strategy of the norm, or of one direction of it, where there is a choice."""
    try:
        found = [strategies(problem, direction) for direction in directions or problem.directions]
    except Exception:  # what is wrong with the spec is told by the check
        return []
    return list(dict.fromkeys(f"normgen:{name}" for names in found if len(names) > 1 for name in names))


def _fault(problem: Problem, direction: str, verdict: Row) -> str:
    """Why a provider is not timed, or nothing."""
    if "fault" in verdict:
        return str(verdict["fault"])
    found = verdict[direction]
    if isinstance(found, str):
        return found
    return f"wrong: relative error {found:.3g}" if wrong(problem, found) else ""


def _work(listed: list[Problem], device: str) -> None:
    """Check tasks that come on standard input, a line for each on standard output."""
    for line in sys.stdin:
        provider, index = line.split()
        problem = listed[int(index)]
        print("check", problem.text, provider, file=sys.stderr, flush=True)
        signal.alarm(ONE_CHECK)  # without a handler: a kernel that hangs ends this process
        verdict: Row = {d: _verdict(problem, provider, device, d) for d in problem.directions}
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


def _verdict(problem: Problem, provider: str, device: str, direction: str) -> float | str:
    """The error, or the fault. Where other processes hold the memory, again when they are done."""
    told = ""
    for _ in range(20):
        try:
            return check(problem, provider, device, direction)
        except torch.OutOfMemoryError as fault:
            told = _first_line(fault)
        except Exception as fault:
            return _first_line(fault)
        torch.cuda.empty_cache()
        time.sleep(2)
    return told


def _instruments(device: str) -> tuple[Ceiling | None, QueueTimer | HostTimer]:
    if device == "cpu":
        return None, HostTimer()
    from normgen.runtime.cuda import executor_of

    torch.zeros(1, device="cuda")
    timer = QueueTimer()
    return Ceiling(executor_of(("cuda", 0)), timer, rotation_bytes(device)), timer


def _write(out: Path, rows: list[Row], device: str) -> None:
    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    about = {"name": name, "torch": torch.__version__, "cuda": torch.version.cuda}
    (out / "channels.json").write_text(json.dumps({"device": about, "rows": rows}, indent=1) + "\n")
    (out / "channels.md").write_text(channels_table(rows))


def _number(found: object) -> float | None:
    return found if isinstance(found, float) else None


def _first_line(fault: Exception) -> str:
    """The fault in one line. A spec that has no kernels yet says so itself."""
    lines = [re.sub(r"\(kept as .*?\)", "", line).strip() for line in str(fault).splitlines()]
    told = [line for i, line in enumerate(lines) if i == 0 or " error: " in line][:2]
    return f"{type(fault).__name__}: {' / '.join(told)}"[:240]


def _tiny(problem: Problem) -> Problem:
    shape = (3, 64) if problem.layout == "rows" else (2, 64, 3, 5)
    return Problem(problem.op, shape, problem.dtype, problem.layout)


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def shapes(text: str) -> list[tuple[int, ...]]:
        return [tuple(map(int, one.split("x"))) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--ops", type=words, default=USUAL, help=", ".join(OPS))
    parser.add_argument("--dtypes", type=words, default=["bf16", "f32"])
    parser.add_argument("--shapes", type=shapes, default=[], help="like 8x320x64x64,2x512x256x256")
    parser.add_argument("--layouts", type=words, default=["nchw", "nhwc", "rows"])
    parser.add_argument("--providers", type=words, default=list(PROVIDERS), help=", ".join(PROVIDERS))
    parser.add_argument("--strategies", action="store_true", help="also each of normgen's by itself")
    parser.add_argument("--jobs", type=int, default=14, help="processes that check and compile")
    parser.add_argument("--budget", type=float, default=230, help="seconds after which nothing is timed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try it out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return given


if __name__ == "__main__":
    main()
