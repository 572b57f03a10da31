"""nvcc, the CUDA compiler: where it is, which one it is, and compiling without a device or PyCUDA.

`Nvcc` is what launchers compile with (`driver.Compiler`). `compile_text` compiles ahead of time, on any
machine that has nvcc.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from normgen.cache_results import kept
from normgen.devices.compile_failure import compile_failure
from normgen.errors import CompileError, ToolchainMissing
from normgen.package.device_functions import inlined

OPTIONS: tuple[str, ...] = ("-O3", "-std=c++17", "-Wno-deprecated-gpu-targets")

_USUAL_HOME = Path("/usr/local/cuda")
# What nvcc says of the machine and not of the text, and what to do.
_NO_HOST = (
    "nvcc needs a C++ compiler and does not find {0}: install g++, or name another compiler in NVCC_CCBIN"
)
_NO_ARCH = "this nvcc does not compile for {0}: install another version of the CUDA toolkit"
_LACKING = (
    (r"(?:(\S+): No such file or directory\s+)?nvcc fatal\s*: Failed to preprocess host compiler", _NO_HOST),
    (r"nvcc fatal\s*: Cannot find compiler '([^']*)'", _NO_HOST),
    (
        r"#error -- (unsupported .*? version)!",
        "nvcc does not accept the C++ compiler ({0}): install g++, or name another compiler in NVCC_CCBIN",
    ),
    (
        r"nv/target: No such file or directory",
        "CUDA's headers need the headers of CCCL, which nvcc does not find: pip install 'cuda-toolkit[cccl]'",
    ),
    (r"nvcc fatal\s*: Unsupported gpu architecture '([^']*)'", _NO_ARCH),
    (r"nvcc fatal\s*: Value '([^']*)' is not defined for option 'gpu-architecture'", _NO_ARCH),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """ptxas's report on one kernel of a binary."""

    entry: str
    registers: int
    spilled: int
    shared: int


def find_nvcc() -> str:
    """The path of nvcc: CUDA_HOME's or CUDA_PATH's, the search path's, the usual place's, or a wheel's."""
    executable = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    named = [os.path.join(home, "bin") for home in _named_homes()]
    usual = [str(home / "bin") for home in (_USUAL_HOME, *_wheel_homes())]
    for path in (*named, None, *usual):
        if (found := shutil.which(executable, path=path)) is not None:
            return found
    raise ToolchainMissing(
        "compiling a kernel needs nvcc, which is not on PATH: install the CUDA toolkit or set CUDA_HOME, "
        "or pip install 'cuda-toolkit[nvcc,cccl]'"
    )


def toolkit_homes() -> tuple[Path, ...]:
    """Where a CUDA toolkit's `bin` and `include` may lie, in the order in which nvcc is looked for."""
    found = shutil.which("nvcc")
    on_path = [Path(found).resolve().parents[1]] if found else []
    return (*map(Path, _named_homes()), *on_path, _USUAL_HOME, *_wheel_homes())


def _named_homes() -> list[str]:
    return [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]


def _wheel_homes() -> list[Path]:
    """The toolkits that NVIDIA's wheels make up in this environment, newest first."""
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations if package else None) or ()
    found = (path for folder in folders for path in Path(folder).glob("cu[0-9]*"))
    return sorted(found, key=lambda path: path.name, reverse=True)


def nvcc_version(nvcc: str) -> str:
    """What `nvcc --version` prints; asked again, by any process, when the file has changed."""
    return _version(os.path.realpath(nvcc), Path(nvcc).stat().st_mtime_ns)


@cache
def _version(nvcc: str, modified: int) -> str:
    said = kept("version", (nvcc, str(modified)), lambda: _ask_version(nvcc).encode() or b"\n")
    return said.decode()


def _ask_version(nvcc: str) -> str:
    try:
        done = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as fault:
        raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
    return done.stdout


def dotted(version: tuple[int, int] | None) -> str:
    """A version of CUDA as text."""
    return ".".join(map(str, version)) if version else "an unknown version"


class Nvcc:
    """nvcc as a command."""

    name = "nvcc"
    options = OPTIONS

    def describe(self) -> str:
        return f"nvcc of CUDA {dotted(self.version())}, {find_nvcc()}"

    def headers(self) -> str:
        return "those of nvcc"

    def version(self) -> tuple[int, int] | None:
        found = re.search(r"release (\d+)\.(\d+)", self.toolchain())
        return (int(found[1]), int(found[2])) if found else None

    def toolchain(self) -> str:
        return nvcc_version(find_nvcc())

    def compile(self, source: str, arch: str) -> bytes:
        return self.build(source, arch, "cubin")

    def build(self, source: str, arch: str, target: str) -> bytes:
        """What becomes of a text: a cubin, or ptx."""
        binary, _ = compile_text(source, arch, self.options, target)
        return binary


def compile_text(
    source: str, arch: str, options: tuple[str, ...] = OPTIONS, target: str = "cubin"
) -> tuple[bytes, tuple[Usage, ...]]:
    """The binary of CUDA text (`target` cubin, ptx or fatbin) and, for a cubin, ptxas's report."""
    nvcc, source = find_nvcc(), inlined(source)
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
    return binary, usage_of(output)


def failure(
    source: str, command: Sequence[str], output: str, code: int | None = None
) -> CompileError | ToolchainMissing:
    """The error for text that did not compile; the one for what nvcc lacks, where it says so."""
    for pattern, message in _LACKING:
        if found := re.search(pattern, output):
            return ToolchainMissing(message.format(*found.groups("one")))
    if not output.strip():
        output = "nvcc wrote nothing" + (f" and returned {code}" if code is not None else "")
    return compile_failure(source, command, output)


def usage_of(output: str) -> tuple[Usage, ...]:
    """The kernels of what ptxas said."""
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
