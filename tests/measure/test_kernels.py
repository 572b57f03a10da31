"""What nvcc makes of the kernels that measure."""

from __future__ import annotations

import pytest

from normgen.devices.cuda.compile import compile_text
from normgen.errors import ToolchainMissing
from normgen.measure.clock import kernels


@pytest.mark.nvcc
def test_copies_and_triads_spill_nothing() -> None:
    try:
        _, report = compile_text(kernels(), "sm_90")
    except ToolchainMissing as fault:
        pytest.skip(f"the kernels that measure were not compiled: {fault}")
    assert {u.entry for u in report} >= {
        f"{kind}{words}" for kind in ("copy", "triad") for words in ("1", "2", "4", "1s", "2s", "4s")
    }
    assert not any(u.spilled for u in report)
    assert max(u.registers for u in report) <= 64, "1024 threads must fit a multiprocessor"
