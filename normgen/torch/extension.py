"""The extension of `node.cpp`: built once where a C++ compiler and the headers are, and kept in the cache.

PyTorch's headers take a compiler half a minute, so that a process of its own builds it, and calls use it
when it is there. This module imports no PyTorch, which that process has no use for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from importlib import resources
from pathlib import Path

from normgen.cache import Cache, digest

_OPTIONS = ("-std=c++20", "-O2", "-shared", "-fPIC")
_LIBRARIES = ("torch_python", "torch", "torch_cpu", "c10")
_SUFFIX = ".so"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a build depends on but the source: a compiler, and the PyTorch that is to load the result."""

    compiler: str
    torch: str  # its folder
    version: str
    cxx11: str  # "1": strings of the newer ABI
    include: str  # Python's

    @property
    def key(self) -> str:
        return digest("torch node", _source(), sys.version, *_OPTIONS, *astuple(self))

    def place(self, cache: Cache) -> Path:
        """Where it is in the cache, once it is built."""
        return cache.path(self.key, _SUFFIX)

    def build(self, cache: Cache) -> Path:
        """The extension, built if it is not there. CalledProcessError where the compiler refuses."""
        root = Path(self.torch)
        command = [self.compiler, *_OPTIONS, f"-D_GLIBCXX_USE_CXX11_ABI={self.cxx11}"]
        libraries = list(_LIBRARIES)
        if (root / "lib" / "libtorch_cuda.so").is_file():
            command.append("-DNORMGEN_CUDA")
            libraries.append("torch_cuda")
        command += [f"-I{root / 'include'}", f"-I{self.include}", "-x", "c++", "-"]
        last = [f"-L{root / 'lib'}", *(f"-l{name}" for name in libraries)]

        def compile(target: Path) -> None:
            whole = [*command, "-o", str(target), *last]
            subprocess.run(whole, input=_source(), capture_output=True, check=True)

        return cache.get_or_build(self.key, compile, _SUFFIX)

    def build_aside(self, cache: Cache) -> subprocess.Popen[bytes]:
        """A process that builds it. It goes on where this one ends first, for the next one."""
        command = [sys.executable, "-m", "normgen.torch.extension", str(cache.root), *astuple(self)]
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        )


def recipe(torch: str, version: str, cxx11: bool) -> Recipe | str:
    """How to build it for a PyTorch, or why that cannot be done here."""
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler is found: install one (on Ubuntu: sudo apt install g++)"
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        return "Python's headers are missing (on Ubuntu: sudo apt install python3-dev)"
    if not (Path(torch) / "include" / "torch" / "csrc").is_dir():
        return "this PyTorch comes without its headers"
    return Recipe(compiler, torch, version, str(int(cxx11)), include)


def _source() -> bytes:
    return resources.files("normgen.torch").joinpath("node.cpp").read_bytes()


def _main(arguments: Sequence[str]) -> None:
    root, *fields = arguments
    os.nice(10)
    Recipe(*fields).build(Cache(Path(root)))


if __name__ == "__main__":
    _main(sys.argv[1:])
