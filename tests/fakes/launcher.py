"""cuLaunchKernelEx of the host executor, where every launch is noted, and may be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from normgen.devices.host import launcher
from normgen.devices.launch_kernel import LaunchKernel, address_of
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.calls.prepared import PreparedCall
from normgen.torch.native import Launcher
from tests.fakes.refusals import why_refused

INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


class Launched(NamedTuple):
    """One launch."""

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int


class HostLauncher:
    """What compiled code launches by."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        # What the next launches answer, or what tells it; 0: they run, as all others do.
        self.codes: list[int | Callable[[], int]] = []
        self._function = LaunchKernel(self._launch)

    def of(self, prepared: PreparedCall) -> Launcher:
        """What launches the kernels of a call: `normgen.torch.native.launcher_of`."""
        return Launcher(address_of(self._function), 0, launcher.handle)

    def _launch(self, configuration: Any, function: int, arguments: Any, extra: Any) -> int:
        code = self.codes.pop(0) if self.codes else 0
        if code:
            return code() if callable(code) else code
        told, entry = configuration.contents, launcher.step_of(function).launch.entry
        size = (*told.grid,), (*told.block,), told.shared
        if why_refused(*size, HOST_MACHINE.shared_per_block):
            return INVALID_VALUE
        self.launches.append(Launched(entry, tuple(told.grid), tuple(told.block), told.stream or 0))
        assert arguments is None and [extra[0], extra[2], extra[4]] == [1, 2, None]
        return launcher.launch(configuration, function, arguments, extra)
