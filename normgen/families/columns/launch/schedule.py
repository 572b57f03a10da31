"""Kernels of the columns family: what a schedule depends on, what it is, and what of it a multiprocessor has
room for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import ORDINARY_SHARED, WARP, Machine

_MAX_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule depends on. Bytes are those of one element, summed over operands.

    `length`: elements of a column; `vector`: the widest vector that alignment allows, in columns; `columns`:
    how many a segment has. `reads`, `writes`: bytes of what has a value for each element of each column;
    `narrowest`: bytes of the narrowest element of what is moved in vectors. `elements`: operands with a value
    for each element; `arrays`: values of each column that the last pass needs; `exchanged`: the most values
    of a column in one exchange; `moments`: whether a pass is made twice for them; `held`: values kept for
    each element of each column; `wide`: sums over columns with a value for each element that are wanted;
    `sums`: all that the kernel has; `persistent`: whether any is wanted, so that blocks walk several tiles.
    """

    length: int
    vector: int
    columns: int
    segments: int
    reads: int
    writes: int
    narrowest: int
    elements: int
    arrays: int
    exchanged: int
    exchanges: int
    moments: bool
    held: int
    wide: int
    sums: int
    persistent: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run a kernel. `vector`: adjacent columns of a thread; `lanes`: threads across the columns;
    `team`: threads along each; `items`: elements of a column that a thread has; `blocks`: blocks a
    multiprocessor; `ahead`: whether the next tile is on its way into shared memory while one is reduced;
    `efficiency`: the share of the memory's speed to expect; `reason` says why it was taken.
    """

    form: str
    vector: int
    team: int
    items: int
    registers: int = estimate()
    lanes: int = knob(0, fine=True)
    blocks: int = knob(0, fine=True)
    ahead: bool = False
    efficiency: float = estimate(0.0)
    reason: str = estimate("")

    @property
    def threads(self) -> int:
        return self.team * self.lanes


def registers_of(shape: Shape, vector: int, items: int, team: int, share: float = 1.2) -> int:
    """Registers a thread with which the compiler spills none: fitted to its reports on four kernels with 4 to
    19 elements a thread. `share`: those for each that is kept."""
    column = max(items * vector * shape.reads / 4, items * vector * shape.held)
    kept = column + items * (shape.elements + shape.wide)
    twice = kept**2 / 400 if shape.moments else 0.0
    alone = 3 * vector + kept / 2 if team == 1 else 0.0  # without an exchange in between, passes are mixed
    needed = 16 + share * kept + twice + 0.7 * vector * shape.arrays + alone
    return -(-int(needed) // 8) * 8


def stream_registers(shape: Shape, vector: int) -> int:
    """The same where columns stream: what is summed, or what the last pass needs, for each column."""
    return max(48, -(-(32 + vector * (max(shape.exchanged, shape.arrays) + 1)) // 8) * 8)


def lanes_that_fit(s: Schedule, shape: Shape, device: Machine) -> list[int]:
    """How many threads across the columns a block may have."""
    if s.form == "stream" and shape.wide:
        options: tuple[int, ...] = (32,)
    else:
        options = (32, 16, 8, 4, 2, 1) if shape.sums else (256, 128, 64, 32, 16, 8, 4, 2, 1)
    return [
        lanes
        for lanes in options
        if lanes * s.team % 32 == 0
        and lanes * s.team <= (1024 if lanes <= 32 else 256)
        and lanes * s.team * s.registers <= device.registers_per_multiprocessor
        and _exchange(lanes, s, shape) <= ORDINARY_SHARED
        and _shared(lanes, s, shape) <= device.shared_per_block
    ]


def _exchange(lanes: int, s: Schedule, shape: Shape) -> int:
    """Bytes of shared memory that a block exchanges through."""
    return (s.team + 1) * shape.exchanged * s.vector * lanes * 4 if s.team > 1 else 0


def next_tile(s: Schedule, shape: Shape) -> int:
    """Bytes of shared memory that the next tile of a block takes."""
    return s.items * s.threads * s.vector * shape.reads


def _shared(lanes: int, s: Schedule, shape: Shape) -> int:
    """Bytes of shared memory that a block takes."""
    ahead = next_tile(replace(s, lanes=lanes), shape) if s.ahead else 0
    return _exchange(lanes, s, shape) + ahead


def blocks_resident(s: Schedule, lanes: int, shape: Shape, device: Machine) -> int:
    """Blocks that a multiprocessor has room for."""
    threads = lanes * s.team
    by_registers = device.warps(s.registers) * WARP // threads
    by_shared = device.blocks(_shared(lanes, s, shape))
    return max(1, min(by_registers, by_shared, device.threads_per_multiprocessor // threads, _MAX_BLOCKS))
