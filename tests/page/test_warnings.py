"""Kernels and pages compile without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from normgen import bundled
from normgen.devices.cuda import nvrtc
from normgen.devices.cuda.compile import find_nvcc
from normgen.errors import ToolchainMissing
from normgen.package.device_functions import inlined
from tests.fakes.machine import need_nvrtc
from tests.page.calls import KINDS, calls
from tests.page.test_nvrtc import Alone

FEW = ("rmsnorm", "batchnorm")


def warnings(text: str, options: tuple[str, ...]) -> str:
    """What NVRTC says of a text."""
    found = nvrtc.find_nvrtc()
    _, program = found.api.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
    every = ["-arch=sm_90", f"-I{found.headers}", *options]
    found.api.nvrtcCompileProgram(program, len(every), [each.encode() for each in every])
    _, size = found.api.nvrtcGetProgramLogSize(program)
    said = bytes(size)
    found.api.nvrtcGetProgramLog(program, said)
    found.api.nvrtcDestroyProgram(program)
    return said.rstrip(b"\0").decode()


def cases() -> list[object]:
    """Every spec in one kind of call, most of them thorough."""
    return [
        pytest.param(name, place % len(KINDS), marks=() if name in FEW else pytest.mark.thorough, id=name)
        for place, name in enumerate(bundled.names())
    ]


@pytest.mark.nvcc
def test_nvcc_takes_warnings_of_a_page_for_errors(tmp_path: Path) -> None:
    try:
        nvcc = find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"nvcc did not look for warnings, NVRTC did: {reason}")
    path = tmp_path / "page.cu"
    command = [
        nvcc,
        "-arch=sm_90",
        "-std=c++17",
        "-Werror",
        "all-warnings",
        "-ptx",
        "-o",
        f"{path}.ptx",
        path,
    ]
    for call in calls("rmsnorm", *KINDS[0]):
        path.write_text(call.page)
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nvrtc
def test_nvrtc_sees_what_is_unused() -> None:
    need_nvrtc()
    text = 'extern "C" __global__ void kernel(float* x) { int unused = 3; x[0] = 1.f; }'
    assert '"unused" was declared but never referenced' in warnings(text, nvrtc.OPTIONS)


@pytest.mark.nvrtc
@pytest.mark.parametrize(("name", "kind"), cases())
def test_no_text_of_a_call_has_a_warning(name: str, kind: int) -> None:
    need_nvrtc()
    for call in calls(name, *KINDS[kind]):
        assert warnings(call.page, Alone.options) == ""
        for launch in call.plan.launches:
            assert warnings(inlined(launch.source), nvrtc.OPTIONS) == "", launch.entry
