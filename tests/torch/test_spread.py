"""Norms whose axes are spread over processes that talk by gloo, beside those of one process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch import spread_processes as processes
from tests.torch.gloo import LONGEST, faults, needs_gloo

pytestmark = needs_gloo
MODULE = "tests.torch.spread_processes"
# A rank that is gone when the other calls.
DYING = """
import os, sys
import torch, torch.distributed as dist
import normgen.torch as nt
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
norm, x = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), torch.randn(3, 4)
norm(x)
if rank:
    os._exit(3)
try:
    norm(x)
except Exception as fault:
    print(type(fault).__name__, fault)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return faults(MODULE, 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return faults(MODULE, 4, tmp_path_factory.mktemp("four"), {processes.SET: "four"})


@pytest.mark.parametrize("name", [check.__name__ for check in processes.SETS["two"]])
def test_two_processes_have_the_results_of_one(name, two):
    for fault in two:
        assert not fault[name], fault[name]


@pytest.mark.parametrize("name", [check.__name__ for check in processes.SETS["four"]])
def test_four_processes_have_the_results_of_one(name, four):
    """One of which has no elements."""
    for fault in four:
        assert not fault[name], fault[name]


@pytest.mark.thorough
def test_every_spec_on_three_processes_has_the_results_of_one(tmp_path):
    """One of which has no elements."""
    for found in faults(MODULE, 3, tmp_path, {processes.SET: "every"}):
        assert not any(found.values()), "\n".join(found.values())


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path):
    store, root = tmp_path / "store", Path(__file__).parents[2]
    options = {"cwd": root, "stdout": subprocess.PIPE, "text": True}
    running = [
        subprocess.Popen([sys.executable, "-c", DYING, str(rank), str(store)], **options) for rank in (0, 1)
    ]
    try:
        assert running[1].wait(LONGEST) == 3
        died = time.monotonic()
        told, _ = running[0].communicate(timeout=60)
        assert time.monotonic() - died < 60
    finally:
        for each in running:
            each.kill()
    assert told.startswith("PeerFault a rank of group"), told
