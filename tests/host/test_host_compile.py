"""Compiling for the host: the cache under many processes, what is missing, what is broken, tidy C++."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from normgen.devices.host.compile import SHIM, find_compiler, kernel_flags
from normgen.devices.host.executor import HostExecutor
from normgen.errors import CompileError, ToolchainMissing
from tests.host.harness import read, run, write
from tests.host.sound import kernel

CLANGS = ("clang++", "clang++-14")

DOUBLE = """
extern "C" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
"""


def twice(executor: HostExecutor, source: str = DOUBLE) -> None:
    x, y = np.arange(32, dtype=np.float32), np.empty(32, np.float32)
    run(executor, source, "twice", 1, 32, read(x), write(y))
    np.testing.assert_array_equal(y, 2 * x)


def test_text_and_mode_are_part_of_the_key() -> None:
    variants = [HostExecutor(), HostExecutor(True), HostExecutor(contracted=True)]
    libraries = {executor.function(DOUBLE + "\n", "twice", 0).library for executor in variants}
    assert len({*libraries, HostExecutor().function(DOUBLE, "twice", 0).library}) == 4


def test_what_the_host_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NORMGEN_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    lacking = r"^[^\n]*neither g\+\+ nor clang\+\+ is found: install g\+\+; specs compile without it$"
    with pytest.raises(ToolchainMissing, match=lacking):
        twice(HostExecutor())
    monkeypatch.setenv("NORMGEN_CXX", "no-such-compiler")
    with pytest.raises(ToolchainMissing, match="NORMGEN_CXX=no-such-compiler is not found: correct it"):
        twice(HostExecutor())
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ToolchainMissing, match="needs Linux on x86-64, and this is linux aarch64"):
        twice(HostExecutor())


def test_text_that_does_not_compile_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken = DOUBLE.replace("2 *", "2 **")
    for text in (broken, f"\n{broken}"):
        with pytest.raises(CompileError) as raised:
            twice(HostExecutor(), text)
        (kept,) = tmp_path.iterdir()
        assert raised.value.source_path == str(kept)
        assert kept.read_text().startswith(f"{text}\n\n// ") and "error" in kept.read_text()
    assert "kernel.cu:3:" in str(raised.value)


def test_the_shim_compiles_without_warnings(tmp_path: Path) -> None:
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-o", str(tmp_path / "o"), "-c"]
    include = ["-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h")]
    text = tmp_path / "kernel.cpp"
    text.write_text(f'{kernel("forward", "__half")}\n#include "simt_export.h"\nSIMT_EXPORT(forward)\n')
    for compiler in filter(shutil.which, ("g++", *CLANGS)):
        for source in sorted(SHIM.glob("*.cpp")):
            subprocess.run([compiler, *strict, str(source), "-O2"], check=True)
        # g++ has another pragma to unroll.
        subprocess.run([compiler, *strict, str(text), *include, "-Wno-unknown-pragmas"], check=True)


@pytest.mark.parametrize("checked", [False, True])
def test_clang(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = next(filter(shutil.which, CLANGS), None)
    if clang is None:
        pytest.skip("clang++ is not installed")
    monkeypatch.setenv("NORMGEN_CXX", clang)
    compiler = find_compiler()
    assert compiler.is_clang and "-fno-tree-sra" not in kernel_flags(compiler, checked, False)
    twice(HostExecutor(checked))
