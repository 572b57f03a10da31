"""The CUDA compiler as a command: found or not, its report, its errors."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from normgen.devices.cuda import compile as nvcc
from normgen.errors import CompileError, ToolchainMissing


def test_nvcc_tells_its_version_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMGEN_CACHE", raising=False)
    compiler, asked = tmp_path / "nvcc", tmp_path / "asked"
    compiler.write_text(f"#!/bin/sh\necho asked >> {asked}\necho release 13.0\n")
    compiler.chmod(0o755)
    for changed in (0, 1):
        os.utime(compiler, ns=(changed, changed))
        for _ in range(2):
            nvcc._version.cache_clear()  # as in another process
            assert nvcc.nvcc_version(str(compiler)) == "release 13.0\n"
        assert asked.read_text().count("asked") == 1 + changed


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_compile_error_keeps_the_text_and_what_the_compiler_said(temporary: Path) -> None:
    error = nvcc.failure("the text\n", ["nvcc", "x"], "\nfirst\n\nsecond\n" + "more\n" * 50)
    assert isinstance(error, CompileError) and error.exit_code == 70
    lines = str(error).splitlines()
    assert lines[0].startswith("internal error: generated code does not compile (kept as ")
    assert error.source_path in lines[0] and "report it" in lines[0]
    assert lines[1:3] == ["  first", "  second"] and len(lines) < 12
    kept = Path(error.source_path)
    assert kept.read_text().startswith("the text\n\n\n// nvcc x\n//\n// first\n//\n// second\n// more\n")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_one_mistake_leaves_one_file_however_many_kernels_make_it(temporary: Path) -> None:
    paths = {
        nvcc.failure(f"text {i}", ["nvcc"], f'kernel.cu({i}): error: "at_C" is undefined\n').source_path
        for i in range(24)
    }
    (kept,) = temporary.iterdir()
    assert paths == {str(kept)} and kept.read_text().startswith("text 23\n")
    nvcc.failure("text", ["nvcc"], 'kernel.cu(1): error: "w" is undefined\n')
    assert len(list(temporary.iterdir())) == 2


def test_a_file_of_someone_else_is_left_alone(temporary: Path) -> None:
    first = Path(nvcc.failure("text", ["nvcc"], "error: no\n").source_path)
    first.unlink()
    first.mkdir()  # of that name is something that cannot be replaced
    second = Path(nvcc.failure("text", ["nvcc"], "error: no\n").source_path)
    assert second != first and second.read_text().startswith("text\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary / "nowhere"))
        assert str(nvcc.failure("text", ["nvcc"], "error: no\n")).splitlines() == [
            "internal error: generated code does not compile",
            "  error: no",
        ]


UNDEFINED = "nvcc fatal   : Failed to preprocess host compiler properties.\n"
LACKING = {
    f"gcc: No such file or directory\n{UNDEFINED}": "C++ compiler and does not find gcc: install g++",
    UNDEFINED: "does not find one: install",
    "nvcc fatal   : Cannot find compiler 'cl.exe' in PATH\n": "does not find cl.exe: install",
    "host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15": (
        "does not accept the C++ compiler (unsupported GNU version): install"
    ),
    "cuda_fp16.h:4504:10: fatal error: nv/target: No such file or directory": "install 'cuda-toolkit[cccl]'",
    "nvcc fatal   : Unsupported gpu architecture 'sm_999'\n": "does not compile for sm_999",
    "nvcc fatal   : Value 'sm_999' is not defined for option 'gpu-architecture'\n": "not compile for sm_999",
}


def test_what_nvcc_lacks_is_one_line(temporary: Path) -> None:
    for output, message in LACKING.items():
        error = nvcc.failure("the text", ["nvcc"], output, 1)
        assert isinstance(error, ToolchainMissing) and error.exit_code == 3
        assert message in str(error) and "\n" not in str(error)
    assert not list(temporary.iterdir())


@pytest.mark.nvcc
def test_nvcc_itself(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    text = (
        'extern "C" __global__ void one(float* x) { __shared__ float s[64]; s[threadIdx.x] = *x; *x = s[1]; }'
    )
    binary, (usage,) = nvcc.compile_text(text, "sm_90")
    assert binary.startswith(b"\x7fELF")
    assert (usage.entry, usage.spilled, usage.shared) == ("one", 0, 256) and 0 < usage.registers < 64
    ptx, _ = nvcc.compile_text(text, "sm_80", target="ptx")
    assert b".target sm_80" in ptx
    with pytest.raises(CompileError, match="nonsense"):
        nvcc.compile_text("nonsense", "sm_90")
    with pytest.raises(ToolchainMissing, match="does not compile for sm_11"):
        nvcc.compile_text(text, "sm_11")
    monkeypatch.setenv("NVCC_CCBIN", "/nonexistent/g++")
    with pytest.raises(ToolchainMissing, match=r"needs a C\+\+ compiler and does not find"):
        nvcc.compile_text(text, "sm_90")
