"""Kernels and pages compile without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from normgen.devices.cuda import nvrtc
from normgen.devices.cuda.compile import find_nvcc
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.package.device_functions import inlined
from normgen.verify.texts import texts
from tests.codegen.norms import packaged
from tests.page.calls import KINDS, calls
from tests.page.test_nvrtc import compiled


@pytest.mark.nvcc
def test_nvcc_takes_warnings_of_a_page_for_errors(tmp_path: Path) -> None:
    path = tmp_path / "page.cu"
    command = [
        find_nvcc(),
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


@pytest.mark.thorough
@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "name", ["layernorm", "l2norm", "batchnorm_channels_last", "groupnorm_silu", "local_response_norm"]
)
def test_no_text_of_any_form_has_a_warning(name: str) -> None:
    package = packaged(name)
    definition = load_definition(Source(f"{name}.norm", package.spec), dict(package.folded))
    for entry, text in texts(definition, package).items():
        assert compiled(inlined(text), nvrtc.OPTIONS)[1] == "", entry


@pytest.mark.nvrtc
def test_nvrtc_sees_what_is_unused() -> None:
    text = 'extern "C" __global__ void kernel(float* x) { int unused = 3; x[0] = 1.f; }'
    assert '"unused" was declared but never referenced' in compiled(text, nvrtc.OPTIONS)[1]
