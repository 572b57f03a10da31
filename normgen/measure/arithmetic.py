"""The arithmetic of a benchmark: bytes, how many buffers keep a cache cold, shares of the ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from normgen.dtypes import DTYPES
from normgen.launching.launch import Binding
from normgen.package.direction import Direction

# Times the second-level cache that buffers take together. More than three, since a cache may keep lines that
# others have pushed out of its reach for a while.
ROTATION = 4
MOST_SETS = 128
# Bytes read for each byte written from which a pass is held against a triad, and not a copy.
_TRIAD = 1.5


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a pass cannot do without: bytes `read` and `written`."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both."""
        return self.read + self.written

    @property
    def ceiling(self) -> str:
        """What moves bytes in about these shares: a copy (1 read, 1 written) or a triad (2 read)."""
        return "triad" if self.read >= _TRIAD * self.written else "copy"


def operand_bytes(binding: Binding) -> dict[str, int]:
    """The bytes of each tensor of a call, by name."""
    extents = dict(binding.extents)
    return {
        name: prod(extents[axis] for axis, _ in operand.strides) * DTYPES[operand.dtype].bytes
        for name, operand in binding.operands
    }


def least_bytes(direction: Direction, binding: Binding) -> Bytes:
    """What any implementation of a pass must move: each operand and each result once, and a state twice.

    What only the norm itself keeps for its backward, its saves, does not count: another may do without.
    """
    sizes = operand_bytes(binding)
    kept = {name for name, tensor in direction.declared.items() if tensor.role == "save"}
    read = sum(size for name, size in sizes.items() if name in direction.reads and name not in kept)
    written = sum(
        size
        for name, size in sizes.items()
        if (name in direction.results and name not in kept) or name in direction.updated
    )
    return Bytes(read, written)


def sets_for(total: int, cache: int) -> int:
    """How many sets of buffers of `total` bytes each keep a cache of `cache` bytes cold."""
    return max(2, min(MOST_SETS, ceil(ROTATION * cache / max(1, total))))


def rho(ceiling_us: float, us: float) -> float:
    """The share of the memory's speed that is reached."""
    return ceiling_us / us
