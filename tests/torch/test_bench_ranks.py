"""`bench/ranks.py` on CPUs: processes measure the same calls, check results, and tell what fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.torch.gloo import LONGEST, needs_gloo
from tests.torch.norms import torch

BENCH = Path(__file__).parents[2] / "bench"
pytestmark = needs_gloo


def test_two_processes_measure_every_provider_and_check_it(tmp_path):
    out = tmp_path / "ranks.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    asked = (
        "--cpu",
        "--out",
        str(out),
        "--calls",
        "layernorm,sync_batchnorm,add_rmsnorm,cross_entropy,softmax",
    )
    done = subprocess.run(
        [*command, str(BENCH / "ranks.py"), *asked], capture_output=True, text=True, timeout=LONGEST
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert {line["world"] for line in lines} == {2} and not [
        line for line in lines if "wrong" in line["note"]
    ]
    timed = {(line["call"], line["provider"], line["pass"]) for line in lines if line["us"] is not None}
    assert all(line["mode"] == "eager" and line["us"] > 0 for line in lines if line["us"] is not None)
    graphs = {line["note"] for line in lines if line["mode"] == "graph"}
    assert all("there is no device" in note for note in graphs)
    peers = {
        "layernorm": {"gather", "statistics", "dtensor"},
        "sync_batchnorm": set(),  # PyTorch's takes no CPU tensors
        "add_rmsnorm": {"all_reduce, normgen", "all_reduce, torch"},
        "cross_entropy": {"gather", "statistics"},
        "softmax": {"gather", "statistics"},
    }
    for call, others in peers.items():
        names = {"normgen", "local normgen", "local torch", *others}
        assert {(call, name, "forward+backward") for name in names} <= timed
        assert (
            call == "sync_batchnorm" or {(call, name, "forward") for name in (*names, "all_reduce")} <= timed
        )
    assert ("add_rmsnorm", "sum of parts", "forward") in timed
    assert "add_rmsnorm 4x64 bf16\n  normgen  " in done.stdout and "0 of 7 calls were skipped" in done.stdout


@pytest.fixture
def ranks(monkeypatch):
    """The program, in a group of one process."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "")  # put back afterwards
    for path in BENCH.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    import ranks

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield ranks
    torch.distributed.destroy_process_group()
    for path in BENCH.glob("*.py"):
        sys.modules.pop(path.stem, None)


def measured(ranks, monkeypatch, providers, seconds=60.0, mode="eager"):
    """The lines of a call of these providers, each of which gives a tensor that is to hold ones, in one
    mode."""
    from ranks_calls import Call
    from ranks_steps import Case, Steps

    def steps(give):
        return lambda: Steps(lambda: (give(),))

    made = Case({name: steps(give) for name, give in providers.items()}, [torch.ones(4).double()])
    monkeypatch.setattr(ranks, "case", lambda call, device: made)
    bench = ranks.Bench(ranks.Together(torch.device("cpu")), {}, time.monotonic() + seconds)
    return [line for line in bench.lines(Call("rmsnorm", (4, 4), "f32")) if line["mode"] == mode]


def test_wrong_results_are_told_beside_their_time(ranks, monkeypatch):
    lines = measured(
        ranks, monkeypatch, {"normgen": lambda: torch.full((4,), 1.1), "gather": lambda: torch.ones(4)}
    )
    assert [line["note"] for line in lines] == ["wrong: relative error 0.1, more than 0.0001", ""]
    assert all(line["us"] > 0 for line in lines)
    assert [ranks.failed(line) for line in lines] == [True, False]
    assert "wrong" in ranks.table(lines).splitlines()[4]
    nothing = measured(ranks, monkeypatch, {"normgen": lambda: torch.full((4,), torch.nan)})
    assert "relative error inf" in nothing[0]["note"]


def test_results_of_graphs_are_compared_too(ranks, monkeypatch):
    import clock

    captured = []

    def record(self, calls):
        captured.append(True)
        return calls

    def late():
        return torch.full((4,), 2.0 if captured else 1.0)

    monkeypatch.setattr(clock.HostClock, "record", record)
    (line,) = measured(ranks, monkeypatch, {"normgen": late}, mode="graph")
    assert (
        line["us"] > 0 and line["note"] == "wrong: relative error 1, more than 0.0001" and ranks.failed(line)
    )


def test_a_provider_that_fails_is_a_note_and_the_others_go_on(ranks, monkeypatch):
    def refuses():
        raise ValueError("odd")

    lines = measured(ranks, monkeypatch, {"gather": refuses, "normgen": lambda: torch.ones(4)})
    assert (lines[0]["us"], lines[0]["note"]) == (None, "ValueError: odd") and lines[1]["us"] > 0
    assert not any(map(ranks.failed, lines))
    assert all(map(ranks.failed, measured(ranks, monkeypatch, {"normgen": refuses})))


def test_nothing_is_begun_after_the_time(ranks, monkeypatch):
    assert measured(ranks, monkeypatch, {"normgen": lambda: torch.ones(4)}, seconds=-1) == []

    def slow():
        time.sleep(0.05)
        return torch.ones(4)

    lines = measured(ranks, monkeypatch, {"gather": slow, "normgen": slow}, seconds=0.2)
    assert lines[0]["us"] > 50_000 and (lines[1]["us"], lines[1]["note"]) == (None, ranks.SKIPPED)
    assert not ranks.failed(lines[1])


@pytest.mark.parametrize(
    ("variables", "options", "told"),
    (
        ({}, ("--cpu",), "start it with torchrun"),
        ({"WORLD_SIZE": "3"}, ("--cpu",), "3 processes do not divide the spread axes"),
        ({"WORLD_SIZE": "2"}, ("--calls", "rmsnorm,groupnorm"), "'groupnorm' is none of rmsnorm, "),
    ),
)
def test_mistakes_are_told_in_a_line(ranks, monkeypatch, capsys, variables, options, told):
    monkeypatch.delenv("RANK", raising=False)
    if variables:
        monkeypatch.setenv("RANK", "0")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["ranks.py", *options])
    with pytest.raises(SystemExit):
        ranks.main()
    assert told in capsys.readouterr().err
