"""The extension in C++ (`cpp/`): built once where a C++ compiler and the headers are, and kept in the cache.

PyTorch's headers take a compiler half a minute. So a process of its own builds it, and calls are made in C++
as soon as it is there. `python -m normgen.torch.extension` builds it at once. One extension has both, what
launches and the node of autograd: a second one in C, which would be there sooner, would be of use for that
half a minute alone. This module imports no PyTorch, which who builds has no use for.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from normgen.cache import Cache, default_cache, digest

_OPTIONS = ("-std=c++20", "-O2", "-shared", "-fPIC")
_LIBRARIES = ("torch_python", "torch", "torch_cpu", "c10")
_SUFFIX = ".so"
_SOURCES = Path(str(resources.files("normgen.torch"))) / "cpp"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a build depends on but the source: a compiler, and the PyTorch that is to load the result."""

    compiler: str
    torch: Path  # its folder
    version: str
    include: Path  # Python's

    @property
    def key(self) -> str:
        parts = (self.compiler, str(self.torch), self.version, str(self.include))
        texts = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
        return digest("torch node", sys.version, *_OPTIONS, *parts, *texts)

    def place(self, cache: Cache) -> Path:
        """Where it is in the cache, once it is built."""
        return cache.path(self.key, _SUFFIX)

    def build(self, cache: Cache) -> Path:
        """The extension, built if it is not there. CalledProcessError where the compiler refuses."""
        libraries = list(_LIBRARIES)
        defined = []
        if (self.torch / "lib" / "libtorch_cuda.so").is_file():
            defined.append("-DNORMGEN_CUDA")
            libraries.append("torch_cuda")
        included = [f"-I{self.torch / 'include'}", f"-I{self.include}"]
        linked = [f"-L{self.torch / 'lib'}", *(f"-l{name}" for name in libraries)]

        def compile(target: Path) -> None:
            source = str(_SOURCES / "extension.cpp")
            command = [self.compiler, *_OPTIONS, *defined, *included, source, "-o", str(target), *linked]
            subprocess.run(command, capture_output=True, check=True)

        return cache.get_or_build(self.key, compile, _SUFFIX)

    def build_aside(self, cache: Cache) -> subprocess.Popen[bytes]:
        """A process that builds it. It goes on where this one ends first, for the next one."""
        command = [sys.executable, "-m", "normgen.torch.extension", str(self.torch), str(cache.root)]
        home = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        none = subprocess.DEVNULL
        return subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=none,
            stdout=none,
            stderr=none,
            start_new_session=True,
        )


def recipe(torch: Path | None = None) -> Recipe | str:
    """How to build it for the PyTorch in a folder, by default the installed one, or why that cannot be."""
    if torch is None:
        found = find_spec("torch")
        if found is None or not found.submodule_search_locations:
            return "PyTorch is not installed"
        torch = Path(found.submodule_search_locations[0])
    name = os.environ.get("CXX") or "c++"
    compiler = shutil.which(name) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "no C++ compiler is found (on Ubuntu: sudo apt install g++)"
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        return "Python's headers are missing (on Ubuntu: sudo apt install python3-dev)"
    if not (torch / "include" / "torch" / "csrc").is_dir():
        return "this PyTorch comes without its headers"
    version = runpy.run_path(str(torch / "version.py"))["__version__"]
    return Recipe(compiler, torch, version, include)


def described() -> str:
    """How calls that repeat are made, in a line."""
    made = recipe()
    if isinstance(made, str):
        return f"in Python: {made}"
    if made.place(default_cache()).exists():
        return "in C++, where cuda-bindings launches"
    return "in Python, until the first call on a GPU has had the part in C++ built, which takes half a minute"


def _main(arguments: Sequence[str]) -> None:
    torch, root = map(Path, arguments) if arguments else (None, None)
    made = recipe(torch)
    if isinstance(made, str):
        sys.exit(made)
    if root is not None:
        os.nice(10)  # nobody waits
    try:
        print(made.build(default_cache() if root is None else Cache(root)))
    except subprocess.CalledProcessError as fault:
        sys.exit(fault.stderr.decode(errors="replace"))


if __name__ == "__main__":
    _main(sys.argv[1:])
