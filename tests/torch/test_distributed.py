"""Norms in two processes that talk by gloo: DDP, FSDP and DTensors, each beside one process that has all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.torch.gloo import faults, needs_gloo
from tests.torch.processes import CHECKS

pytestmark = needs_gloo


def test_two_processes_have_the_results_of_one(tmp_path):
    for found in faults("tests.torch.processes", 2, tmp_path):
        assert found.keys() == {check.__name__ for check in CHECKS}
        assert not any(found.values()), "\n".join(found.values())
