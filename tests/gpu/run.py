"""`make test-gpu`: every test that needs a GPU, by each launcher, in less than ten minutes.

A group is shared by several processes, so that kernels compile on all cores, and so that a fault that takes
the device away from a process leaves the others theirs. What is not run is told with its reason, and the last
lines are a summary. Exit status 1: something failed; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from normgen.devices.cuda.toolchains import installed
from tests.fakes.machine import LAUNCHERS
from tests.gpu.conftest import SEED
from tests.gpu.groups import GROUPS, Group
from tests.gpu.reporting import NO_TIME

ROOT = Path(__file__).parents[2]
GRACE = 30  # seconds that a process may take longer than it was given: a test that has begun, the end
LEAST = 10  # seconds that are worth a process, which takes some to begin
SHOWN = 6  # failures, and names of what was not run, that are told one by one; the logs have all


@dataclass(frozen=True)
class Job:
    """One process."""

    launcher: str
    group: Group
    part: int
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.launcher}-{self.group.name}-{self.part}"


@dataclass
class Outcome:
    """What came of a job: tests by outcome, with reasons, and how it ended if not well."""

    job: Job
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    thorough: int = 0  # cases that are left out
    seconds: float = 0.0
    fault: str = ""

    def named(self, outcome: str) -> list[dict[str, Any]]:
        return [test for test in self.tests.values() if test["outcome"] == outcome]


def run_job(job: Job, options: argparse.Namespace, end: float) -> Outcome:
    """Run a process to its end, or for as long as there is time."""
    outcome = Outcome(job)
    seconds = min(job.seconds, end - time.monotonic())
    if seconds < LEAST:
        outcome.fault = NO_TIME
        return outcome
    events, log = options.logs / f"{job.name}.jsonl", options.logs / f"{job.name}.log"
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=short",
        "-p", "tests.gpu.reporting", "-p", "no:cacheprovider",
        f"--part={job.part}/{job.group.processes}", f"--seconds={seconds}", f"--order={options.seed}",
        f"--report={events}", *(["--thorough"] if options.thorough else []),
        *job.group.files, *options.pytest,
    ]  # fmt: skip
    settings = {"NORMGEN_LAUNCHER": job.launcher, SEED: str(options.seed), "PYTHONPATH": _path()}
    if job.group.nvrtc and installed("nvrtc"):
        settings["NORMGEN_COMPILER"] = "nvrtc"
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **settings}, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            status: int | None = process.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    outcome.seconds = time.monotonic() - start
    _read(outcome, events, status)
    return outcome


def _path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _read(outcome: Outcome, events: Path, status: int | None) -> None:
    begun = ""
    for line in events.read_text().splitlines() if events.exists() else ():
        event = json.loads(line)
        if "begins" in event:
            begun = event["begins"]
        elif "note" in event:
            outcome.notes.append(event["note"])
        elif "thorough" in event:
            outcome.thorough = event["thorough"]
        else:
            known = outcome.tests.get(event["test"])
            if known is None or event["outcome"] == "failed":
                outcome.tests[event["test"]] = event
    unfinished = begun if begun and begun not in outcome.tests else ""
    where = f" in {unfinished}" if unfinished else ""
    if status is None:
        outcome.fault = f"did not end{where or ' after its tests'}"
    elif status not in (0, 1, 5):  # 5: no test fell to this process
        outcome.fault = f"ended with status {status}{where}"


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
    then the others in turn."""
    found: list[Outcome] = []
    alone = [group for group in options.groups if group.alone]
    last = end - sum(group.seconds for group in alone)
    groups = [group for group in options.groups if not group.alone]
    asked = sum(group.processes * group.seconds for group in groups) or 1
    part = min(1.0, (last - time.monotonic()) * options.jobs / asked)

    def one(job: Job, end: float) -> None:
        if job.group.torch:
            built.join()
        outcome = run_job(job, options, end)
        found.append(outcome)
        print(_line(outcome), flush=True)

    jobs = [
        Job(launcher, group, place, part * group.seconds)
        for group in groups
        for place in range(group.processes)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, job, last) for job in jobs]:
            done.result()
    for group in alone:
        one(Job(launcher, group, 0, group.seconds), end)
    return found


