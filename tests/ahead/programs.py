"""C programs that use generated headers, compiled by gcc and run over the recording libcuda."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
LANGUAGES = (("gcc", "-std=c99"), ("g++", "-x", "c++", "-std=c++11"))

BEGIN = """#include <stdio.h>
{includes}

int main(void) {{
    CUcontext context;
    CUdevice device;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) return 1;
    if (cuCtxSetCurrent(context)) return 1;
"""
END = """    return 0;
}
"""


def cuda_headers() -> Path:
    """The folder of cuda.h: that of NVIDIA's wheel, or of a toolkit."""
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(each) for each in (found.submodule_search_locations or ())] if found is not None else []
    folders = [path for wheel in wheels for path in wheel.glob("*/include")]
    folders.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include")
    return next(folder for folder in folders if (folder / "cuda.h").exists())


@dataclass(frozen=True)
class Launched:
    """A launch, as the library wrote it down."""

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    packed: bytes
    programmatic: bool


def compiled(
    source: Path, library: Path, languages: Sequence[Sequence[str]] = LANGUAGES, *more: str
) -> list[Path]:
    """A program as C and as C++, without a warning."""
    made = []
    for compiler, *options in languages:
        program = source.with_suffix(f".{compiler}")
        where = ("-I", str(source.parent), "-isystem", str(cuda_headers()))
        link = (str(library / "libcuda.so.1"), "-lm", f"-Wl,-rpath,{library}")
        command = [compiler, *options, *WARNINGS, *more, *where, str(source), "-x", "none", *link]
        done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made.append(program)
    return made


def run(program: Path, *arguments: str, **more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What a program says, and the calls of the driver."""
    log = program.with_suffix(".log")
    log.unlink(missing_ok=True)
    environment = {**os.environ, "FAKE_CUDA_LOG": str(log), **more}
    done = subprocess.run(
        [str(program), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    return done, log.read_text().splitlines() if log.exists() else []


def launches(log: list[str]) -> list[Launched]:
    """The launches among the calls of the driver."""
    found = []
    for line in log:
        words = line.split()
        if words[0] == "launch":
            told = dict(zip(words[2::2], words[3::2], strict=False))
            found.append(
                Launched(
                    words[1],
                    tuple(map(int, told["grid"].split(","))),
                    tuple(map(int, told["block"].split(","))),
                    int(told["shared"]),
                    int(told["stream"], 16) if told["stream"] != "(nil)" else 0,
                    bytes.fromhex(told["args"]),
                    told.get("attribute") == "6=1",
                )
            )
    return found
