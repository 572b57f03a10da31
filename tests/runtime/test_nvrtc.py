"""The CUDA compiler as a library: what identifies it, its errors, and what it says where it is missing."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normgen.devices.cuda import nvrtc
from normgen.devices.cuda.nvrtc import Library, Nvrtc, find_nvrtc
from normgen.errors import CompileError, ToolchainMissing
from tests.fakes.machine import need_nvrtc

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
    return need_nvrtc()


@pytest.fixture
def afresh() -> Iterator[None]:
    """Look for the library again, before and after."""
    find_nvrtc.cache_clear()
    yield
    find_nvrtc.cache_clear()


@pytest.mark.nvrtc
def test_texts_written_for_nvcc_compile(library: Library) -> None:
    compiler = Nvrtc()
    assert compiler.compile(TEXT, "sm_90").startswith(b"\x7fELF")
    ptx = compiler.build(TEXT, "sm_80", "ptx")
    assert b".target sm_80" in ptx and not ptx.endswith(b"\0")
    assert compiler.version() >= (12, 0)


@pytest.mark.nvrtc
def test_threads_compile_at_once(library: Library) -> None:
    texts = [TEXT.replace("kernel", f"kernel{k}") for k in range(6)]
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda text: Nvrtc().build(text, "sm_90", "ptx"), texts))
    assert all(f".entry kernel{k}(".encode() in ptx for k, ptx in enumerate(made))


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
def test_bad_text_is_kept_with_what_was_said(library: Library) -> None:
    with pytest.raises(CompileError) as caught:
        Nvrtc().compile('extern "C" __global__ void kernel() { nonsense; }', "sm_90")
    assert '"nonsense" is undefined' in str(caught.value)
    kept = Path(caught.value.source_path)
    assert "// nvrtc -arch=sm_90 " in kept.read_text()
    kept.unlink()


@pytest.mark.nvrtc
@pytest.mark.parametrize(("arch", "said"), [("sm_999", "too old (pip install"), ("sm_20", "too new")])
def test_a_card_that_it_does_not_know(library: Library, arch: str, said: str) -> None:
    with pytest.raises(ToolchainMissing, match=f"and not for {arch}") as caught:
        Nvrtc().compile(TEXT, arch)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.nvrtc
def test_a_library_that_does_not_work(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nvrtc, "options", ("-no-such-option",))
    with pytest.raises(ToolchainMissing, match=r"does not work here: .*no-such-option") as caught:
        Nvrtc().compile(TEXT, "sm_90")
    assert "\n" not in str(caught.value)


def _raise(*_: Any) -> Any:
    raise RuntimeError("not found")


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"cuda.bindings": None}, "takes the package cuda-bindings"),
        (
            {"cuda.pathfinder": SimpleNamespace(load_nvidia_dynamic_lib=_raise)},
            "takes NVRTC, which is not found",
        ),
        (
            {
                "cuda.pathfinder": SimpleNamespace(
                    load_nvidia_dynamic_lib=lambda _: SimpleNamespace(abs_path="/nowhere"),
                    find_nvidia_header_directory=lambda _: None,
                )
            },
            "takes CUDA's headers",
        ),
    ],
    ids=["package", "library", "headers"],
)
def test_what_is_missing_is_one_line(
    library: Library, afresh: None, monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any], said: str
) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delattr(sys.modules["cuda"], name.partition(".")[2], raising=False)
        if module is not None:
            monkeypatch.setattr(sys.modules["cuda"], name.partition(".")[2], module, raising=False)
    with pytest.raises(ToolchainMissing) as caught:
        find_nvrtc()
    assert said in str(caught.value) and str(caught.value).endswith(nvrtc.INSTALL)
