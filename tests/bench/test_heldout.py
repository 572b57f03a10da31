"""`bench/heldout.py` without a GPU: its arithmetic, its budget, and what a call costs that goes wrong."""

from __future__ import annotations

import io
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.programs import program

# A process that answers as those of heldout.py do, and goes wrong where its argument says so.
SERVER = """
import json, os, sys, time
print("half a line", end="")
for line in sys.stdin:
    task = json.loads(line)
    if task["call"] == 1 and ("die" in sys.argv or "quack" in task["prepared"]):
        os._exit(3)
    if task["call"] == 2 and "slow" in sys.argv:
        time.sleep(float(sys.argv[-1]) - time.monotonic())  # until --end
        os._exit(4)
    rows = [{"provider": p, "us": us, "spread": 0.0} for p, us in (("normgen", 2.0), ("torch", 3.0))]
    print("\\nverdict", json.dumps({"rows": rows}), flush=True)
"""


@pytest.fixture
def heldout(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("heldout", monkeypatch)


def line(kind: str, direction: str = "forward", wrong: Any = None, fault: Any = None, **us: float) -> Any:
    about = {"op": "rmsnorm", "shape": [4, 64], "dtype": "bf16", "layout": "rows", "params": None}
    return about | {
        "kind": kind,
        "direction": direction,
        "us": us,
        "wrong": wrong or {},
        "fault": fault or {},
    }


def given(out: Path | None, seconds: float = 60.0) -> Namespace:
    return Namespace(out=out, budget=60.0, jobs=1, end=time.monotonic() + seconds)


# ---------------------------------------------------------------------------------------- arithmetic


def test_a_class_has_the_mean_and_the_worst_over_the_fastest_right_peer(monkeypatch: Any) -> None:
    standing = program("standing", monkeypatch)
    lines = [
        line("few", normgen=1.0, torch=4.0, quack=2.0),  # 2
        line("few", normgen=2.0, torch=1.0, liger=0.1, wrong={"liger": "relative error 3"}),  # 0.5
        line("few", normgen=1.0, compile=0.95, fault={"torch": "OutOfMemoryError: no"}),  # behind by 5 %
        line("few", normgen=1.0, compile=0.985),  # by less than 2 %
        line("few", torch=1.0, fault={"normgen": "RuntimeError: no"}),
        line("few", normgen=1.0, torch=1.0, wrong={"normgen": "relative error nan"}),
        line("few", normgen=1.0),
        line("few", "backward", normgen=1.0, torch=3.0),
        line("long", normgen=1.0, torch=1.0),
    ]
    few, backward, long, every, every_backward = standing.standings(lines)
    assert (few.kind, few.direction, few.calls, len(few.gains)) == ("few", "forward", 7, 4)
    assert few.mean == pytest.approx((2 * 0.5 * 0.95 * 0.985) ** 0.25)
    assert (few.worst.ratio, few.worst.peer, few.worst.line) == (0.5, "torch", lines[1])
    assert (few.behind(0.02), few.behind(0.10)) == (2, 1)
    assert (backward.mean, long.mean) == (pytest.approx(3), pytest.approx(1))
    assert (every.kind, every.calls, len(every.gains), every.behind(0.02)) == ("all", 8, 5, 2)
    assert (every_backward.direction, every_backward.calls) == ("backward", 1)

    eager = standing.standings(lines, ("torch",))[0]
    assert [gain.ratio for gain in eager.gains] == [4.0, 0.5]


def test_a_report_names_the_worst_points_and_every_fault_once(monkeypatch: Any) -> None:
    standing = program("standing", monkeypatch)
    lines = [
        line("few", normgen=4.0, compile=3.0, fault={"quack": "ValueError: odd"}),
        line("few", "backward", torch=3.0, fault={"quack": "ValueError: odd", "normgen": "RuntimeError: x"}),
    ]
    text = standing.report(lines)
    point = "0.750 | 0.750 | 1 | 1 | rmsnorm 4x64 bf16 rows: torch.compile |"
    assert f"| few | forward | 1 | 1 | {point}" in text and f"| all | forward | 1 | 1 | {point}" in text
    assert "| few | backward | 1 | 0 |  |  |  |  |  |" in text
    first, second = text.rpartition("failed:\n\n")[2].splitlines()
    assert first == "- normgen: RuntimeError: x (backward of rmsnorm 4x64 bf16 rows)"
    assert second == "- quack: ValueError: odd (forward of rmsnorm 4x64 bf16 rows and 1 more)"


def test_the_status_says_whether_normgen_was_right_everywhere(heldout: Any, capsys: Any) -> None:
    good = line("few", normgen=1.0, torch=1.0, wrong={"torch": "relative error 2"})
    assert heldout._finish([good]) == 0
    assert heldout._finish([good, line("few", torch=1.0, fault={"all together": "its process ended"})]) == 1
    assert heldout._finish([line("few", normgen=1.0, wrong={"normgen": "relative error 2"})]) == 1
    assert heldout._finish([]) == 1


# ------------------------------------------------------------------------------------------- stages


def measured(heldout: Any, monkeypatch: Any, out: Path | None, seconds: float, *how: str) -> list[Any]:
    calls = heldout.compared(1, 4)
    prepared = {place: {p: {} for p in ("normgen", "torch", *how)} for place in range(len(calls))}
    monkeypatch.setattr(
        heldout, "_worker", lambda what, given: [sys.executable, "-c", SERVER, *how, str(given.end)]
    )
    monkeypatch.setattr(heldout, "LAST", 0)
    lines: list[Any] = heldout._measure(calls, prepared, {"seed": 1}, given(out, seconds))
    return lines


def test_a_call_that_ends_its_process_is_one_failed_line(
    heldout: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    out = tmp_path / "lines.jsonl"
    lines = measured(heldout, monkeypatch, out, 60, "die")
    assert [each["place"] for each in lines] == [0, 2, 3, 1]
    assert [each["us"] for each in lines[:3]] == [{"normgen": 2.0, "torch": 3.0}] * 3
    assert lines[3]["us"] == {} and lines[3]["fault"] == {"all together": "its process ended with 3"}
    assert [json.loads(text) for text in out.read_text().splitlines()] == json.loads(json.dumps(lines))
    assert lines[0].keys() >= {"seed", "kind", "op", "direction", "dtype", "layout", "shape", "bytes"}


def test_what_a_peer_has_ended_is_measured_again_without_it(heldout: Any, monkeypatch: Any) -> None:
    *_, again = measured(heldout, monkeypatch, None, 60, "quack")
    assert again["place"] == 1 and again["us"] == {"normgen": 2.0, "torch": 3.0}
    assert again["fault"] == {"all together": "its process ended with 3"}


def test_calls_that_the_budget_cuts_off_are_not_measured(heldout: Any, monkeypatch: Any) -> None:
    lines = measured(heldout, monkeypatch, None, 2, "slow")
    assert [each["place"] for each in lines] == [0, 1]
    assert measured(heldout, monkeypatch, None, -1) == []


def test_what_is_not_tried_out_in_time_is_not_measured(heldout: Any, monkeypatch: Any) -> None:
    calls, asked = heldout.compared(1, 3), []

    def share_out(tasks: list[str], command: Any, jobs: int, log: Path, seconds: float) -> Any:
        asked.extend(tasks)
        assert seconds == heldout.PREPARING * 60
        return {task: {"forward": ""} for task in tasks[:-1]}

    monkeypatch.setattr(heldout, "share_out", share_out)
    prepared = heldout._prepare(calls, ["normgen", "torch"], given(None))
    assert asked == ["normgen 0", "torch 0", "normgen 1", "torch 1", "normgen 2", "torch 2"]
    assert prepared == {place: {"normgen": {"forward": ""}, "torch": {"forward": ""}} for place in (0, 1)}


def test_peers_are_asked_for_what_they_have(heldout: Any) -> None:
    there = ["normgen", "torch", "compile", "liger", "quack"]
    calls = heldout.compared(1, 70)
    for call in calls:
        asked = heldout._tasks(0, call, there)
        assert asked.keys() >= {"normgen", "torch", "compile"}
        assert ("liger" in asked) == (
            call.layout == "rows" or (call.op, call.layout) == ("groupnorm", "nchw")
        )
        assert ("quack" in asked) == (call.layout == "rows")


class Station:
    """Measures at once, or raises what it was made with."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault, self.asked = fault, list[Any]()

    def measure(self, problem: Any, direction: str, prepared: Any) -> list[Any]:
        self.asked.append((problem, direction, prepared))
        if self._fault:
            raise self._fault
        return [{"provider": "normgen", "us": 1.0}]


@pytest.mark.parametrize(("left", "limit"), ((1000, 40), (20, 20), (-5, 0.1)))
def test_a_call_has_a_time_limit_within_the_budget(
    heldout: Any, monkeypatch: Any, capsys: Any, left: float, limit: float
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(heldout.signal, "setitimer", lambda which, seconds: limits.append(seconds))
    monkeypatch.setattr(heldout, "time", Namespace(monotonic=lambda: 0.0))
    calls, station = heldout.compared(1, 2), Station()
    task = {"call": 1, "prepared": {"normgen": {"forward": ""}}}
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{json.dumps(task)}\n"))
    heldout.measure_each(calls, station, left)
    assert limits == [limit, 0]
    assert station.asked == [(heldout.problem_of(calls[1]), calls[1].direction, task["prepared"])]
    assert json.loads(capsys.readouterr().out.removeprefix("\nverdict ")) == {
        "rows": [{"provider": "normgen", "us": 1.0}]
    }


def test_after_a_lost_device_the_process_is_replaced(heldout: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(heldout.signal, "setitimer", lambda which, seconds: None)
    task = json.dumps({"call": 0, "prepared": {}})
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{task}\n{task}\n"))
    station = Station(RuntimeError("no such device"))
    heldout.measure_each(heldout.compared(1, 1), station, time.monotonic() + 60)
    verdict = json.loads(capsys.readouterr().out.removeprefix("\nverdict "))
    assert verdict == {"fault": "RuntimeError: no such device", "last": True} and len(station.asked) == 1


def test_lengths_that_are_cut_down_leave_the_same_remainders(heldout: Any) -> None:
    for call in heldout.compared(2, 70):
        small = heldout._small(call)
        assert max(small.shape) < 128 and len(small.shape) == len(call.shape)
        assert small.shape[-1] % 8 == call.shape[-1] % 8 or call.layout != "rows"


def test_without_a_gpu_the_program_says_how_to_try_it_out(
    heldout: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(heldout.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["heldout.py", "--seed", "1"])
    with pytest.raises(SystemExit):
        heldout.main()
    assert "PyTorch finds no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    (
        ("--peers", "torch,apex", "'apex' is none of torch, compile, liger, quack"),
        ("--count", "0", "less than 1"),
    ),
)
def test_mistakes_are_told_in_a_line(
    heldout: Any, monkeypatch: Any, capsys: Any, option: str, value: str, told: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["heldout.py", option, value])
    with pytest.raises(SystemExit):
        heldout.main()
    assert told in capsys.readouterr().err


def test_files_of_several_runs_are_reported_together(
    heldout: Any, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, us in zip(paths, (1.0, 4.0), strict=True):
        path.write_text(f"{json.dumps(line('few', normgen=1.0, torch=us))}\n")
    monkeypatch.setattr(sys, "argv", ["heldout.py", "--read", *map(str, paths)])
    assert heldout.main() == 0
    assert "| few | forward | 2 | 2 | 2.000 | 1.000 |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["heldout.py", "--read", str(tmp_path / "three.jsonl")])
    with pytest.raises(SystemExit):
        heldout.main()
    assert "there is no file" in capsys.readouterr().err
