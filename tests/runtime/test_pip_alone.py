"""What pip alone installs runs a norm: cuda-bindings and NVRTC, without PyCUDA, nvcc or a C++ compiler."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine, need_nvrtc
from tests.runtime.test_doctor import PIP_ALONE

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


@pytest.mark.nvrtc
def test_the_first_norm_runs(bindings_machine: Machine) -> None:
    need_nvrtc()
    code = """
    norm = normgen.load("rmsnorm")
    x, w = array(4, 64), array(64)
    y, rstd = norm.forward(x, w)
    norm.backward(dy=y, x=x, w=w, rstd=rstd)
    print(default_driver().name, default_driver().compiler.name, type(y).__name__, y.shape)
    """
    assert bindings_machine.check(PRELUDE + code, **PIP_ALONE) == "cuda-bindings nvrtc DeviceArray (4, 64)\n"
    launched = [line.split()[1] for line in bindings_machine.log if line.startswith("launch")]
    assert launched[0].startswith("rmsnorm_forward") and launched[-1].startswith("rmsnorm_backward")
    assert not bindings_machine.compiles
    compiled = len(list((bindings_machine.root / "cache").rglob("*.cubin")))
    assert compiled == len(set(launched))
    bindings_machine.check(PRELUDE + code, **PIP_ALONE)
    assert len(list((bindings_machine.root / "cache").rglob("*.cubin"))) == compiled
