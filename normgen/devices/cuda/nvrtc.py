"""NVRTC, the CUDA compiler as a library, by way of cuda-bindings.

pip installs all of it. It needs neither a CUDA toolkit nor a C++ compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from normgen.devices.compile_failure import compile_failure
from normgen.devices.cuda.compile import Usage, dotted, usage_of
from normgen.errors import CompileError, ToolchainMissing

# A text is written for nvcc, which has the C library's INFINITY, and takes a generic lambda for a function of
# the device where it is used there. Lambdas cannot be marked as such, so that here every function is one.
OPTIONS: tuple[str, ...] = (
    "-std=c++17",
    "-default-device",
    "-DINFINITY=__builtin_bit_cast(float,0x7f800000)",
)
_PACKAGES = "cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime"
INSTALL = f"pip install {_PACKAGES}"
_UPGRADE = f"pip install --upgrade {_PACKAGES}"
# What a text includes, with what those files include: they are part of what is compiled.
_HEADERS = tuple(f"cuda_{name}.{kind}" for name in ("bf16", "fp16", "fp8") for kind in ("h", "hpp"))
_COMPILATION = 6  # NVRTC_ERROR_COMPILATION
_TEXT_NAME = "kernel.cu"


@dataclass(frozen=True, slots=True)
class Library:
    """NVRTC as it was found."""

    api: Any  # the module cuda.bindings.nvrtc
    path: Path
    headers: Path  # the folder of CUDA's headers
    version: tuple[int, int]  # of CUDA
    architectures: tuple[int, ...]  # that it compiles for, as numbers: 90 is sm_90


@cache
def find_nvrtc() -> Library:
    """NVRTC and CUDA's headers, of NVIDIA's wheels, of conda or of a toolkit. ToolchainMissing without."""
    try:
        from cuda import pathfinder
        from cuda.bindings import nvrtc as api
    except ImportError as fault:
        raise ToolchainMissing(f"compiling with NVRTC needs the package cuda-bindings: {INSTALL}") from fault
    try:
        path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    except RuntimeError as fault:
        raise ToolchainMissing(f"compiling a kernel needs NVRTC, which is not found: {INSTALL}") from fault
    headers = pathfinder.find_nvidia_header_directory("cudart")
    if headers is None or not all(Path(headers, name).is_file() for name in _HEADERS):
        raise ToolchainMissing(f"NVRTC needs CUDA's headers ({_HEADERS[0]}), which are not found: {INSTALL}")
    _, major, minor = api.nvrtcVersion()
    _, architectures = api.nvrtcGetSupportedArchs()
    return Library(api, Path(path).resolve(), Path(headers), (major, minor), tuple(architectures))


@cache
def _headers_digest(folder: Path) -> str:
    total = hashlib.sha256()
    for name in _HEADERS:
        total.update((folder / name).read_bytes())
    return total.hexdigest()


class Nvrtc:
    """NVRTC."""

    name = "nvrtc"
    options = OPTIONS

    def describe(self) -> str:
        found = find_nvrtc()
        return f"NVRTC of CUDA {dotted(found.version)}, {found.path}"

    def headers(self) -> str:
        return str(find_nvrtc().headers)

    def version(self) -> tuple[int, int]:
        return find_nvrtc().version

    def toolchain(self) -> str:
        found = find_nvrtc()
        # Builds of one version differ in what they compile to: the size of the library tells them apart.
        built = f"{found.path.name}, {found.path.stat().st_size} bytes"
        return f"NVRTC {dotted(found.version)} ({built}), headers {_headers_digest(found.headers)}"

    def compile(self, source: str, arch: str) -> bytes:
        return self.build(source, arch, "cubin")

    def build(self, source: str, arch: str, target: str) -> bytes:
        """What becomes of a text: a cubin, or ptx. May run in several threads at once."""
        with _compiled(source, arch, self.options) as program:
            return _read(find_nvrtc().api, program, "CUBIN" if target == "cubin" else "PTX")

    def report(self, source: str, arch: str) -> tuple[Usage, ...]:
        """ptxas's report on the kernels of a text."""
        with _compiled(source, arch, (*self.options, "--ptxas-options=-v")) as program:
            return usage_of(_read(find_nvrtc().api, program, "ProgramLog").decode(errors="replace"))


@contextmanager
def _compiled(source: str, arch: str, more: Sequence[str]) -> Iterator[Any]:
    """The program of a text, as long as it is looked at."""
    found = find_nvrtc()
    _check_architecture(found, arch)
    options = (f"-arch={arch}", f"-I{found.headers}", *more)
    api = found.api
    code, program = api.nvrtcCreateProgram(source.encode(), _TEXT_NAME.encode(), 0, [], [])
    _check(api, code)
    try:
        (code,) = api.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if code:
            raise _failure(source, options, api, code, program)
        yield program
    finally:
        api.nvrtcDestroyProgram(program)


def _check_architecture(found: Library, arch: str) -> None:
    number = int("".join(filter(str.isdigit, arch)))
    if number in found.architectures:
        return
    least, most = found.architectures[0], found.architectures[-1]
    how = f"upgrade it ({_UPGRADE})" if number > least else "install an older one"
    raise ToolchainMissing(
        f"NVRTC {dotted(found.version)} supports sm_{least} to sm_{most}, not {arch}: {how}"
    )


def _failure(
    source: str, options: Sequence[str], api: Any, code: Any, program: Any
) -> CompileError | ToolchainMissing:
    """The error for a text that did not compile, or for a library that does not work."""
    log = _read(api, program, "ProgramLog").decode(errors="replace")
    if int(code) == _COMPILATION:
        return compile_failure(source, ("nvrtc", *options), log)
    said = (log.splitlines() or [_said(api, code)])[0]
    return ToolchainMissing(f"NVRTC {dotted(find_nvrtc().version)} does not work here: {said}")


def _read(api: Any, program: Any, what: str) -> bytes:
    """The cubin, the PTX or the log of a program, without the zero byte that ends text."""
    code, size = getattr(api, f"nvrtcGet{what}Size")(program)
    _check(api, code)
    if size <= 1:  # an empty text; and Python shares bytes objects that are that short
        return b""
    content = bytes(size)  # written to below, which no one else has seen yet
    (code,) = getattr(api, f"nvrtcGet{what}")(program, content)
    _check(api, code)
    return content if what == "CUBIN" else content.rstrip(b"\0")


def _check(api: Any, code: Any) -> None:
    if code:
        raise ToolchainMissing(f"NVRTC does not work here: {_said(api, code)}")


def _said(api: Any, code: Any) -> str:
    _, text = api.nvrtcGetErrorString(code)
    return str(text.decode())
