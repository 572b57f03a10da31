"""Calls that `bench/heldout.py` draws, by PyTorch on the CPU: right beside float64; a run from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.bench.programs import BENCH, NAMES

# PyTorch's own gradients of one image in channels-last memory are wrong.
KNOWN = ("instancenorm", "backward", "nhwc", 1)


@pytest.fixture
def heldout(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in NAMES:  # which others import with an imitation of PyTorch
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # put back afterwards: the program sets it
    return pytest.importorskip("heldout")


def found_error(heldout, call):
    providers = sys.modules["providers"]
    problem = heldout.problem_of(call)
    sets = providers.Sets(problem, 1, "cpu")
    made = providers.calls("torch", sets, call.direction)(0)
    return problem, providers.error(made, providers.truth(sets, call.direction))


def test_eager_results_of_every_class_are_right(heldout):
    wrong = sys.modules["providers"].wrong
    for call in map(heldout._small, heldout.compared(5, 140)):
        problem, error = found_error(heldout, call)
        if (call.op, call.direction, call.layout, call.shape[0]) != KNOWN:
            assert not wrong(problem, error), call


def test_gradients_of_f32_gains_are_f32(heldout):
    providers, Problem = sys.modules["providers"], sys.modules["problems"].Problem
    sets = providers.Sets(Problem("layernorm", (4, 64), "bf16", "rows", "f32"), 1, "cpu")
    gradients = providers.calls("torch", sets, "backward")(0)
    assert [each.dtype for each in gradients] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("op", ("instancenorm", "groupnorm"))
def test_the_truth_does_not_depend_on_the_layout(heldout, op):
    providers, Problem = sys.modules["providers"], sys.modules["problems"].Problem
    rows, last = (
        providers.truth(providers.Sets(Problem(op, (1, 64, 3, 3), "f32", layout), 1, "cpu"), "backward")
        for layout in ("nchw", "nhwc")
    )
    for one, other in zip(rows, last, strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_from_end_to_end(tmp_path):
    out = tmp_path / "there" / "lines.jsonl"
    options = ["--count", "1", "--peers", "torch", "--small", "--device", "cpu", "--jobs", "2"]
    command = [sys.executable, str(BENCH / "heldout.py"), "--seed", "2", "--out", str(out), *options]
    path = os.pathsep.join([str(BENCH.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["device"] == "cpu" and line["seed"] == 2 and line["us"].keys() == {"normgen", "torch"}
    assert line["fault"] == line["wrong"] == {}
    assert "1 of 1 calls prepared" in done.stdout and "| all | forward | 1 | 1 |" in done.stdout
    assert done.stdout.rstrip().endswith("0 of 1 drawn calls were not measured")


def test_what_no_type_holds_is_right_where_it_is_infinite(heldout):
    providers = sys.modules["providers"]
    truth = torch.tensor([1.0, -2.0, 70000.0, -80000.0], dtype=torch.float64)
    inf = float("inf")
    for values, right in (
        ([1, -2, inf, -inf], True),
        ([1, -2, inf, inf], False),
        ([inf, -2, inf, -inf], False),
    ):
        made = torch.tensor(values, dtype=torch.float16)
        assert (providers.error((made,), [truth]) < 1e-3) == right
    assert providers.error((truth.float(),), [truth]) < 1e-6
