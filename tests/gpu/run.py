"""`make test-gpu`: every test that needs a GPU, by each launcher, in less than ten minutes.

A group is shared by several processes, so that kernels compile on all cores, and so that a fault that takes
the device away from a process leaves the others theirs. What is not run is told with its reason, and the last
lines are a summary. Exit status 1: something failed; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from tests.fakes.machine import LAUNCHERS
from tests.gpu.groups import GROUPS, Group
from tests.gpu.jobs import LEAST, ROOT, Job, Outcome, python_path, run_job
from tests.gpu.summary import line_of, summary


def run_all(launchers: Sequence[str], options: argparse.Namespace) -> list[Outcome]:
    """All groups by one launcher after the other, each with its share of the time."""
    start, share = time.monotonic(), 60 * options.minutes / max(1, len(launchers))
    built = threading.Thread(target=_build)
    built.start()
    found: list[Outcome] = []
    for place, launcher in enumerate(launchers, 1):
        found += _by(launcher, built, options, start + place * share)
    return found


def _by(launcher: str, built: threading.Thread, options: argparse.Namespace, end: float) -> list[Outcome]:
    """All groups by a launcher: those that share the device, as many processes at once as there are cores,
    then what these had no time for, in the time that others left, then the other groups in turn."""
    found: list[Outcome] = []

    def one(job: Job, seconds: Callable[[Job], float]) -> None:
        if job.group.torch:
            built.join()
        outcome = run_job(job, options, seconds(job), end)
        found.append(outcome)
        print(line_of(outcome), flush=True)

    alone = [Job(launcher, group, 0) for group in options.groups if group.alone]
    last = end - sum(job.group.seconds for job in alone)

    def side_by_side(jobs: Sequence[Job]) -> None:
        unfinished = dict.fromkeys(jobs)

        def shared(job: Job) -> None:
            one(job, lambda job: _share(job, list(unfinished), last - time.monotonic(), options.jobs))
            del unfinished[job]

        with ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(shared, job) for job in jobs]:
                done.result()

    groups = [group for group in options.groups if not group.alone]
    side_by_side([Job(launcher, group, part) for group in groups for part in range(group.processes)])
    if last - time.monotonic() > LEAST:
        side_by_side(_again(found))
    for job in alone:
        one(job, lambda job: min(job.group.seconds, end - time.monotonic()))
    return found


def _again(found: list[Outcome]) -> list[Job]:
    """Processes for the tests that time cut off, which are forgotten where they were."""
    left: dict[tuple[str, Group], list[str]] = {}
    for outcome in found:
        job, tests = outcome.job, outcome.cut_off()
        left.setdefault((job.launcher, job.group), []).extend(tests)
        outcome.tests = {name: test for name, test in outcome.tests.items() if name not in tests}
    return [
        Job(launcher, group, part, tuple(tests[part :: group.processes]))
        for (launcher, group), tests in left.items()
        for part in range(min(group.processes, len(tests)))
    ]


def _share(job: Job, unfinished: Sequence[Job], left: float, at_once: int) -> float:
    """The seconds of a job: its part of what is left for all that have not ended, itself among them. So those
    that end early leave their time to others."""
    asked = sum(each.group.seconds for each in unfinished)
    return min(left, left * at_once * job.group.seconds / max(1, asked))


def _build() -> None:
    """What PyTorch calls through, ahead of all calls from there, so that these go through it."""
    command = [sys.executable, "-m", "normgen.torch.extension"]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"calls from PyTorch are made in Python: {done.stderr.strip()[:300]}", flush=True)


def _card() -> str:
    """The card and what runs on it; ends the program where there is none."""
    text = (
        "import torch\n"
        "assert torch.cuda.is_available(), 'PyTorch sees no CUDA device'\n"
        "major, minor = torch.cuda.get_device_capability()\n"
        "print(f'{torch.cuda.get_device_name()} (sm_{major}{minor}), PyTorch {torch.__version__}')\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        print(f"nothing was run: {said[-1] if said else 'Python ended'} ({sys.executable})")
        sys.exit(2)
    return done.stdout.strip()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [group.name for group in GROUPS]
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--launchers", default=" ".join(LAUNCHERS), help="with spaces between them")
    parser.add_argument("--groups", default=" ".join(names), help=f"some of: {' '.join(names)}")
    parser.add_argument("--seed", default="0", help="what random cases are drawn from")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it")
    parser.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 2), help="processes at once")
    parser.add_argument("--thorough", action="store_true", help="the thorough cases too, which take longer")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "test-gpu", help="a folder for logs")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args(arguments)
    options.launchers = options.launchers.split()
    unknown = [each for each in options.launchers if each not in LAUNCHERS]
    unknown += [each for each in options.groups.split() if each not in names]
    if unknown:
        parser.error(
            f"there is no {unknown[0]!r}: launchers {', '.join(LAUNCHERS)}; groups {', '.join(names)}"
        )
    options.groups = [group for group in GROUPS if group.name in options.groups.split()]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    card = _card()
    options.logs.mkdir(parents=True, exist_ok=True)
    for old in (*options.logs.glob("*.jsonl"), *options.logs.glob("*.log")):
        old.unlink()
    there = [each for each in options.launchers if any(metadata.distributions(name=each))]
    missing = [f"{each}: it is not installed" for each in options.launchers if each not in there]
    return 1 if summary(run_all(there, options), missing, card, options) else 0


if __name__ == "__main__":
    sys.exit(main())
