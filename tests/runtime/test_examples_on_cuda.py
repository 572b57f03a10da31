"""The examples that want a GPU: over an imaginary CuPy, and over PyCUDA with a driver that records."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from tests.fakes.arrays import CupyArray
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import Machine
from tests.runtime.test_launchers import launches

FOLDER = Path(__file__).parent.parent.parent / "examples"


def test_cupy_norm(driver: FakeDriver, streams: dict[int, int]) -> None:
    """Results are CuPy's arrays, and launches go to CuPy's current stream."""
    streams[0] = 0x77
    example = runpy.run_path(str(FOLDER / "cupy_norm.py"))
    x, w, dy = (CupyArray(shape, np.float16) for shape in ((64, 8192), (8192,), (64, 8192)))
    made = example["forward_and_backward"](x, w, dy)
    assert [(type(each), each.shape) for each in made] == [(CupyArray, each.shape) for each in (x, dy, w)]
    entries = [launch.entry for launch in driver.launches]
    assert entries[0].startswith("layernorm_forward") and entries[1].startswith("layernorm_backward")
    assert {launch.stream for launch in driver.launches} == {0x77}


def test_pycuda_norm(pycuda_machine: Machine) -> None:
    """Nothing is computed, so that errors are what they are: one call and two of a plan are launched."""
    path = str(FOLDER / "pycuda_norm.py")
    printed = pycuda_machine.check(f"import runpy\nrunpy.run_path({path!r}, run_name='__main__')")
    assert "by a plan" in printed
    assert sum("rmsnorm_forward" in line for line in launches(pycuda_machine)) == 3
