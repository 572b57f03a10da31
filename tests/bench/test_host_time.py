"""`bench/host_time.py` without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.programs import BENCH, program
from tests.fakes import machine


def test_host_times_are_told_for_checked_calls_and_plans(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.need("pycuda", request)
    command = [sys.executable, str(BENCH / "host_time.py"), "--recording", "--batches", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split()[:5] == ["library", "spec", "direction", "checked", "plan"]
    cases = program("host_time", monkeypatch).CASES
    assert [tuple(line.split()[1:3]) for line in lines] == [case[:2] for case in cases]
    assert all(float(microseconds) > 0 for line in lines for microseconds in line.split()[3:])
