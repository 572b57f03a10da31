"""What the memory allows: the fastest of several copies or triads of given bytes, timed like everything."""

from __future__ import annotations

import struct
from typing import Any

from normgen.devices.cuda.executor import CudaExecutor
from normgen.measure.arithmetic import sets_for
from normgen.measure.clock import kernels, launch_of
from normgen.measure.timing import BATCHES, FEW, Clock, measure

Variant = tuple[str, int]
# The kernel: words of 16 bytes per thread, s with streaming hints, k with loads tagged evict_last; then the
# threads per block.
VARIANTS: tuple[Variant, ...] = (
    *(
        (f"{words}{hint}", threads)
        for hint in ("", "s")
        for words, threads in ((1, 256), (1, 1024), (2, 256), (2, 1024), (4, 128), (4, 256))
    ),
    ("1k", 256),
    ("1k", 1024),
)
_ARRAYS = {"copy": 2, "triad": 3}
_WORD = 16


class Ceiling:
    """The fastest copies (one array read, one written) and triads (two read), by bytes moved."""

    def __init__(self, executor: CudaExecutor, clock: Clock) -> None:
        self._executor, self._clock = executor, clock
        self._best: dict[tuple[str, int, bool], Variant] = {}
        self._known: dict[tuple[str, int, int | None], float] = {}

    def microseconds(self, kind: str, total: int, sets: int | None = None) -> float:
        """The time to move `total` bytes, read and written together, by a copy or a triad.

        `sets`: of buffers to rotate through, by default as many as keep the cache cold. Which variant is
        fastest is found once for sizes of the same power of two.
        """
        key = (kind, total, sets)
        if key not in self._known:
            alike = (kind, total.bit_length(), sets is None)
            if alike not in self._best:
                self._best[alike] = min(VARIANTS, key=lambda v: self._measure(kind, total, sets, v, FEW))
            self._known[key] = self._measure(kind, total, sets, self._best[alike], BATCHES)
        return self._known[key]

    def _measure(self, kind: str, total: int, sets: int | None, variant: Variant, batches: int) -> float:
        name, threads = variant
        each = max(1, total // _ARRAYS[kind] // _WORD)
        count = sets or sets_for(total, self._executor.device.cache)
        memory = [[self._noise(each) for _ in range(_ARRAYS[kind])] for _ in range(count)]
        form = "P" * _ARRAYS[kind] + "q"
        packed = [struct.pack(form, *(m.pointer for m in row), each) for row in memory]
        launch = launch_of(f"{kind}{name}", -(-each // (int(name[0]) * threads)), threads, form)
        function = self._executor.function(launch.source, launch.entry, 0)
        launcher, stream = self._executor.launch, self._clock.stream

        def call(i: int) -> None:
            launcher(function, launch, packed[i % count], (), stream)

        try:
            return measure(self._clock, call, count, batches).us
        finally:
            self._clock.wait()  # before the memory goes

    def _noise(self, words: int) -> Any:
        """Memory of so many words, filled."""
        made = self._executor.context.allocate(words * _WORD)
        launch = launch_of("noise", -(-words // 256), 256, "Pq")
        function = self._executor.function(kernels(), "noise", 0)
        packed = struct.pack("Pq", made.pointer, words)
        self._executor.launch(function, launch, packed, (), self._clock.stream)
        return made
