"""What there is here to compile and run kernels with, part by part, and what is in the way."""

from __future__ import annotations

import ctypes
import importlib.metadata
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from normgen.cache import Cache, default_cache
from normgen.devices.cuda.executor import CudaExecutor, default_driver
from normgen.devices.cuda.launcher import driver_library
from normgen.devices.cuda.toolchains import LAUNCHERS, installed
from normgen.devices.host.compile import find_compiler
from normgen.errors import MachineError

# What is compiled and loaded to see whether that works. It includes what kernels do.
_TEXT = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void normgen_doctor(float* x) { x[threadIdx.x] += 1.f; }
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of what runs norms. `found` and `fault` are both empty where others are in the way."""

    name: str
    found: str = ""  # what is used
    fault: str = ""  # why there is none, and what to do
    needed: bool = True  # by norms on a GPU


@dataclass(frozen=True, slots=True)
class _Probe:
    """How a part is looked at, once the parts that it stands on are there."""

    name: str
    look: Callable[[], str]
    stands_on: tuple[str, ...] = ()
    needed: bool = True


def inventory() -> tuple[Part, ...]:
    """Every part, each after those that it stands on."""
    found: dict[str, Part] = {}
    for probe in _PROBES:
        part = Part(probe.name, needed=probe.needed)
        if all(found[other].found for other in probe.stands_on):
            try:
                part = Part(probe.name, probe.look(), needed=probe.needed)
            except MachineError as fault:
                part = Part(probe.name, fault=str(fault), needed=probe.needed)
        found[probe.name] = part
    return tuple(found.values())


def _driver() -> str:
    # Asked without a launcher, which may be what is missing.
    version = ctypes.c_int()
    driver_library().cuDriverGetVersion(ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _launcher() -> str:
    driver = default_driver()
    if driver.name in LAUNCHERS and not installed(driver.name):
        driver.device_count()  # says what to install
    with suppress(importlib.metadata.PackageNotFoundError):
        return f"{driver.name} {importlib.metadata.version(driver.name)}"
    return driver.name


def _device() -> str:
    driver = default_driver()
    device = driver.primary(0).device
    count = driver.device_count()
    return f"{device.name} ({device.arch})" + (f", the first of {count}" if count > 1 else "")


def _kernels() -> str:
    with tempfile.TemporaryDirectory(prefix="normgen-") as directory:
        executor = CudaExecutor(0, cache=Cache(Path(directory)))
        try:
            executor.function(_TEXT, "normgen_doctor", 0)
        finally:
            executor.close()
    return "compile and load"


def _host_compiler() -> str:
    compiler = find_compiler()
    return f"{compiler.version} ({compiler.path})"


_PROBES = (
    _Probe("driver", _driver),
    _Probe("launcher", _launcher),
    _Probe("device", _device, ("driver", "launcher")),
    _Probe("compiler", lambda: default_driver().compiler.describe()),
    _Probe("headers", lambda: default_driver().compiler.headers(), ("compiler",)),
    _Probe("kernels", _kernels, ("device", "compiler")),
    _Probe("C++ compiler", _host_compiler, needed=False),
    _Probe("cache", lambda: str(default_cache().root), needed=False),
)
