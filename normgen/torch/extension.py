"""The extension in C++ (`cpp/`): built once where a C++ compiler and the headers are, and kept in the cache.

PyTorch's headers take a compiler half a minute. So a process of its own builds it, and calls are made in C++
as soon as it is there. `python -m normgen.torch.extension` builds it at once. One extension has both, what
launches and the node of autograd: a second one in C, which would be there sooner, would be of use for that
half a minute alone. It does not import PyTorch: the build process does not need it.
"""

from __future__ import annotations

import argparse
import os
import platform
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
# Runs this very package, and finds all else where Python itself has it: nothing in the caller's folder, or
# wherever his variables point to, runs in a process that he does not know of.
_BUILDER = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
found = spec_from_file_location("normgen", sys.argv.pop(1))
sys.modules["normgen"] = module_from_spec(found)
found.loader.exec_module(sys.modules["normgen"])
from normgen.torch.extension import main
main(sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a build depends on but the source: a compiler, and the PyTorch that is to load the result."""

    compiler: str  # its path
    identity: str  # and what it says that it is
    torch: Path  # its folder
    version: str
    include: Path  # Python's
    cuda: bool  # whether this PyTorch has CUDA

    @property
    def key(self) -> str:
        parts = (self.compiler, self.identity, str(self.torch), self.version, str(self.include))
        here = (sys.version, platform.machine(), "cuda" if self.cuda else "no cuda")
        texts = [path.read_bytes() for path in sorted(_SOURCES.iterdir())]
        return digest("torch node", *here, *_OPTIONS, *parts, *texts)

    def place(self, cache: Cache) -> Path:
        """Where it is in the cache, once it is built."""
        return cache.path(self.key, _SUFFIX)

    def built(self, cache: Cache) -> Path | None:
        """The extension, if it is there and whole."""
        if not self.place(cache).exists():
            return None
        try:
            return cache.get_or_build(self.key, _refuse, _SUFFIX)
        except _NotBuilt:
            return None

    def build(self, cache: Cache) -> Path:
        """The extension, built if it is not there. CalledProcessError where the compiler refuses."""
        libraries = list(_LIBRARIES)
        defined = []
        if self.cuda:
            defined.append("-DNORMGEN_CUDA")
            libraries.append("torch_cuda")
        included = [f"-I{self.torch / 'include'}", f"-I{self.include}"]
        linked = [f"-L{self.torch / 'lib'}", *(f"-l{name}" for name in libraries)]

        def compile(target: Path) -> None:
            source = str(_SOURCES / "extension.cpp")
            command = [self.compiler, *_OPTIONS, *defined, *included, source, "-o", str(target), *linked]
            subprocess.run(command, capture_output=True, check=True, cwd=target.parent)

        return cache.get_or_build(self.key, compile, _SUFFIX)

    def build_aside(self, cache: Cache) -> subprocess.Popen[bytes]:
        """A process that builds it. It goes on where this one ends first, for the next one."""
        if not sys.executable:
            raise OSError("this process does not know its Python")
        package = str(Path(__file__).parents[1] / "__init__.py")
        none = subprocess.DEVNULL
        return subprocess.Popen(
            [sys.executable, "-I", "-c", _BUILDER, package, str(self.torch), str(cache.root)],
            env={**os.environ, "CXX": self.compiler},
            cwd=cache.root,
            stdin=none,
            stdout=none,
            stderr=none,
            start_new_session=True,
        )


def recipe(torch: Path | None = None) -> Recipe | str:
    """How to build it for the PyTorch in a folder, by default the installed one, or why that cannot be."""
    if torch is None:
        spec = find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            return "PyTorch is not installed"
        torch = Path(spec.submodule_search_locations[0])
    name = os.environ.get("CXX") or "c++"
    found = shutil.which(name) or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        return "no C++ compiler is found (on Ubuntu: sudo apt install g++)"
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        return "Python's headers are missing (on Ubuntu: sudo apt install python3-dev)"
    if not (torch / "include" / "torch" / "csrc").is_dir():
        return "this PyTorch comes without its headers"
    version = runpy.run_path(str(torch / "version.py"))["__version__"]
    compiler = os.path.abspath(found)
    identity = _identity(compiler)
    if identity is None:
        return f"the C++ compiler {compiler} does not run"
    cuda = (torch / "lib" / "libtorch_cuda.so").is_file()
    return Recipe(compiler, identity, torch.absolute(), version, include, cuda)


def _identity(compiler: str) -> str | None:
    """What a compiler says of itself; None where it does not run."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, check=True)
        return done.stdout.decode(errors="replace")
    except (OSError, subprocess.CalledProcessError):
        return None


class _NotBuilt(Exception):
    """There is no extension in the cache."""


def _refuse(_: Path) -> None:
    raise _NotBuilt


def described() -> str:
    """How repeated calls are made, in one line."""
    made = recipe()
    if isinstance(made, str):
        return f"in Python: {made}"
    if made.place(default_cache()).exists():
        return "in C++"
    return "in Python; the first call on a GPU starts to build the C++ part, which takes half a minute"


def main(arguments: Sequence[str]) -> None:
    """Build it, by default for the installed PyTorch and into the usual cache, and print where it is."""
    parser = argparse.ArgumentParser(
        "python -m normgen.torch.extension", description="Build the C++ part of normgen.torch into the cache."
    )
    parser.add_argument(
        "torch", nargs="?", type=Path, help="folder of the PyTorch package (default: the installed one)"
    )
    parser.add_argument("root", nargs="?", type=Path, help="folder of the cache (default: the user's)")
    given = parser.parse_args(arguments)
    root = given.root
    made = recipe(given.torch)
    if isinstance(made, str):
        sys.exit(made)
    if root is not None:
        os.nice(10)  # nobody waits
    try:
        print(made.build(default_cache() if root is None else Cache(root)))
    except subprocess.CalledProcessError as fault:
        sys.exit(fault.stderr.decode(errors="replace"))


if __name__ == "__main__":
    main(sys.argv[1:])
