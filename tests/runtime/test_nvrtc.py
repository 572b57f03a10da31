"""The CUDA compiler as a library: what identifies it, its errors, and what it says where it is missing."""

from __future__ import annotations

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normgen.devices.cuda import nvrtc
from normgen.devices.cuda.nvrtc import Library, Nvrtc, find_nvrtc
from normgen.errors import CompileError, ToolchainMissing

TEXT = """
#include <cuda_bf16.h>
constexpr float LEAST = -INFINITY;
extern "C" __global__ void kernel(float* x) {
    const auto each = [&](auto visit) { visit(x[0]); };
    each([&](float& value) { value += LEAST; });
}
"""


@pytest.fixture
def library() -> Library:
    return find_nvrtc()


@pytest.mark.nvrtc
def test_texts_written_for_nvcc_compile(library: Library) -> None:
    compiler = Nvrtc()
    assert compiler.version() >= (12, 0)
    assert compiler.compile(TEXT, "sm_90").startswith(b"\x7fELF")
    texts = [TEXT.replace("kernel", f"kernel{k}") for k in range(3)]
    with ThreadPoolExecutor(3) as threads:  # which compile at once
        made = list(threads.map(lambda text: Nvrtc().build(text, "sm_80", "ptx"), texts))
    for k, ptx in enumerate(made):
        assert f".entry kernel{k}(".encode() in ptx and b".target sm_80" in ptx and not ptx.endswith(b"\0")


@pytest.mark.nvrtc
def test_the_key_of_a_binary_tells_builds_and_headers_apart(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / library.path.name).write_bytes(b"another build")
    for name in nvrtc._HEADERS:
        (tmp_path / name).write_bytes((library.headers / name).read_bytes() + b"\n")
    others = (
        dataclasses.replace(library, path=tmp_path / library.path.name),
        dataclasses.replace(library, headers=tmp_path),
        dataclasses.replace(library, version=(99, 0)),
    )
    found = [Nvrtc().toolchain()]
    for other in others:
        monkeypatch.setattr(nvrtc, "find_nvrtc", lambda other=other: other)
        found.append(Nvrtc().toolchain())
    assert len(set(found)) == len(found)


@pytest.mark.nvrtc
def test_texts_and_options_that_are_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match='"nonsense" is undefined') as caught:
        Nvrtc().compile('extern "C" __global__ void kernel() { nonsense; }', "sm_90")
    kept = Path(caught.value.source_path)
    assert "// nvrtc -arch=sm_90 " in kept.read_text()
    kept.unlink()
    for arch, said in (("sm_999", r"upgrade it \(pip install"), ("sm_20", "install an older one")):
        with pytest.raises(ToolchainMissing, match=f"^[^\n]*, not {arch}: {said}[^\n]*$"):
            Nvrtc().compile(TEXT, arch)
    monkeypatch.setattr(Nvrtc, "options", ("-no-such-option",))
    with pytest.raises(ToolchainMissing, match=r"^[^\n]*does not work here: [^\n]*no-such-option[^\n]*$"):
        Nvrtc().compile(TEXT, "sm_90")


def test_what_is_missing_is_one_line(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_: str) -> Any:
        raise RuntimeError("not found")

    def nowhere(_: str) -> Any:
        return SimpleNamespace(abs_path="/nowhere")

    for load, said in ((not_found, "needs NVRTC, which is not found"), (nowhere, "needs CUDA's headers")):
        module = SimpleNamespace(load_nvidia_dynamic_lib=load, find_nvidia_header_directory=lambda _: None)
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", module)
        monkeypatch.setattr(sys.modules["cuda"], "pathfinder", module, raising=False)
        with pytest.raises(ToolchainMissing) as caught:
            find_nvrtc.__wrapped__()
        assert said in str(caught.value) and str(caught.value).endswith(nvrtc.INSTALL)
