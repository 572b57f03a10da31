"""What the tests of exported kernels share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import machine as machines


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording libcuda."""
    made = tmp_path_factory.mktemp("machine") / "lib"
    machines.build(made)
    return made
