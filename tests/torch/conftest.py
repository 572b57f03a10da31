"""Where PyTorch is missing, nothing of this folder is collected; the summary of the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import HAS_TORCH

collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nearly all of these run kernels."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("kernels")
