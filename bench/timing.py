"""Device time and host time of calls on PyTorch's stream, and what the memory allows, measured the same way.

Everything runs on the default stream, so PyTorch, kernels that its compiler made and kernels of normgen are
timed by the very same code.
"""

from __future__ import annotations

import gc
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

CEILING = Path(__file__).parent / "ceiling.cu"
# Words of 16 bytes a thread, and threads a block: the copies that are tried, of which the fastest counts.
VARIANTS = ((1, 256), (1, 1024), (2, 256), (2, 1024), (4, 128), (4, 256))
BATCHES = 31
FEW = 7  # batches that tell copies apart; the fastest is then measured like everything else
BATCH_US = 1500
LARGEST_BATCH = 20
CYCLES_A_US = 2000  # of the spinning kernel: no clock of the device is faster
LONGEST_WAIT_US = 60_000


class Timing(NamedTuple):
    """Medians over batches, in microseconds a call: on the device, and on the host that queued it."""

    us: float
    host_us: float


class QueueTimer:
    """Times calls on a CUDA device, device and host apart.

    While a kernel spins, a batch of calls is queued between two events. So the events see the device alone,
    however slow the host, and the clock around the queueing sees the host alone. A batch that the device
    reached before all of it was queued does not count: it is repeated behind a longer wait.
    """

    def measure(self, call: Callable[[int], object], warm: int = 6, batches: int = BATCHES) -> Timing:
        """`call(i)` queues the i-th call; it picks its buffers by `i`. `warm` calls go before."""
        for i in range(warm):
            call(i)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(4):
            call(warm + i)
        host_us = (time.perf_counter() - begin) * 1e6 / 4
        torch.cuda.synchronize()
        both_us = (time.perf_counter() - begin) * 1e6 / 4
        size = max(2, min(LARGEST_BATCH, round(BATCH_US / both_us)))
        wait_us, count = 50 + 2 * host_us * size, warm + 4
        device, host = [], []
        gc.disable()
        try:
            while len(device) < batches:
                events, queued = self._batch(call, count, size, wait_us)
                count += size
                if events is None and wait_us < LONGEST_WAIT_US:
                    wait_us *= 2
                    continue
                if events is None:
                    raise RuntimeError(f"queueing {size} calls takes longer than {LONGEST_WAIT_US} us")
                device.append(events[0].elapsed_time(events[1]) * 1000 / size)
                host.append(queued / size)
        finally:
            gc.enable()
        return Timing(statistics.median(device), statistics.median(host))

    def _batch(
        self, call: Callable[[int], object], first: int, size: int, wait_us: float
    ) -> tuple[tuple[Any, Any] | None, float]:
        """The events around a batch, or None where the device was too early; and the time to queue it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(wait_us * CYCLES_A_US))
        begin.record()
        start = time.perf_counter()
        for i in range(first, first + size):
            call(i)
        queued = (time.perf_counter() - start) * 1e6
        early = begin.query()
        end.record()
        torch.cuda.synchronize()
        return (None if early else (begin, end)), queued


class HostTimer:
    """The same on a machine without a GPU, to try programs out: wall clock, both times alike."""

    def measure(self, call: Callable[[int], object], warm: int = 1) -> Timing:
        """`call(i)` runs the i-th call."""
        for i in range(warm):
            call(i)
        begin = time.perf_counter()
        for i in range(3):
            call(warm + i)
        us = (time.perf_counter() - begin) * 1e6 / 3
        return Timing(us, us)


class Ceiling:
    """The fastest of several copies (one array read, one written) or triads (two read), by bytes moved."""

    def __init__(self, executor: Any, timer: QueueTimer, rotation: int) -> None:
        self.executor, self._timer, self._rotation = executor, timer, rotation
        self._known: dict[tuple[str, int], float] = {}

    def microseconds(self, kind: str, total: int) -> float:
        """`kind`: copy or triad; `total`: bytes read and written."""
        key = (kind, total)
        if key not in self._known:
            best = min(VARIANTS, key=lambda variant: self._measure(kind, total, variant, FEW))
            self._known[key] = self._measure(kind, total, best, BATCHES)
        return self._known[key]

    def _measure(self, kind: str, total: int, variant: tuple[int, int], batches: int) -> float:
        from normgen.runtime.launches import Launch

        words, threads = variant

        arrays = 2 if kind == "copy" else 3
        each = max(1, total // arrays // 16)
        sets = sets_for(total, self._rotation)
        memory = [
            [
                torch.randint(-(2**31), 2**31 - 1, (each * 4,), dtype=torch.int32, device="cuda")
                for _ in range(arrays)
            ]
            for _ in range(sets)
        ]
        source = f"#define WORDS {words}\n" + CEILING.read_text()
        function = self.executor.function(source, kind, 0)
        grid = (-(-each // (words * threads)), 1, 1)
        packed = [struct.pack("P" * arrays + "q", *(m.data_ptr() for m in row), each) for row in memory]
        launch = Launch(source, kind, grid, (threads, 1, 1), 0, "P" * arrays + "q", (), (), ())
        return self._timer.measure(
            lambda i: self.executor.launch(function, launch, packed[i % sets]), 2 * sets, batches
        ).us


def sets_for(total: int, rotation: int) -> int:
    """How many sets of buffers of `total` bytes keep the caches cold: more than `rotation` bytes together."""
    return max(2, min(96, rotation // total + 2))


def rotation_bytes(device: str) -> int:
    """More than three times the second-level cache of the device."""
    if device == "cpu":
        return 0
    return max(200 << 20, int(3.5 * torch.cuda.get_device_properties(0).L2_cache_size))
