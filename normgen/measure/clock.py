"""A clock through the driver seam, where no framework is needed: marks on the default stream, no graphs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from normgen.devices.cuda.executor import CudaExecutor
from normgen.launching.launch import DEFAULT_STREAM, Launch
from normgen.measure.timing import CROWD, CannotRecord

_CYCLES_A_US = 2000  # of a spinning kernel: no clock of a device is faster


@cache
def kernels() -> str:
    """The text of the kernels that measure."""
    return (resources.files("normgen") / "templates" / "measure" / "ceiling.cu").read_text(encoding="utf-8")


def launch_of(entry: str, grid: int, threads: int, form: str) -> Launch:
    """A launch of one of those kernels; `form` is the `struct` format of its arguments."""
    return Launch(kernels(), entry, (grid, 1, 1), (threads, 1, 1), 0, form, (), (), ())


class DriverClock:
    """Marks on the default stream of an executor's context."""

    stream = DEFAULT_STREAM

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor = executor
        self._spin = launch_of("spin", 1, 1, "q")
        self._function = executor.function(self._spin.source, "spin", 0)
        self._crowd: Any = None  # memory

    def mark(self) -> Any:
        return self._executor.context.mark()

    def passed(self, mark: Any) -> bool:
        return self._executor.context.passed(mark)

    def microseconds(self, begin: Any, end: Any) -> float:
        return self._executor.context.microseconds(begin, end)

    def hold(self, microseconds: float) -> None:
        packed = struct.pack("q", int(microseconds * _CYCLES_A_US))
        self._executor.launch(self._function, self._spin, packed)

    def crowd(self) -> None:
        context = self._executor.context
        if self._crowd is None:
            self._crowd = context.allocate(CROWD * self._executor.device.cache)
        words = CROWD * self._executor.device.cache // 16
        launch = launch_of("crowd", -(-words // 256), 256, "Pq")
        function = self._executor.function(kernels(), "crowd", 0)
        self._executor.launch(function, launch, struct.pack("Pq", self._crowd.pointer, words))

    def wait(self) -> None:
        self._executor.context.synchronize()

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        raise CannotRecord("the driver's clock records no graphs")