def _build() -> None:
    """What PyTorch calls through, ahead of all calls from there, so that these go through it."""
    command = [sys.executable, "-m", "normgen.torch.extension"]
    environment = {**os.environ, "PYTHONPATH": _path()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"calls from PyTorch are made in Python: {done.stderr.strip()[:300]}", flush=True)


def _line(outcome: Outcome) -> str:
    job = outcome.job
    counts = Counter(test["outcome"] for test in outcome.tests.values())
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no tests"
    fault = f"; {outcome.fault}" if outcome.fault else ""
    place = f"{job.part + 1}/{job.group.processes}"
    return f"{job.launcher:14} {job.group.name:12} {place:6} {outcome.seconds:5.0f} s  {said}{fault}"


# --------------------------------------------------------------------------- the summary


def summary(
    outcomes: Sequence[Outcome], missing: Iterable[str], card: str, options: argparse.Namespace
) -> int:
    """Print what failed, what was not run and why, and a line for each group; returns how much failed."""
    failures = [(each, test) for each in outcomes for test in each.named("failed")]
    faults = [each for each in outcomes if each.fault and each.fault != NO_TIME]
    if failures or faults:
        print("\nFailures")
    for outcome in faults:
        print(f"  {outcome.job.name}: the process {outcome.fault} ({options.logs / outcome.job.name}.log)")
    for outcome, test in failures[: 8 * SHOWN]:
        reason = " ".join(test["reason"].split())[:300]
        print(f"  {outcome.job.launcher}: {test['test']}\n      {reason}")
    if len(failures) > 8 * SHOWN:
        print(f"  and {len(failures) - 8 * SHOWN} more: {options.logs}")
    _left_out(outcomes, missing)
    notes = [f"  {each.job.launcher}: {note}" for each in outcomes for note in each.notes]
    print("\n".join(["\nMeasured", *notes]) if notes else "", end="\n" if notes else "")
    print(f"\nCard: {card}. Seed: {options.seed}. Logs: {options.logs}")
    print(f"{'launcher':14} {'group':12} {'cases':>6} {'failed':>7} {'not run':>8} {'seconds':>8}")
    for launcher in options.launchers:
        for group in options.groups:
            own = [o for o in outcomes if o.job.launcher == launcher and o.job.group is group]
            passed, failed, left = (
                sum(len(o.named(kind)) for o in own) for kind in ("passed", "failed", "skipped")
            )
            failed += sum(o in faults for o in own)
            took = max((o.seconds for o in own), default=0.0)
            print(f"{launcher:14} {group.name:12} {passed + failed:6} {failed:7} {left:8} {took:8.0f}")
    bad = len(failures) + len(faults) + len(list(missing))
    ran = sum(len(o.named("passed")) for o in outcomes)
    print(f"{'passed' if ran and not bad else 'FAILED'}: {ran} cases passed, {bad} failed")
    return bad if ran else 1


def _left_out(outcomes: Sequence[Outcome], missing: Iterable[str]) -> None:
    """What was not run, by reason."""
    by_reason: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        for test in outcome.named("skipped"):
            file = test["test"].split("::")[0]
            by_reason[outcome.job.launcher, file, test["reason"]].append(test["test"].split("::")[-1])
        if outcome.fault == NO_TIME:
            by_reason[outcome.job.launcher, ", ".join(outcome.job.group.files), NO_TIME].append(
                f"part {outcome.job.part + 1} of {outcome.job.group.processes}"
            )
    thorough = {outcome.job.group.files: outcome.thorough for outcome in outcomes if outcome.thorough}
    if by_reason or missing or thorough:
        print("\nNot run")
    for files, many in thorough.items():
        print(f"  {', '.join(files)}: {many} thorough cases, which GPU_ARGS=--thorough adds")
    for each in missing:
        print(f"  {each}")
    for (launcher, file, reason), tests in sorted(by_reason.items()):
        names = ", ".join(sorted(tests)[:SHOWN]) + (
            f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
        )
        print(f"  {launcher}: {file}: {reason.removeprefix('Skipped: ')}: {names}")


# --------------------------------------------------------------------------- what there is


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
