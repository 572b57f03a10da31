"""Compiles CUDA text for the CPU, behind the shim header, with g++ or clang++: into a library in the cache,
or only to see whether it compiles.

The key of a library covers the text, the shim, the flags and the compiler's version: nothing stale is loaded.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from normgen.cache import Cache, default_cache, digest
from normgen.devices.compile_failure import compile_failure
from normgen.devices.host.load import read_whole
from normgen.errors import CompileError, TextFault, ToolchainMissing
from normgen.package.device_functions import functions_of

SHIM = Path(str(resources.files("normgen"))) / "templates" / "host"
# What a report calls the text it quotes.
SOURCE_NAME = "kernel.cu"

_RUNTIME = (
    "simt_schedule.cpp",
    "simt_fiber.cpp",
    "simt_collective.cpp",
    "simt_check.cpp",
    "simt_order.cpp",
    "simt_callbacks.cpp",
    "simt_watch.cpp",
    "simt_report.cpp",
)
_ALWAYS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")
# One library's shared memory must not be merged with that of another which has an array of the same name.
_GCC_ALWAYS = ("-fno-extern-tls-init", "-fno-gnu-unique")
_EXACT = ("-ffp-contract=off",)
_CONTRACTED = ("-mfma", "-ffp-contract=fast")
# -O2 takes longer to compile and gains nothing on fibers. Its aliasing rules are kept.
_PLAIN = ("-O1", "-fstrict-aliasing")
_SANITIZERS = (
    "-fsanitize=thread,alignment,{bounds},null,signed-integer-overflow,shift,"
    "integer-divide-by-zero,float-cast-overflow"
)
# Version 4 of the line tables: binutils' addr2line does not read what clang makes of version 5.
_CHECKED = ("-O1", "-g1", "-gdwarf-4", "-fsanitize-recover=all")
# Without the first g++ splits a 16-byte load into its used parts, and a part outside its buffer goes unseen.
# clang++ splits it whatever one says: it still sees all but a misaligned vector. Without the second g++ takes
# time to follow variables, for a debugger that is not told of them.
_GCC_CHECKED = ("-fno-tree-sra", "-fno-var-tracking")

_SYNTAX = ("-std=c++17", "-O0", "-w", "-fsyntax-only", "-x", "c++")
_SHIM = ("-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h"))
_ERROR = re.compile(r"^([^:\n]+):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)

_STILL_WORKS = "specs compile without it"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: how to call it and which one it is."""

    path: str
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


def find_compiler() -> Compiler:
    """g++ or clang++, or what NORMGEN_CXX names; ToolchainMissing where kernels cannot run on the host."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        machine = f"{sys.platform} {platform.machine()}"
        raise ToolchainMissing(
            f"running kernels on the host needs Linux on x86-64, and this is {machine}; {_STILL_WORKS}"
        )
    wanted = os.environ.get("NORMGEN_CXX")
    for name in (wanted,) if wanted else ("g++", "clang++"):
        path = shutil.which(name)
        if path:
            return _identify(path, os.stat(path).st_mtime_ns)
    missing = (
        f"NORMGEN_CXX={wanted} is not found: correct it or unset it"
        if wanted
        else "neither g++ nor clang++ is found: install g++"
    )
    raise ToolchainMissing(f"running kernels on the host needs a C++ compiler, and {missing}; {_STILL_WORKS}")


@cache
def _identify(path: str, modified: int) -> Compiler:
    del modified  # only a part of the key
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as fault:
        raise ToolchainMissing(f"the C++ compiler {path} does not run: {fault}; {_STILL_WORKS}") from fault
    return Compiler(path, done.stdout.splitlines()[0] if done.stdout else "")


@cache
def shim_digest() -> str:
    """What the shim's files hold, as one digest."""
    files = sorted(path for path in SHIM.rglob("*") if path.suffix in (".h", ".cpp"))
    return digest(*(part for path in files for part in (path.name, path.read_bytes())))


@cache
def _has_fused_multiplication() -> bool:
    """Whether this processor can run what -mfma makes."""
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def kernel_flags(compiler: Compiler, checked: bool, contracted: bool) -> tuple[str, ...]:
    """The flags of a kernel text. `contracted`: fuse multiplications and additions, as nvcc does."""
    fused = contracted and _has_fused_multiplication()
    flags = _ALWAYS + (_CONTRACTED if fused else _EXACT) + (_CHECKED if checked else _PLAIN)
    if checked:
        flags += (_SANITIZERS.format(bounds="array-bounds" if compiler.is_clang else "bounds"),)
    if compiler.is_clang:
        return flags
    return flags + _GCC_ALWAYS + (_GCC_CHECKED if checked else ())


