"""Build PyCUDA and install it into this environment. Needs no driver, GPU or installed CUDA toolkit.

    python -m tools.build_pycuda

PyPI has PyCUDA as source only, and its build needs CUDA's headers, `libcuda.so` and cuRAND. Without a
toolkit, the headers and nvcc come from NVIDIA's wheels. The build links a stub instead of `libcuda.so`; the
real library is found by its name at run time. PyCUDA's random numbers, which normgen does not use, are left
out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from normgen.devices.cuda.compile import find_nvcc, toolkit_homes
from normgen.errors import ToolchainMissing

PYCUDA = "pycuda==2026.1"
TOOLKIT = "cuda-toolkit[nvcc,cccl,profiler]==13.*"
HEADERS = ("cuda.h", "cudaProfiler.h")

# What pip and git look for at home, beside the one file that PyCUDA's build does.
_AT_HOME = (".pip", ".config", ".netrc")
_UNREACHABLE = re.compile(r"NewConnectionError|ConnectTimeout|ConnectionError|ProxyError|name resolution")


class CannotBuild(Exception):
    """The build cannot run; the message says in one line what is missing."""


def main(arguments: Sequence[str] = ()) -> int:
    """Build, and print the result in one line. Returns 0 also if there is nothing to build."""
    description = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser("python -m tools.build_pycuda", description=description).parse_args(arguments)
    try:
        print(build())
    except CannotBuild as reason:
        print(f"PyCUDA was not built: {reason}", file=sys.stderr)
        return 1
    return 0


def build() -> str:
    """Install PyCUDA unless it is installed; returns a line about it. Raises CannotBuild."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"PyCUDA can be built on Linux x86-64 only; this is {sys.platform} {platform.machine()}"
    with suppress(importlib.metadata.PackageNotFoundError):
        return f"PyCUDA {importlib.metadata.version('pycuda')} is already installed"
    _check_compiler()
    home = _headers() if _has_nvcc() else None
    if home is None:
        print(f"installing {TOOLKIT}, since no CUDA toolkit is found", flush=True)
        _pip("install", TOOLKIT)
        home = _headers()
    if home is None:
        raise CannotBuild(f"{TOOLKIT} holds no {' and '.join(HEADERS)}")
    print(f"building {PYCUDA} with the headers of {home}, which takes about a minute", flush=True)
    with tempfile.TemporaryDirectory(prefix="normgen-pycuda-") as directory:
        wheel = _wheel(home, Path(directory))
        _pip("install", str(wheel))
        return f"installed {wheel.stem}"


def _check_compiler() -> None:
    missing = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    if missing:
        raise CannotBuild(f"{' and '.join(missing)} not found (on Debian and Ubuntu, install g++)")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise CannotBuild(f"{header} not found (on Debian and Ubuntu, install python3-dev)")


def _has_nvcc() -> bool:
    try:
        find_nvcc()
    except ToolchainMissing:
        return False
    return True


def _headers() -> Path | None:
    """The first toolkit that has the headers."""
    return next(
        (home for home in toolkit_homes() if all((home / "include" / name).is_file() for name in HEADERS)),
        None,
    )


def _wheel(toolkit: Path, directory: Path) -> Path:
    """Build the wheel in a directory of its own.

    PyCUDA's build reads its options from a file in the home directory, and waits for ten seconds three times
    where there is none. The wheel stays out of pip's cache: another environment's PyCUDA may need cuRAND.
    """
    stub, home = directory / "stub", directory / "home"
    _make_stub(toolkit, stub)
    home.mkdir()
    for name in _AT_HOME:
        if (Path.home() / name).exists():
            (home / name).symlink_to(Path.home() / name)
    (home / ".aksetup-defaults.py").write_text(
        f"CUDA_ROOT = {str(toolkit)!r}\nCUDA_ENABLE_CURAND = False\nCUDADRV_LIB_DIR = [{str(stub)!r}]\n"
    )
    _pip(
        *("wheel", "--no-deps", "--no-cache-dir", "--no-binary", "pycuda", "-w", str(directory), PYCUDA),
        HOME=str(home),
        CFLAGS="-w -O1 -g0",
        LDFLAGS="-s",
    )
    (wheel,) = directory.glob("pycuda-*.whl")
    return wheel


def _make_stub(toolkit: Path, directory: Path) -> None:
    """A `libcuda.so` with every function of the headers, for the linker only."""
    text = "".join((toolkit / "include" / name).read_text(errors="replace") for name in HEADERS)
    names = sorted(set(re.findall(r"\bcu[A-Z]\w*", text)))
    directory.mkdir()
    source = directory / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 34; }}\n" for name in names))
    command = ["gcc", "-w", "-shared", "-fPIC", str(source), "-o", str(directory / "libcuda.so")]
    _run([*command, "-Wl,-soname,libcuda.so.1"])


def _pip(*arguments: str, **environment: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], **environment)


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise CannotBuild(_reason(command, done.stdout))


def _reason(command: list[str], output: str) -> str:
    """Why a command failed, in one line. The whole output is kept unless the line says everything."""
    if "No module named pip" in output:
        return f"{sys.executable} has no pip (python -m ensurepip)"
    if _UNREACHABLE.search(output):
        return "pip cannot reach a package index: check the network"
    handle, path = tempfile.mkstemp(prefix="normgen-pycuda-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        file.write(f"{' '.join(command)}\n{output}")
    lines = [line.strip() for line in output.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE)]
    return f"{lines[0] if lines else 'a command failed'} (the whole output: {path})"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
