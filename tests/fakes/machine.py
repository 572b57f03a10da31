"""A machine that seems to have CUDA, for the real launchers: the recording libcuda, and a script for nvcc.

`why_not()` says what is missing for that, and `need()` skips a test then, or fails it where the run has
promised the launcher: `make test` does, by the variable NORMGEN_TEST_LAUNCHERS.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from normgen.devices.cuda.toolchains import COMPILERS
from normgen.errors import ToolchainMissing

SOURCE = Path(__file__).with_name("libcuda.c")
ROOT = Path(__file__).parents[2]

# What `mode` (a file beside it) says is what it does; each compile adds a line to `compiles`.
NVCC = """#!/bin/sh
here=$(dirname "$0")
case " $* " in *" --version "*) cat "$here/version"; exit 0;; esac
echo "$@" >> "$here/compiles"
case $(cat "$here/mode") in
    fail) echo "kernel.cu(7): error: identifier \\"nonsense\\" is undefined" >&2; exit 2;;
    silent) exit 0;;
    killed) kill -9 $$;;
    slow) sleep 0.3;;
esac
cluster=$(sed -n 's/.*__cluster_dims__(\\([0-9]*\\).*/\\1/p' kernel.cu | head -n 1)
printf 'fake cubin cluster %s; %s' "${cluster:-1}" "$*" > kernel.cubin
"""


# The launchers, each called like the package that it needs.
LAUNCHERS = ("pycuda", "cuda-bindings")
# The launchers whose tests must run, with spaces between them. What brings one brings all CUDA compilers.
PROMISED = "NORMGEN_TEST_LAUNCHERS"
# The property of a test that tells the summary what it ran on.
RAN_ON = "CUDA runtime"


@functools.cache
def why_not(launcher: str) -> str:
    """Why a launcher's real package cannot run here against the recording library, or ""."""
    if not _supported():
        return "not Linux on x86-64"
    if not any(importlib.metadata.distributions(name=launcher)):
        how = "python -m tools.build_pycuda" if launcher == "pycuda" else f"pip install {launcher}"
        return f"{launcher} is not installed ({how})"
    if shutil.which("gcc") is None or shutil.which("nm") is None:
        return "no gcc"
    return ""


def need(launcher: str, request: pytest.FixtureRequest) -> None:
    """Skip a test whose launcher cannot run here, or fail it where the run has promised that it can."""
    reason = why_not(launcher)
    if not reason:
        request.node.user_properties.append((RAN_ON, f"{launcher} over the recording libcuda"))
        return
    said = f"{launcher} over the recording libcuda did not run: {reason}"
    if _supported() and launcher in os.environ.get(PROMISED, "").split():
        pytest.fail(f"{said}, and {PROMISED} promises it", pytrace=False)
    pytest.skip(said)


def need_compiler(name: str) -> None:
    """Skip a test that has no such CUDA compiler, or fail it where the run has promised a launcher."""
    _, find = COMPILERS[name]
    try:
        find()
    except ToolchainMissing as reason:
        lacks(str(reason))


def lacks(reason: str) -> NoReturn:
    """Skip a test that lacks a part of CUDA's tools, or fail it where the run has promised a launcher."""
    if _supported() and os.environ.get(PROMISED):
        pytest.fail(f"{reason}; {PROMISED} promises it", pytrace=False)
    pytest.skip(reason)


def _supported() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


@dataclass(frozen=True)
class Machine:
    """The directory that holds it all, and the launcher that its programs use."""

    root: Path
    launcher: str

    @property
    def log(self) -> list[str]:
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def compiles(self) -> list[str]:
        path = self.root / "cuda" / "bin" / "compiles"
        return path.read_text().splitlines() if path.exists() else []

    def nvcc(self, mode: str = "works", version: str = "recorder, release 13.0, V13.0") -> None:
        """Install nvcc, or change what it does."""
        directory = self.root / "cuda" / "bin"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "nvcc").write_text(NVCC)
        (directory / "nvcc").chmod(0o755)
        (directory / "mode").write_text(mode)
        (directory / "version").write_text(version)

    def run(self, code: str, devices: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python code on this machine, in a process of its own."""
        settings = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.root / "lib"),
            "CUDA_HOME": str(self.root / "cuda"),
            "NORMGEN_CACHE_DIR": str(self.root / "cache"),
            "FAKE_CUDA_LOG": str(self.root / "log"),
            "FAKE_CUDA_DEVICES": str(devices),
            "NORMGEN_LAUNCHER": self.launcher,
            "NORMGEN_COMPILER": "nvcc",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.root / "tmp"),
            **environment,
        }
        (self.root / "tmp").mkdir(exist_ok=True)
        command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code)]
        return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)

    def check(self, code: str, devices: int = 1, **environment: str) -> str:
        """Run code that must end well and say nothing on stderr; its output."""
        done = self.run(code, devices, **environment)
        assert done.returncode == 0 and not done.stderr, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def build(directory: Path) -> None:
    """Compile the library into a directory, with a stub for every other driver function that PyCUDA binds."""
    needed: set[str] = set()
    specification = importlib.util.find_spec("pycuda")
    if specification is not None and specification.submodule_search_locations:
        (extension,) = Path(specification.submodule_search_locations[0]).glob("_driver*.so")
        listing = subprocess.run(
            ["nm", "-D", "-u", str(extension)], capture_output=True, text=True, check=True
        )
        needed = set(re.findall(r"\bU (cu[A-Z]\w*)", listing.stdout))
    written = set(re.findall(r"^Result (cu\w+)", SOURCE.read_text(), re.MULTILINE))
    directory.mkdir(parents=True, exist_ok=True)
    stubs = directory / "stubs.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 801; }}\n" for name in sorted(needed - written)))
    options = ["-w", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    target = directory / "libcuda.so.1"
    subprocess.run(["gcc", *options, "-o", str(target), str(SOURCE), str(stubs)], check=True)
