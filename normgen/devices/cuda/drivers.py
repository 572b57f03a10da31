"""The ways to CUDA that can be had by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType

from normgen.devices.cuda.driver import Driver
from normgen.errors import DeviceMissing

VARIABLE = "NORMGEN_LAUNCHER"
USUAL = "pycuda"


def driver_named(name: str | None = None) -> Driver:
    """A driver by name: pycuda or cuda-bindings; by default what NORMGEN_LAUNCHER says, else pycuda.

    DeviceMissing for another name. Whether the package is there shows at the first use.
    """
    name = name or os.environ.get(VARIABLE) or USUAL
    make = _LAUNCHERS.get(name)
    if make is None:
        raise DeviceMissing(f"{name!r} is no launcher: there are {' and '.join(_LAUNCHERS)} ({VARIABLE})")
    return make()


def _pycuda() -> Driver:
    from normgen.devices.cuda.pycuda_driver import PyCudaDriver

    return PyCudaDriver()


def _cuda_bindings() -> Driver:
    from normgen.devices.cuda.cuda_bindings_driver import CudaBindingsDriver

    return CudaBindingsDriver()


_LAUNCHERS: Mapping[str, Callable[[], Driver]] = MappingProxyType(
    {USUAL: _pycuda, "cuda-bindings": _cuda_bindings}
)
