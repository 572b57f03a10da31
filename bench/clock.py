"""Clocks of PyTorch, for `normgen.measure.timing`: a stream of a CUDA device, and one to try programs out
with.

While a `TorchClock` exists, its stream is PyTorch's current one: kernels of PyTorch, of its compiler, of
Triton, of CuTe and of normgen all go there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from normgen.measure.timing import CROWD, CannotRecord

_CYCLES_A_US = 2000  # of the spinning kernel: no clock of a device is faster


class TorchClock:
    """Marks are events; graphs are captured on the stream."""

    def __init__(self) -> None:
        torch.cuda.init()
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        torch.cuda.set_stream(stream)
        self.stream: int = stream.cuda_stream
        self._crowd: torch.Tensor | None = None

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def microseconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) * 1000

    def hold(self, microseconds: float) -> None:
        torch.cuda._sleep(int(microseconds * _CYCLES_A_US))

    def crowd(self) -> None:
        if self._crowd is None:
            cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._crowd = torch.zeros(CROWD * cache, dtype=torch.uint8, device="cuda")
        self._crowd.add_(1)

    def wait(self) -> None:
        torch.cuda.synchronize()

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        """By hand and not by `torch.cuda.graph`, which collects garbage and empties caches each time."""
        torch.cuda.synchronize()
        graph, faults = torch.cuda.CUDAGraph(), []
        # Threads of the autograd engine launch too; what else they do is no business of the capture.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            calls()
        except Exception as fault:
            faults.append(fault)
        try:
            graph.capture_end()
        except Exception as fault:
            faults.append(fault)
        if faults:
            # A capture that fails leaves the allocator in the graph's pool.
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), graph.pool())
        torch.cuda.synchronize()
        if faults:
            raise CannotRecord(str(faults[0]).partition("\n")[0][:200])
        return lambda: graph.replay()


class Queued:
    """A clock without its graphs, for calls whose capture goes wrong beyond repair."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        raise CannotRecord("asked for")


class HostClock:
    """Wall clock on a machine without a GPU, where device and host are one."""

    stream = 0

    def mark(self) -> float:
        return time.perf_counter() * 1e6

    def passed(self, mark: float) -> bool:
        return False

    def microseconds(self, begin: float, end: float) -> float:
        return end - begin

    def hold(self, microseconds: float) -> None:
        pass

    def crowd(self) -> None:
        pass

    def wait(self) -> None:
        pass

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        raise CannotRecord("there is no device")
