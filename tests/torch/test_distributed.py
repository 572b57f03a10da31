"""Norms in two processes that talk by gloo: DDP, FSDP and DTensors, each beside one process that has all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch.norms import torch
from tests.torch.processes import CHECKS

LONGEST = 240  # seconds
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo"
)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """What went wrong in each check, by process."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    command = [sys.executable, "-m", "tests.torch.processes"]
    root = Path(__file__).parents[2]
    running = [subprocess.Popen([*command, str(rank), str(store)], cwd=root) for rank in range(2)]
    try:
        assert [process.wait(LONGEST) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    return [json.loads(store.with_name(f"store.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_two_processes_have_the_results_of_one(name, faults):
    for fault in faults:
        assert not fault[name], fault[name]
