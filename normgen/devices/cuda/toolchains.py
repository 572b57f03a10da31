"""Toolchains: what launches kernels and what compiles them, and the rule by which a process takes one.

PyCUDA with nvcc wherever both are installed. Where either is missing, cuda-bindings with NVRTC, which pip
alone installs. Each can be asked for by name; what is not then follows from the same table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from normgen.devices.cuda.compile import Nvcc, find_nvcc
from normgen.devices.cuda.driver import Driver
from normgen.devices.cuda.nvrtc import Nvrtc, find_nvrtc
from normgen.errors import DeviceMissing, MachineError, ToolchainMissing

# What names a launcher and a compiler where a program does not.
LAUNCHER_VARIABLE, COMPILER_VARIABLE = "NORMGEN_LAUNCHER", "NORMGEN_COMPILER"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A launcher with a compiler, and the classes for them, written as module:class."""

    launcher: str
    compiler: str
    driver_class: str
    compiler_class: str


# In this order: the first that has what was asked for and is installed is taken.
TOOLCHAINS = (
    Toolchain("pycuda", "nvcc", "pycuda:PyCudaDriver", "pycuda_compiler:PyCudaCompiler"),
    Toolchain("cuda-bindings", "nvrtc", "cuda_bindings:CudaBindingsDriver", "nvrtc:Nvrtc"),
    Toolchain("cuda-bindings", "nvcc", "cuda_bindings:CudaBindingsDriver", "compile:Nvcc"),
    Toolchain("pycuda", "nvrtc", "pycuda:PyCudaDriver", "nvrtc:Nvrtc"),
)
LAUNCHERS = tuple(dict.fromkeys(each.launcher for each in TOOLCHAINS))
# By name, the class of a compiler where nothing is launched, and what finds it.
COMPILERS: Mapping[str, tuple[str, Callable[[], object]]] = MappingProxyType(
    {"nvcc": ("compile:Nvcc", find_nvcc), "nvrtc": ("nvrtc:Nvrtc", find_nvrtc)}
)
# What is to be installed where none is, as far as it was asked for: pip alone does.
_EASIEST = TOOLCHAINS[1]


def chosen(launcher: str | None = None, compiler: str | None = None) -> Toolchain:
    """The toolchain of these names, or else of the variables'; the easiest one where none is installed.

    DeviceMissing or ToolchainMissing for a name that there is not. What is missing shows at the first use.
    """
    launcher = _named(launcher, LAUNCHER_VARIABLE, LAUNCHERS, DeviceMissing, "launcher")
    compiler = _named(compiler, COMPILER_VARIABLE, COMPILERS, ToolchainMissing, "compiler")
    fitting = [
        each for each in TOOLCHAINS if launcher in (None, each.launcher) and compiler in (None, each.compiler)
    ]
    easiest = max(fitting, key=_alike_easiest)
    return next((each for each in fitting if installed(each.launcher) and installed(each.compiler)), easiest)


def make_driver(launcher: str | None = None, compiler: str | None = None) -> Driver:
    """A driver, with its compiler, of the toolchain that is chosen."""
    found = chosen(launcher, compiler)
    driver: Driver = _class(found.driver_class)(compiler=_class(found.compiler_class)())
    return driver


def compiler_ahead() -> Nvcc | Nvrtc:
    """What compiles where nothing is launched: what is asked for, else nvcc where it is installed."""
    name = _named(None, COMPILER_VARIABLE, COMPILERS, ToolchainMissing, "compiler")
    name = name or next(filter(installed, COMPILERS), _EASIEST.compiler)
    found: Nvcc | Nvrtc = _class(COMPILERS[name][0])()
    return found


def installed(part: str) -> bool:
    """Whether a compiler is here, or a launcher: a Python package of its name."""
    if part in COMPILERS:
        return _found(COMPILERS[part][1])
    return _package(part.replace("-", "."))


def _alike_easiest(other: Toolchain) -> int:
    return (other.launcher == _EASIEST.launcher) + (other.compiler == _EASIEST.compiler)


def _named(
    name: str | None, variable: str, known: Iterable[str], fault: type[MachineError], what: str
) -> str | None:
    """What a program or a variable asks for by name; None where neither does."""
    name = name or os.environ.get(variable) or None
    if name in (None, *known):
        return name
    raise fault(f"{name!r} is not a {what}: use {' or '.join(known)} ({variable})")


def _package(name: str) -> bool:
    with suppress(ImportError):
        return find_spec(name) is not None
    return False


def _found(find: Callable[[], object]) -> bool:
    with suppress(ToolchainMissing):
        find()
        return True
    return False


def _class(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"normgen.devices.cuda.{module}"), attribute)