def build_runtime(cache: Cache, compiler: Compiler) -> Path:
    """The library of the scheduler and the checker, which all kernel libraries share."""
    key = digest("host runtime", compiler.version, shim_digest())
    flags = (*_ALWAYS, "-O2", "-g1", "-shared", f"-Wl,-soname,{_soname(key)}")
    sources = [str(SHIM / name) for name in _RUNTIME]
    return cache.get_or_build(
        key, lambda target: _run([compiler.path, *flags, *sources, "-o", str(target)], ""), ".so"
    )


def build_kernel(
    cache: Cache, compiler: Compiler, source: str, entry: str, checked: bool, contracted: bool
) -> Path:
    """The library of one kernel text with the kernel `entry` as its entry point.

    Unloadable where a part from the cache is not what it should be.
    """
    flags = kernel_flags(compiler, checked, contracted)
    key = digest("host kernel", compiler.version, shim_digest(), " ".join(flags), entry, source)

    def build(target: Path) -> None:
        # Copies: another process may remove an entry of a full cache before it is linked.
        parts = [
            _copied(part, target.parent)
            for part in (_build_shared(cache, compiler), build_runtime(cache, compiler))
        ]
        wrapped, compiled = target.with_name("wrapped.cpp"), target.with_name("compiled.o")
        wrapped.write_text(
            f'#line 1 "{SOURCE_NAME}"\n{source}\n#include "simt_export.h"\nSIMT_EXPORT({entry})\n'
        )
        _run([compiler.path, *flags, "-w", *_SHIM, "-c", str(wrapped), "-o", str(compiled)], source)
        # Linked without the sanitizers' flags: the runtime takes the place of their libraries. And without
        # the usual ones, which the runtime brings along: to search them takes longer than to link.
        link = ["-shared", "-nodefaultlibs", "-Wl,-Bsymbolic", str(compiled), *map(str, parts), "-lgcc"]
        _run([compiler.path, *link, "-o", str(target)], source)

    return cache.get_or_build(key, build, ".so")


def _copied(part: Path, directory: Path) -> Path:
    copy = directory / part.name
    copy.write_bytes(read_whole(part))
    return copy


def _build_shared(cache: Cache, compiler: Compiler) -> Path:
    key = digest("host shared memory", compiler.version, shim_digest())
    source = str(SHIM / "simt_shared.cpp")
    return cache.get_or_build(
        key, lambda target: _run([compiler.path, *_ALWAYS, "-O2", "-c", source, "-o", str(target)], ""), ".o"
    )


def _soname(key: str) -> str:
    return f"normgen-host-{key[:16]}.so"


def check_syntax(texts: Mapping[str, str]) -> None:
    """Whether kernel texts compile, by the name of their entries: all in one unit, of which nothing is made.

    `TextFault` names the first that is at fault; `ToolchainMissing` where there is no compiler. What compiled
    once is remembered.
    """
    compiler = find_compiler()
    unit = _unit(texts)
    key = digest("host syntax", compiler.version, shim_digest(), " ".join(_SYNTAX), unit)

    def check(target: Path) -> None:
        _run([compiler.path, *_SYNTAX, *_SHIM, "-"], unit, unit)
        target.write_text("compiles\n")

    try:
        default_cache().get_or_build(key, check, ".txt")
    except CompileError as fault:
        first = _ERROR.search(fault.output)
        said = "{}, line {}: {}".format(*first.groups()) if first else fault.output.splitlines()[0]
        kept = f" (all of it in {fault.source_path})" if fault.source_path else ""
        raise TextFault(f"internal error: generated code does not compile: {said}{kept}") from fault


def _unit(texts: Mapping[str, str]) -> str:
    """One text: the device functions, and each of the others in a name space, with lines that count from its
    own start."""
    parts = [f'#line 1 "device functions"\n{functions_of(texts.values())}']
    for entry, source in texts.items():
        parts.append(f'namespace text_of_{entry} {{\n#line 1 "{entry}"')
        parts.append(f"{source}\n}}")
    return "\n".join(parts) + "\n"


def _run(command: list[str], source: str, given: str = "") -> None:
    """Run a compiler on what it is `given` and files; the error for `source` where that fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", input=given)
    except OSError as fault:
        raise ToolchainMissing(
            f"the C++ compiler {command[0]} does not run: {fault}; {_STILL_WORKS}"
        ) from fault
    if done.returncode == 0:
        return
    output = done.stdout + done.stderr
    raise compile_failure(
        source, command, output or f"{command[0]} returned {done.returncode} without output"
    )
