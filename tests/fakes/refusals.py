"""What a CUDA driver refuses of a launch, for the fake drivers in Python. The one in C has the same."""

from __future__ import annotations

from math import prod

from normgen.launching.machine import PORTABLE_CLUSTER

MOST_THREADS = 1024  # of a block
MOST_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)  # of a grid, by dimension

Size = tuple[int, ...]


def why_refused(
    grid: Size, block: Size, shared: int, allowed: int, cluster: int = 1, largest: int = PORTABLE_CLUSTER
) -> str:
    """Why a launch is refused, or "". `allowed`: bytes of dynamic shared memory, and `largest`: blocks of a
    cluster, at most."""
    if not 1 <= prod(block) <= MOST_THREADS:
        return f"a block of {block} threads"
    if not all(1 <= size <= most for size, most in zip(grid, MOST_BLOCKS, strict=True)):
        return f"a grid of {grid}"
    if shared > allowed:
        return f"{shared} bytes of shared memory, of which {allowed} are allowed"
    if cluster > largest or grid[0] % cluster:
        return f"clusters of {cluster}, of {largest} at most, in a grid of {grid}"
    return ""
