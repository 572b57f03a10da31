"""Norms in two processes that talk by gloo: DDP, FSDP and DTensors, each beside one process that has all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.torch.gloo import faults, needs_gloo
from tests.torch.processes import CHECKS

pytestmark = needs_gloo


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What went wrong in each check, by process."""
    return faults("tests.torch.processes", 2, tmp_path_factory.mktemp("gloo"))


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_two_processes_have_the_results_of_one(name, found):
    for fault in found:
        assert not fault[name], fault[name]
