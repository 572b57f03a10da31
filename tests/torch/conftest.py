"""Where PyTorch is missing, nothing of this folder is collected; the summary of the run says so."""

from __future__ import annotations

from tests.conftest import HAS_TORCH

collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]
