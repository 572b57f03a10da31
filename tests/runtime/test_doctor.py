"""Imaginary machines: what `normgen doctor` says of them, and that what pip alone installs runs a norm."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Mapping

import pytest

from normgen.cli import exits
from normgen.devices.cuda.nvrtc import find_nvrtc
from tests.fakes.machine import Machine
from tests.sampling import paired

PIP_ALONE: Mapping[str, str] = {
    "NORMGEN_LAUNCHER": "",
    "NORMGEN_COMPILER": "",
    "CUDA_HOME": "/nonexistent",
    "CUDA_PATH": "",
    "PATH": "/nonexistent",
}
# Hides packages, and the toolkit that may be installed here.
PRELUDE = """
    import os, sys
    from pathlib import Path
    sys.modules |= dict.fromkeys(os.environ.get("HIDDEN", "").split())
    from normgen.devices.cuda import compile as nvcc
    nvcc._USUAL_HOME = Path("/nonexistent")
    nvcc._wheel_homes = list
"""
COMMAND = """
    from normgen.cli import main
    sys.argv = ["normgen", *os.environ.get("COMMAND", "doctor").split()]
    main()
"""
# Without PyCUDA, nvcc or a C++ compiler.
NORM = """
    import numpy as np
    import normgen
    from normgen.arrays.device_array import DeviceArray
    from normgen.devices.cuda.executor import default_driver
    x, w = (DeviceArray.of(np.ones(shape, np.float32)) for shape in ((4, 64), (64,)))
    norm = normgen.load("rmsnorm")
    y, rstd = norm.forward(x, w)
    norm.backward(dy=y, x=x, w=w, rstd=rstd)
    print(default_driver().name, default_driver().compiler.name, type(y).__name__, y.shape)
"""
# The exit code, packages that are not installed, and the environment.
SITUATIONS: dict[str, tuple[int, str, Mapping[str, str]]] = {
    "pip-alone": (exits.OK, "pycuda", PIP_ALONE),
    "pycuda-nvcc": (exits.OK, "", {"NORMGEN_LAUNCHER": "", "NORMGEN_COMPILER": ""}),
    "no-driver": (exits.FAULTS, "pycuda", {**PIP_ALONE, "LD_LIBRARY_PATH": ""}),
    "no-device": (exits.FAULTS, "pycuda", {**PIP_ALONE, "FAKE_CUDA_DEVICES": "0"}),
    "nothing": (exits.FAULTS, "pycuda cuda.bindings", PIP_ALONE),
    "no-nvrtc": (exits.FAULTS, "pycuda cuda.bindings.nvrtc", PIP_ALONE),
    "old-driver": (exits.FAULTS, "pycuda", {**PIP_ALONE, "FAKE_CUDA_VERSION": "12080"}),
    "no-such-launcher": (exits.FAULTS, "pycuda", {**PIP_ALONE, "NORMGEN_LAUNCHER": "rocm"}),
    "old-nvrtc": (exits.FAULTS, "pycuda", {**PIP_ALONE, "FAKE_CUDA_MAJOR": "99"}),
}


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", SITUATIONS)
def test_what_the_doctor_says(
    name: str, request: pytest.FixtureRequest, golden: Callable[[str, str], None]
) -> None:
    code, hidden, environment = SITUATIONS[name]
    version = ".".join(map(str, find_nvrtc().version))
    fixture = "pycuda_machine" if name == "pycuda-nvcc" else "bindings_machine"
    machine: Machine = request.getfixturevalue(fixture)
    done = machine.run(PRELUDE + COMMAND, HIDDEN=f"{hidden} torch", **environment)
    assert (done.returncode, done.stderr) == (code, "")
    golden(f"doctor/{name}.txt", stripped(done.stdout, machine, version))


@pytest.mark.parametrize(
    ("command", "hidden"),
    paired(
        ["tune", "bench", "check --quick --executor cuda"],
        ["pycuda", "pycuda cuda.bindings", "cuda.bindings"],
    ),
)
def test_a_missing_driver_is_said_first(command: str, hidden: str, bindings_machine: Machine) -> None:
    """In the words of the doctor, whether the package that launches is missing too."""
    environment = {**PIP_ALONE, "LD_LIBRARY_PATH": "", "HIDDEN": f"{hidden} torch"}
    done = bindings_machine.run(PRELUDE + COMMAND, COMMAND=f"{command} rmsnorm", **environment)
    assert (done.returncode, done.stdout) == (exits.GPU, "")
    said = " ".join(bindings_machine.run(PRELUDE + COMMAND, **environment).stdout.split())
    first = said.partition("a GPU: ")[2].partition(".")[0]
    assert first.startswith("no CUDA driver is found: install") and done.stderr == f"{first}\n"


def stripped(text: str, machine: Machine, nvrtc: str) -> str:
    """A report without what differs from machine to machine: places and versions."""
    for place, word in ((str(machine.root), "ROOT"), (sysconfig.get_path("purelib"), "PACKAGES")):
        text = text.replace(place, word)
    text = re.sub(r"^(C\+\+ compiler +)\S.*\)$", r"\1COMPILER", text, flags=re.MULTILINE)
    text = re.sub(r"^(launcher +\S+ )[\d.]+$", r"\1VERSION", text, flags=re.MULTILINE)
    text = re.sub(r"sm_\d+ to sm_\d+", "sm_LEAST to sm_MOST", text)
    text = re.sub(rf"(NVRTC(?: of CUDA)?|nvrtc of CUDA) {re.escape(nvrtc)}\b", r"\1 VERSION", text)
    return text.replace(f"libnvrtc.so.{nvrtc.partition('.')[0]}", "libnvrtc.so")


@pytest.mark.nvrtc
def test_what_pip_alone_installs_runs_a_norm(bindings_machine: Machine) -> None:
    said = "cuda-bindings nvrtc DeviceArray (4, 64)\n"
    assert bindings_machine.check(PRELUDE + NORM, HIDDEN="pycuda", **PIP_ALONE) == said
    launched = [line.split()[1] for line in bindings_machine.log if line.startswith("launch")]
    assert launched[0].startswith("rmsnorm_forward") and launched[-1].startswith("rmsnorm_backward")
    compiled = [*(bindings_machine.root / "cache").rglob("*.cubin")]
    assert len(compiled) == len(set(launched)) and not bindings_machine.compiles
    assert bindings_machine.check(PRELUDE + NORM, HIDDEN="pycuda", **PIP_ALONE) == said
    assert [*(bindings_machine.root / "cache").rglob("*.cubin")] == compiled
