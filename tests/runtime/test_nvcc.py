"""The CUDA compiler as a command: found or not, its report, its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.runtime import nvcc
from normgen.runtime.errors import CompileError, ToolchainMissing


def test_nvcc_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvcc.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ToolchainMissing) as caught:
        nvcc.find_nvcc()
    assert "nvcc" in str(caught.value) and "CUDA_HOME" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_compile_error_keeps_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = nvcc.failure("the text", ["nvcc", "x"], "\nfirst\n\nsecond\n" + "more\n" * 50)
    lines = str(error).splitlines()
    assert lines[0].startswith("internal error: generated code does not compile (kept as ")
    assert lines[1:3] == ["  first", "  second"] and len(lines) < 12
    assert Path(error.source_path).read_text() == "the text"
    Path(error.source_path).unlink()


@pytest.mark.nvcc
def test_nvcc_compiles_and_reports() -> None:
    try:
        nvcc.find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(str(reason))
    text = (
        'extern "C" __global__ void one(float* x) { __shared__ float s[64]; s[threadIdx.x] = *x; *x = s[1]; }'
    )
    binary, (usage,) = nvcc.compile_text(text, "sm_90")
    assert binary.startswith(b"\x7fELF")
    assert (usage.entry, usage.spilled, usage.shared) == ("one", 0, 256) and 0 < usage.registers < 64
    ptx, _ = nvcc.compile_text(text, "sm_80", target="ptx")
    assert b".target sm_80" in ptx
    with pytest.raises(CompileError, match="nonsense") as caught:
        nvcc.compile_text("nonsense", "sm_90")
    Path(caught.value.source_path).unlink()
