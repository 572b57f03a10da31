"""The CUDA compiler as a command: where it is, which one it is, and compiling without a device or PyCUDA.

Kernels are compiled ahead of time through `compile_text`, on any machine that has nvcc.  What does not
compile is kept in a file of its own for the report.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from normgen.runtime.errors import CompileError, ToolchainMissing

# A text declares what some of its specialisations have no use for (warning 177).
OPTIONS: tuple[str, ...] = ("-O3", "-std=c++17", "-Wno-deprecated-gpu-targets", "-diag-suppress=177")


@dataclass(frozen=True, slots=True)
class Usage:
    """ptxas's report on one kernel of a binary."""

    entry: str
    registers: int
    spilled: int
    shared: int


def find_nvcc() -> str:
    """The path of nvcc: CUDA_HOME's or CUDA_PATH's, else the search path's, else the usual place's."""
    executable = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for home in homes:
        if (found := shutil.which(executable, path=os.path.join(home, "bin"))) is not None:
            return found
    found = shutil.which(executable) or shutil.which(executable, path="/usr/local/cuda/bin")
    if found is None:
        raise ToolchainMissing(
            "compiling a kernel needs nvcc, which is not on PATH: install the CUDA toolkit or set CUDA_HOME"
        )
    return found


def nvcc_version(nvcc: str) -> str:
    """What `nvcc --version` prints; asked again when the file has changed."""
    return _version(nvcc, Path(nvcc).stat().st_mtime_ns)


@cache
def _version(nvcc: str, modified: int) -> str:
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as fault:
        raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
    return done.stdout


def compile_text(
    source: str, arch: str, options: tuple[str, ...] = OPTIONS, target: str = "cubin"
) -> tuple[bytes, tuple[Usage, ...]]:
    """The binary of CUDA text (`target` cubin, ptx or fatbin) and, for a cubin, ptxas's report."""
    nvcc = find_nvcc()
    with tempfile.TemporaryDirectory(prefix="normgen-") as directory:
        text, result = Path(directory, "kernel.cu"), Path(directory, f"kernel.{target}")
        text.write_text(source)
        command = [
            nvcc,
            f"--{target}",
            *options,
            "-arch",
            arch,
            "-Xptxas",
            "-v",
            text.name,
            "-o",
            result.name,
        ]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace")
        except OSError as fault:
            raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
        output = done.stdout + done.stderr
        binary = result.read_bytes() if result.exists() else b""
    if done.returncode != 0 or not binary:
        raise failure(source, command, output, done.returncode)
    return binary, _usage(output)


def failure(source: str, command: list[str], output: str, code: int | None = None) -> CompileError:
    """The error for text that did not compile; the text is kept in a file that only its user can read."""
    handle, path = tempfile.mkstemp(prefix="normgen-", suffix=".cu")
    with os.fdopen(handle, "w") as file:
        file.write(source)
    if not output.strip():
        output = "nvcc wrote nothing" + (f" and returned {code}" if code is not None else "")
    return CompileError(path, tuple(command), output)


def _usage(output: str) -> tuple[Usage, ...]:
    found: list[Usage] = []
    for part in re.split(r"Compiling entry function ", output)[1:]:
        entry = re.match(r"'([^']*)'", part)
        registers = re.search(r"Used (\d+) registers", part)
        spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if entry and registers:
            found.append(
                Usage(
                    entry[1],
                    int(registers[1]),
                    max(int(spilled[1]), int(spilled[2])) if spilled else 0,
                    int(shared[1]) if shared else 0,
                )
            )
    return tuple(found)
