"""cuLaunchKernelEx for the host: by its address, compiled code launches kernels of the host executor as it
launches those of a GPU."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Mapping
from typing import Any, Protocol

from normgen.devices.launch_kernel import LaunchKernel, address_of
from normgen.devices.launch_kernel import arguments as arguments_of
from normgen.launching.launch import Buffer, Fire, Launch

_log = logging.getLogger("normgen")
_FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED


class Step(Protocol):
    """A launch of the host executor. Its handle is its address: whoever knows that holds it."""

    @property
    def launch(self) -> Launch: ...

    @property
    def fire(self) -> Fire: ...

    @property
    def places(self) -> tuple[int, ...]:
        """Of its arguments among all that the launches of a call take."""

    def memory(self, pool: Mapping[int, Any]) -> tuple[Buffer, ...]:
        """The memory that it touches. `pool`: what they take, by place."""


def handle(step: Step) -> int:
    """What names a step to `launch`."""
    return id(step)


def step_of(function: int) -> Step:
    """The step that a handle names."""
    step: Step = ctypes.cast(function, ctypes.py_object).value
    return step


def launch(configuration: Any, function: int, arguments: Any, extra: Any) -> int:
    """Run a step, as cuLaunchKernelEx would. Returns an error's number; what it is, is logged."""
    try:
        told, step = configuration.contents, step_of(function)
        launch = step.launch
        assert (*told.grid, *told.block, told.shared) == (*launch.grid, *launch.block, launch.shared)
        packed = arguments_of(extra)
        pool = dict(zip(step.places, struct.unpack(launch.format, packed), strict=True))
        step.fire(packed, step.memory(pool), 0)
    except Exception:
        _log.exception("a launch on the host")
        return _FAILED
    return 0


_FUNCTION = LaunchKernel(launch)
ADDRESS = address_of(_FUNCTION)
