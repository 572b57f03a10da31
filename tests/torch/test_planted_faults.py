"""Faults planted in what needs PyTorch, as `tests/test_planted.py` plants others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_bounds_of_judges import LOOSENED, loosen
from tests.test_planted import Fault, copy, find

__all__ = ["copy"]  # the fixture

FAULT = Fault(
    "graphs share a channel with other calls",
    "torch/ranks/peer_memory.py",
    "capture = self.transport.capture(stream)",
    "capture = 0",
    "tests/torch/test_backends.py",
    "graph",
)


def test_graphs_that_share_a_channel_are_found(copy: Path) -> None:
    find(FAULT, copy)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in LOOSENED if name.startswith("torch/")])
def test_a_bound_of_probes_that_is_loosened_is_seen(name: str, copy: Path) -> None:
    loosen(name, copy)
