"""What pip alone installs runs a norm: cuda-bindings and NVRTC, without PyCUDA, nvcc or a C++ compiler."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine, need_nvrtc

PRELUDE = """
    import sys
    from pathlib import Path
    sys.modules["pycuda"] = None
    from normgen.devices.cuda import compile as nvcc
    nvcc._USUAL_HOME = Path("/nonexistent")
    import numpy as np
    import normgen
    from normgen.arrays.device_array import DeviceArray
    from normgen.devices.cuda.executor import default_driver
    def array(*shape):
        return DeviceArray.of(np.ones(shape, np.float32))
"""
# Nothing is asked for, and no command is found.
BARE = {
    "NORMGEN_LAUNCHER": "",
    "NORMGEN_COMPILER": "",
    "CUDA_HOME": "/nonexistent",
    "CUDA_PATH": "",
    "PATH": "/nonexistent",
}


@pytest.fixture
def machine(bindings_machine: Machine) -> Machine:
    need_nvrtc()
    return bindings_machine


@pytest.mark.nvrtc
def test_the_first_norm_runs(machine: Machine) -> None:
    code = """
    norm = normgen.load("rmsnorm")
    x, w = array(4, 64), array(64)
    y, rstd = norm.forward(x, w)
    norm.backward(dy=y, x=x, w=w, rstd=rstd)
    print(default_driver().name, default_driver().compiler.name, type(y).__name__, y.shape)
    """
    assert machine.check(PRELUDE + code, **BARE) == "cuda-bindings nvrtc DeviceArray (4, 64)\n"
    launched = [line.split()[1] for line in machine.log if line.startswith("launch")]
    assert launched[0].startswith("rmsnorm_forward") and launched[-1].startswith("rmsnorm_backward")
    assert not machine.compiles
    compiled = len(list((machine.root / "cache").rglob("*.cubin")))
    assert compiled == len(set(launched))
    machine.check(PRELUDE + code, **BARE)
    assert len(list((machine.root / "cache").rglob("*.cubin"))) == compiled


@pytest.mark.nvrtc
def test_what_two_compilers_made_lies_side_by_side(machine: Machine) -> None:
    code = """
    from normgen.devices.cuda.executor import CudaExecutor
    CudaExecutor(0).function('extern "C" __global__ void kernel() {}', "kernel", 0)
    """
    for _ in range(2):
        for compiler in ("nvrtc", "nvcc"):
            machine.check(PRELUDE + code, NORMGEN_COMPILER=compiler)
    made = [path.read_bytes() for path in (machine.root / "cache").rglob("*.cubin")]
    assert sorted(content[:4] for content in made) == [b"fake", b"\x7fELF"]
    assert len(machine.compiles) == 1
