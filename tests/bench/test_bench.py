"""The programs of `bench/` without a GPU: sizes of checks, processes that die, what is left to measure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from normgen import bundled
from normgen.measure.timing import Timing
from tests.bench.programs import program

SERVER = """
import os, signal, sys, time
for line in sys.stdin:
    if "die" in line:
        os._exit(7)
    if "hang" in line:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(60)
    print("talk")
    last = ', "last": true' if "end" in line else ""
    print('verdict {"process": %d, "task": "%s"%s}' % (os.getpid(), line.strip(), last), flush=True)
"""


def test_the_sizes_of_every_spec_are_known_and_what_was_skipped_has_not_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verify = program("verify", monkeypatch)
    for spec in bundled.names():
        sizes = verify.sizes_of(spec)
        assert sizes[0] == verify.OWN
        assert len(sizes) > 8, f"bench/verify.py: FORMS lacks the form of the first input of {spec}"
        assert len(set(sizes)) == len(sizes)
    ends: list[dict[str, Any]] = [{"exit": 1}, {"exit": 0, "skipped": ""}, {"exit": None, "error": ""}]
    assert verify.passed({"exit": 0}) and not any(map(verify.passed, ends))


def test_a_process_that_dies_costs_its_own_task_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workers = program("workers", monkeypatch)
    tasks = ["a", "b", "die 1", "c", "end 1", "d", "hang 1"]
    found = workers.share_out(tasks, [sys.executable, "-c", SERVER], 1, tmp_path / "log")
    assert found.keys() == set(tasks)
    assert found["die 1"] == {"fault": "its process ended with 7"}
    assert found["hang 1"] == {"fault": "took too long"}
    assert all(found[t]["task"] == t for t in "abcd")
    first, second, third = (found[t]["process"] for t in ("a", "c", "d"))
    assert first == found["b"]["process"] and second == found["end 1"]["process"]
    assert len({first, second, third}) == 3


def test_a_later_run_measures_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = program("run", monkeypatch)
    listed = run.problems(["softmax", "groupnorm"], ["f32"], [(4096, 32768), (8, 320, 64, 64)], run.LAYOUTS)
    there = ["normgen", "liger", "normgen:split"]
    everything = run._wanted(listed, there, set())
    # Liger has the backward of both, but no groupnorm in channels-last memory.
    assert len(everything) == len(set(everything)) == 3 * 2 + 3 * 2 + 2 * 2
    softmax = listed[0]
    measured = [run.about(softmax, "forward", p) | {"us": 1.0} for p in there]
    part = run.about(softmax, "backward", "liger") | {"us": 1.0}
    header = {"device": "here"}
    run.results.start(tmp_path, header)
    run.results.add(tmp_path, header, [*measured, part])
    left = run._wanted(listed, there, run._done(tmp_path))
    # a line of which one provider is lacking is measured whole: its providers are timed in turn
    assert set(everything) - set(left) == {(softmax, "forward", p) for p in there}


def test_a_figure_is_the_median_of_its_rounds_and_a_fault_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    station = program("station", monkeypatch)
    rounds = [Timing(us, 7.0, "graph") for us in (10.0, 12.0, 11.0)]
    wanted = {"us": 11.0, "spread": 0.1818, "host_us": 7.0, "method": "graph", "copy_us": 5.5, "rho": 0.5}
    assert station._figures(rounds, 5.5) == wanted
    fault = RuntimeError("does not compile (kept as /tmp/x.cu)\nnoise\nk.cu(3): error: no such name\nmore")
    assert station.first_line(fault) == "RuntimeError: does not compile / k.cu(3): error: no such name"
    assert station.first_line(ValueError()) == "ValueError: "
