"""Kernels around those of a norm: make a strided view contiguous, fill memory with one value.

Both are ordinary `Launch` records, so that they run on every executor and on the caller's stream.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from math import prod
from typing import Any

from normgen.launching.launch import Launch, Slot
from normgen.launching.layout import Shape

MOST_DIMENSIONS = 8
THREADS = 256
MOST_BLOCKS = 4096
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def copy_launch(source: str, target: str, shape: Shape, strides: Shape, itemsize: int) -> Launch:
    """Copy the view of `shape` and `strides` at slot `source` to contiguous memory at slot `target`."""
    dims = _merge(shape, strides)
    if len(dims) > MOST_DIMENSIONS:
        raise ValueError(
            f"{target} is a view with {len(dims)} separate strides, and at most {MOST_DIMENSIONS} are "
            "supported: pass a contiguous copy"
        )
    count = prod(shape)
    padding = (0,) * (MOST_DIMENSIONS - len(dims))
    extents = (*(size for size, _ in dims), *padding)
    steps = (*(stride for _, stride in dims), *padding)
    values = (Slot("pointer", source), Slot("pointer", target), count, *extents, *steps)
    codes = "PP" + "q" * (1 + 2 * MOST_DIMENSIONS)
    return _launch("normgen_copy", itemsize, len(dims), count, codes, values, (source,), (target,))


def fill_launch(target: str, count: int, itemsize: int, bits: Slot | int) -> Launch:
    """Set `count` elements of at most 4 bytes at slot `target` to a bit pattern."""
    values = (Slot("pointer", target), count, bits)
    return _launch("normgen_fill", itemsize, 1, count, "PqI", values, (), (target,))


def _launch(
    entry: str,
    itemsize: int,
    rank: int,
    count: int,
    codes: str,
    values: tuple[Any, ...],
    reads: tuple[str, ...],
    writes: tuple[str, ...],
) -> Launch:
    """A launch over `count` elements of a view of so many dimensions."""
    index = "unsigned int" if count < 2**31 else "unsigned long long"
    head = f"using Element = {_ELEMENTS[itemsize]};\nusing Index = {index};\n"
    text = f"{head}constexpr int rank = {rank};\n\n{_text()}"
    grid = (max(1, min(MOST_BLOCKS, -(-count // THREADS))), 1, 1)
    return Launch(text, entry, grid, (THREADS, 1, 1), 0, codes, values, reads, writes)


@cache
def _text() -> str:
    return (resources.files("normgen") / "templates" / "copy.cu").read_text(encoding="utf-8")


def _merge(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """The fewest (length, stride) pairs that walk the view in the same order; at least one."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == stride * size:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    return dims or [(1, 1)]
