"""Norms whose axes are spread over processes that talk by gloo, beside those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch import spread_anew
from tests.torch import spread_processes as processes
from tests.torch.gloo import LONGEST, WORDS_ON_HOST, faults, needs_gloo
from tests.torch.spread_peer_memory import BACKEND

pytestmark = needs_gloo
MODULE = "tests.torch.spread_processes"
ROOT = Path(__file__).parents[2]
# A rank that makes fewer calls than the other.
ABSENT = """
import os, sys, time
import torch, torch.distributed as dist
import normgen.torch as nt
store, calls, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
norm, x = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), torch.randn(3, 4)
for _ in range(calls):
    norm(x)
if rank:
    os._exit(3) if calls else time.sleep(600)
try:
    norm(x)
except Exception as fault:
    print(type(fault).__name__, fault, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("checks", "ranks", "variables"),
    [
        ("two", 2, {}),
        ("four", 4, {}),
        ("words", 3, {WORDS_ON_HOST: "1", BACKEND: "peer-memory"}),
        ("within", 3, {WORDS_ON_HOST: "1", BACKEND: "auto"}),
        pytest.param("every", 3, {}, marks=pytest.mark.thorough),
    ],
    ids=["two", "four", "words", "within", "every"],
)
def test_processes_have_the_results_of_one(checks, ranks, variables, tmp_path):
    """One of three or four has no elements."""
    for found in faults(MODULE, ranks, tmp_path, {processes.SET: checks, **variables}):
        assert found.keys() == {check.__name__ for check in processes.SETS[checks]}
        assert not any(found.values()), "\n".join(found.values())


def test_a_group_that_is_made_anew_under_its_name_is_another_one(tmp_path):
    """Of other sizes and processes, some of which were not in the earlier ones."""
    environment = os.environ | {"NORMGEN_RANKS_TIMEOUT": "120"}
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True, "env": environment}
    command = [sys.executable, "-m", "tests.torch.spread_anew", str(tmp_path / "store")]
    running = [subprocess.Popen([*command, str(k)], **options) for k in range(spread_anew.PROCESSES)]
    try:
        told = [each.communicate(timeout=LONGEST)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    assert told == [""] * len(told), "\n".join(told)


@pytest.mark.parametrize(
    ("calls", "wanted"),
    [
        (1, "PeerFault group"),
        (
            0,
            "PeerFault rmsnorm over D: rank 1 made no call within 5 s, so the group is out of step",
        ),
    ],
    ids=["later", "first"],
)
def test_a_rank_that_does_not_call_is_an_error_on_the_others(calls, wanted, tmp_path):
    """It is gone after its first call, or stays and never calls."""
    options = {
        "cwd": ROOT,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": os.environ | {"NORMGEN_RANKS_TIMEOUT": "5" if not calls else "300"},
    }
    command = [sys.executable, "-c", ABSENT, str(tmp_path / "store"), str(calls)]
    running = [subprocess.Popen([*command, str(rank)], **options) for rank in (0, 1)]
    try:
        told, _ = running[0].communicate(timeout=LONGEST)
    finally:
        for each in running:
            each.kill()
    assert told.startswith(wanted), told
