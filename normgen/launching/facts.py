"""Arithmetic, and bounds, that schedules of several families rest on."""

from __future__ import annotations

from math import gcd

from normgen.launching.machine import WARP

VECTORS = (1, 2, 4, 8, 16)  # elements of an access
STATIC_SHARED = 2048  # bytes of shared memory that the exchange scratch of a block may take, rounded up


def power_of_two(value: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, value - 1).bit_length()


def power_near(value: int) -> int:
    """The power of two that is nearest to a length; an empty axis stays so."""
    if value < 2:
        return value
    below = 1 << (value.bit_length() - 1)
    return below if 2 * value < 3 * below else 2 * below


def touched(vector: int, group: int) -> int:
    """How many groups of neighbours a vector may touch, where both begin at multiples of their lengths."""
    unit = gcd(vector, group)
    return 1 if vector == unit else (vector // unit - 2) // (group // unit) + 2


def in_whole_warps(team: int, threads: int) -> int:
    """How many thread groups of so many threads, side by side in whole warps, a block of so many threads
    has; 0 where it has none."""
    quantum = WARP // gcd(team, WARP)
    return threads // (team * quantum) * quantum
