"""Every spec on a GPU, in few cases, by the compiler that goes with the launcher: with PyCUDA, nvcc."""

from __future__ import annotations

import pytest

from normgen import bundled
from tests.verify.test_gpu import device  # noqa: F401  a fixture of each test
from tests.verify.test_specs import check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", bundled.names())
def test_a_few_cases(name: str) -> None:
    check(name, None, "cuda", quick=True)
