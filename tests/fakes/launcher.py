"""cuLaunchKernelEx on a machine without a GPU: kernels run on the host executor, so that what C++ launches
has real results, and every launch is noted."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, NamedTuple

from normgen.runtime.calls.prepared import PreparedCall, Step
from normgen.torch.native import Launcher

POINTER = ctypes.c_void_p


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", POINTER),
        ("attributes", POINTER),
        ("attribute_count", ctypes.c_uint),
    ]


class Launched(NamedTuple):
    """One launch."""

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int


class HostLauncher:
    """A launcher of the host's kernels, as compiled code needs one. A function's address is a number."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        self.codes: list[int] = []  # what the next launches answer; all others run
        self._steps: dict[int, Step] = {}
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(Configuration), POINTER, POINTER, ctypes.POINTER(POINTER)
        )
        self._function = kind(self._launch)
        self._address = ctypes.cast(self._function, POINTER).value or 0

    def of(self, prepared: PreparedCall) -> Launcher:
        """What launches the kernels of a call: `normgen.torch.native.launcher_of`."""
        return Launcher(self._address, 0, self._number)

    def _number(self, step: Step) -> int:
        number = len(self._steps) + 1
        self._steps[number] = step
        return number

    def _launch(self, configuration: Any, function: int, arguments: Any, extra: Any) -> int:
        if self.codes and (code := self.codes.pop(0)):
            return code
        told, step = configuration.contents, self._steps[function]
        assert arguments is None and [extra[0], extra[2], extra[4]] == [1, 2, None]
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t)).contents.value
        packed = ctypes.string_at(extra[1], size)
        pool = dict(zip(step.places, struct.unpack(step.launch.format, packed), strict=True))
        self.launches.append(
            Launched(step.launch.entry, tuple(told.grid), tuple(told.block), told.stream or 0)
        )
        assert (told.grid[:], told.block[:]) == (list(step.launch.grid), list(step.launch.block))
        step.fire(packed, step.memory(pool), 0)
        return 0
