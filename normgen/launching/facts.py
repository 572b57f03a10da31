"""Arithmetic, and bounds, that schedules of several families rest on."""

from __future__ import annotations

from math import gcd

STATIC_SHARED = 2048  # bytes of shared memory that the exchange scratch of a block may take, rounded up


def power_of_two(value: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, value - 1).bit_length()


def touched(vector: int, group: int) -> int:
    """How many groups of neighbours a vector may touch, where both begin at multiples of their lengths."""
    unit = gcd(vector, group)
    return 1 if vector == unit else (vector // unit - 2) // (group // unit) + 2
