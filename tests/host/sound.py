"""Sound kernels, written by hand in `kernels/`, each with a call of it.

B0, B1, ... name the barriers in them, F0 a fence, W0 a wait, C0 and C1 what a cluster waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normgen.devices.host.executor import HostExecutor
from tests.host.harness import read, run, update, write

ROWS, N, THREADS = 4, 1000, 128  # 250 vectors for 128 threads: the last round is partial
RANDOM = np.random.default_rng(3)
FOLDER = Path(__file__).parent / "kernels"
# What stands before a kernel; the others stand alone.
BEFORE = {
    "forward": ("types.cuh", "rows.cuh"),
    "backward": ("types.cuh", "rows.cuh"),
    "second_stage": ("types.cuh",),
    "quantise": ("types.cuh",),
}


def kernel(name: str, element: str = "float", n: int = N, threads: int = THREADS) -> str:
    """The text of a kernel."""
    text = "\n".join((FOLDER / part).read_text() for part in (*BEFORE.get(name, ()), f"{name}.cu"))
    return text.replace("@T@", element).replace("@THREADS@", str(threads)).replace("@N@", str(n))


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RANDOM.standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: Any = np.float32) -> Any:
    return np.empty(shape, dtype)


@dataclass(frozen=True)
class Sound:
    """A kernel and a call of it; `arguments` makes new ones."""

    name: str
    grid: int
    block: int
    arguments: Callable[[], tuple[Any, ...]]
    shared: int = 0
    cluster: int = 1
    threads: int = THREADS
    early: bool = False

    @property
    def source(self) -> str:
        return kernel(self.name, threads=self.threads)

    def run(
        self, executor: HostExecutor, source: str = "", *arguments: Any, shared: int | None = None
    ) -> None:
        """Run the kernel, or another text in its place, with arguments in place of those made here."""
        given = arguments or self.arguments()
        room = self.shared if shared is None else shared
        source = source or self.source
        options = {"shared": room, "cluster": self.cluster, "early": self.early}
        run(executor, source, self.name, self.grid, self.block, *given, **options)


def copied(*shape: int) -> tuple[Any, Any]:
    return read(normal(*shape)), write(empty(*shape))


def of_rows() -> tuple[Any, ...]:
    """The arguments of `forward`."""
    given = map(read, (normal(ROWS, N), normal(N), normal(N)))
    return (*given, *map(write, (empty(ROWS, N), empty(ROWS), empty(ROWS))), ROWS, 1e-5)


def of_gradients() -> tuple[Any, ...]:
    """The arguments of `backward`."""
    given = map(read, (normal(ROWS, N), normal(N), normal(ROWS, N), normal(ROWS)))
    return (*given, write(empty(ROWS, N)), write(empty(2, N)), ROWS)


def of_partials() -> tuple[Any, ...]:
    """The arguments of `last_block`."""
    counter = update(np.zeros(2, np.uint32))
    return (read(normal(32, 64)), write(empty(8, 64)), write(empty(64)), counter, 32, 64)


def of_sums() -> tuple[Any, ...]:
    """The arguments of `second_stage`."""
    return (read(normal(16, N)), write(empty(N)), 16)


SOUND = {
    sound.name: sound
    for sound in (
        Sound("forward", ROWS, THREADS, of_rows),
        Sound("backward", 2, THREADS, of_gradients),
        Sound("second_stage", -(-N // 32), 256, of_sums, shared=8 * 33 * 4, threads=256),
        Sound("cluster", 8, 128, lambda: (*copied(2, 4096), 4096, 1e-5), cluster=4),
        Sound("last_block", 8, 64, of_partials),
        Sound("lock", 4, 32, lambda: (update(np.zeros(1, np.int32)), update(np.zeros(1, np.float32)))),
        Sound("pipeline", 3, 64, lambda: (*copied(12, 64, 4), 12), shared=3 * 64 * 16),
        Sound("exchange", 1, 64, lambda: (*copied(4, 64), 4), shared=256),
        Sound("pairs", 1, 128, lambda: copied(128)),
        Sound("warp", 1, 32, lambda: copied(32)),
        Sound("edges", 1, 32, lambda: copied(33), shared=33 * 4),
        Sound("readers", 1, 128, lambda: (read(normal(32)), write(empty(96)))),
        Sound("early", 4, 32, lambda: (*copied(4, 32), 4), shared=128, early=True),
        Sound("messages", 2, 64, lambda: (read(normal(24)), write(empty(12, 64))), cluster=2),
        Sound("bulk", 1, 64, lambda: (*copied(5, 64), 5), shared=2 * 64 * 4),
        Sound("polled", 4, 32, lambda: (read(normal(4)), update(np.zeros(1, np.float32)))),
        Sound("accumulate", 4, 32, lambda: (read(normal(128)), update(np.zeros(1, np.float32)))),
    )
}
