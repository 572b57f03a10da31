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
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from workers import ALONE, share_out

os.environ.update(ALONE)  # before PyTorch reads it
import results
from commits import commit_of_tree
from problems import DTYPES, LAYOUTS, OPS, Problem, problems, small
from providers import PROVIDERS, absent, has
from results import Row
from setting import header_of
from station import FEW, ROUNDS, DeviceLost, Station, about
from tables import lines_table
from tryouts import ONE_TASK, try_out_each

from normgen.measure.timing import BATCHES

PREPARING = 0.5  # of the budget, after which nothing is prepared any more


def main() -> None:
    """See the module."""
    given = _arguments()
    listed = (
        small(given.ops) if given.small else problems(given.ops, given.dtypes, given.shapes, given.layouts)
    )
    if given.worker:
        try_out_each([(problem, problem.directions) for problem in listed], given.device, ONE_TASK)
        return
    start = time.monotonic()
    reasons = {provider: absent(provider) for provider in given.providers}
    for provider, reason in reasons.items():
        if reason:
            print(f"{provider} is absent: {reason}", flush=True)
    there = [provider for provider, reason in reasons.items() if not reason]
    header = header_of(given.device, reasons, given.commit or commit_of_tree())
    if given.missing:
        results.expect_same_run(given.out, results.read(given.out)[0], header)
    else:
        results.start(given.out, header)
    done = _done(given.out)
    wanted = _wanted(listed, there, done)
    given.out.mkdir(parents=True, exist_ok=True)
    found = _prepared(given, listed, wanted, start) if given.jobs else {}
    station = Station(given.device, FEW if given.small else BATCHES // ROUNDS, given.queued)
    rows: list[Row] = []
    left = len(wanted)
    for problem, direction in dict.fromkeys((problem, direction) for problem, direction, _ in wanted):
        if time.monotonic() - start > given.budget:
            break
        mine = [p for other, d, p in wanted if (other, d) == (problem, direction)]
        faults = {p: found.get(f"{p} {listed.index(problem)}", {}) for p in mine}
        try:
            made = station.measure(problem, direction, faults)
        except DeviceLost as lost:
            raise SystemExit(f"{lost}: go on with --missing") from lost
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
            if any(results.key_of(about(problem, direction, p)) not in done for p in mine):
                wanted += [(problem, direction, p) for p in mine]
    return wanted


def _prepared(
    given: argparse.Namespace, listed: list[Problem], wanted: Wanted, start: float
) -> dict[str, Row]:
    """What each task that is wanted came to in a process of its own."""
    tasks = list(dict.fromkeys(f"{p} {listed.index(problem)}" for problem, _, p in wanted))
    command, log = [sys.executable, *sys.argv, "--worker"], given.out / "prepared.log"
    found: dict[str, Row] = share_out(tasks, command, given.jobs, log, PREPARING * given.budget)
    print(f"{len(found)} of {len(tasks)} prepared in {time.monotonic() - start:.0f} s", flush=True)
    return found


def _done(out: Path) -> set[tuple[Any, ...]]:
    return {results.key_of(row) for row in results.read(out)[1] if "us" in row}


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
