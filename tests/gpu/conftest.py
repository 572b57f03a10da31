"""What the tests on a GPU share."""

from __future__ import annotations

import os

import pytest

SEED = "NORMGEN_TEST_SEED"


@pytest.fixture
def seed() -> str:
    """What random cases are drawn from: another seed, other cases."""
    return os.environ.get(SEED, "0")
