"""One process of `make test-gpu`: how it is run, and what came of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normgen.devices.cuda.toolchains import installed
from tests.gpu.conftest import SEED
from tests.gpu.groups import Group
from tests.gpu.reporting import NO_TIME

ROOT = Path(__file__).parents[2]
# Seconds that the last test of a process may take beyond the time of the process. A test that takes longer
# hangs, and is a failure.
PATIENCE = 120
GRACE = 30  # seconds by which the last process may end late
LEAST = 10  # seconds that are worth a process, which takes some to begin


@dataclass(frozen=True)
class Job:
    """One process."""

    launcher: str
    group: Group
    part: int
    again: tuple[str, ...] = ()  # these tests alone, for which there was no time before

    @property
    def name(self) -> str:
        return f"{self.launcher}-{self.group.name}-{self.part}{'-again' * bool(self.again)}"


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

    def cut_off(self) -> list[str]:
        """The tests for which no time was left."""
        return [test["test"] for test in self.named("skipped") if test["reason"].endswith(NO_TIME)]


def run_job(job: Job, options: argparse.Namespace, seconds: float, end: float) -> Outcome:
    """Run a process, which begins no test after so many seconds. `end`: when all of it should have ended."""
    outcome = Outcome(job)
    if seconds < LEAST:
        outcome.fault = "" if job.again else NO_TIME
        left = {"outcome": "skipped", "reason": NO_TIME}
        outcome.tests = {name: {"test": name, **left} for name in job.again}
        return outcome
    again = options.logs / f"{job.name}.tests"
    again.write_text("\n".join(job.again))
    events, log = options.logs / f"{job.name}.jsonl", options.logs / f"{job.name}.log"
    command = [
        sys.executable, "-m", "pytest", "-q", "--tb=short",
        "-p", "tests.gpu.reporting", "-p", "no:cacheprovider",
        f"--part={job.part}/{job.group.processes}", f"--seconds={seconds}", f"--order={options.seed}",
        f"--report={events}", f"--again={again}", *(["--thorough"] if options.thorough else []),
        *job.group.files, *options.pytest,
    ]  # fmt: skip
    settings = {"NORMGEN_LAUNCHER": job.launcher, SEED: str(options.seed), "PYTHONPATH": python_path()}
    if job.group.nvrtc and installed("nvrtc"):
        settings["NORMGEN_COMPILER"] = "nvrtc"
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **settings}, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            status: int | None = process.wait(min(seconds + PATIENCE, end + GRACE - start))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    outcome.seconds = time.monotonic() - start
    _read(outcome, events, status)
    return outcome


def python_path() -> str:
    """Where this checkout is found, and what the caller has on the path."""
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
