"""Columns: forms of kernels, what a schedule is and depends on, what a multiprocessor has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from normgen.launching.facts import VECTORS
from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import ORDINARY_SHARED, WARP, Machine

_MAX_BLOCKS = 32
TEAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LANES = (256, 128, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family, as it is launched."""

    holds: bool  # whether a thread group holds its columns, which then are read once
    deep: int  # loads of each operand that a thread has on their way, at most
    because: str  # why it is taken, of threads along a column and their elements


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "registers": Form(True, 1 << 30, "a column fits the registers of {0}, {1} each"),
        "multipass": Form(False, 4, "{0} pass along it once for each level of reductions"),
    }
)


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """What a schedule depends on. Bytes are those of one element, summed over operands."""

    device: Machine  # with the multiprocessors that the kernel may count on
    length: int  # elements per column
    vector: int  # widest vector that alignment allows, in columns
    misaligned: int  # widest that may begin anywhere in a word of memory; 0 where none may
    columns: int  # per segment
    side_by_side: int  # of these, in the innermost axes
    batched: bool  # whether there may be any number of these
    segments: int
    reads: int  # bytes of operands with a value for each element of each column
    writes: int  # bytes of such results
    again: int  # bytes that passes read again where a column is not held
    narrowest: int  # bytes of the narrowest element that is moved in vectors
    elements: int  # operands with a value for each element, the same for all columns
    arrays: int  # values of each column that the last pass needs
    exchanged: int  # values of a column in one exchange, at most
    exchanges: int  # per column
    moments: bool  # whether a pass is made twice, for mean and variance
    held: int  # values kept from pass to pass for each element of each column
    wide: int  # sums over columns that are wanted, with a value for each element
    sums: int  # sums over columns that the kernel has
    persistent: bool  # whether any is wanted, so that blocks walk several tiles
    image: bool = False  # whether those side by side are the pixels of an image


@dataclass(frozen=True, slots=True)
class ColumnSchedule:
    """One way to run a kernel."""

    form: str = knob()
    vector: int = knob(bits=False, values=VECTORS)  # adjacent columns per thread
    team: int = knob(values=TEAMS)  # threads along each column
    items: int = knob()  # elements of a column per thread
    registers: int = estimate(0)  # per thread
    lanes: int = knob(0, bits=False, values=LANES)  # threads across the columns
    blocks: int = knob(0, bits=False)  # resident per multiprocessor
    ahead: bool = knob(False, bits=False)  # the next tile comes into shared memory while one is reduced
    realigned: bool = knob(False, bits=False)  # vectors begin anywhere in a word of memory

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.team * self.lanes

    @property
    def holds(self) -> bool:
        """Whether a thread group holds its columns."""
        return FORMS[self.form].holds

    @property
    def deep(self) -> int:
        """Loads of each operand that a thread has on their way."""
        return min(FORMS[self.form].deep, self.items)

    def chunks(self, columns: Any, side_by_side: int) -> Any:
        """Groups of neighbouring columns, each of one thread. Of numbers, and of arrays of them."""
        return columns // side_by_side * -(-side_by_side // self.vector)


def registers_of(
    shape: ColumnShape, vector: int, items: int, team: int, share: float = 1.2, realigned: bool = False
) -> int:
    """Registers per thread with which the compiler spills none: fitted to its reports on four kernels with 4
    to 19 elements per thread. `share`: those for each that is kept. `realigned`: the words around vectors
    arrive together, each beside where it is."""
    column = max(items * vector * shape.reads / 4, items * vector * shape.held)
    around = items * (vector * shape.reads / 2 + shape.reads / shape.narrowest) if realigned else 0.0
    beside = items * (shape.elements + shape.wide)
    # what tiles share is there before, else it is loaded once vectors are cut out
    kept = max(column, around) + beside if shape.persistent else max(column + beside, around)
    twice = kept**2 / 400 if shape.moments else 0.0
    alone = 3 * vector + kept / 2 if team == 1 else 0.0  # without an exchange in between, passes are mixed
    needed = 16 + share * kept + twice + 0.7 * vector * shape.arrays + alone
    return -(-int(needed) // 8) * 8


def multipass_registers(shape: ColumnShape, vector: int) -> int:
    """The same where columns stream: what is summed, or what the last pass needs, for each column."""
    return max(48, -(-(32 + vector * (max(shape.exchanged, shape.arrays) + 1)) // 8) * 8)


def lanes_that_fit(s: ColumnSchedule, shape: ColumnShape) -> list[int]:
    """How many threads across the columns a block may have."""
    device, options = shape.device, list(LANES)
    if shape.wide and not s.holds:
        options = [WARP]
    elif shape.sums:
        options = options[3:]
    return [
        lanes
        for lanes in options
        if lanes * s.team % WARP == 0
        and lanes * s.team <= (1024 if lanes <= WARP else 256)
        and lanes * s.team * s.registers <= device.registers_per_multiprocessor
        and exchange(lanes, s, shape) <= ORDINARY_SHARED
        and shared(lanes, s, shape) <= device.shared_per_block
    ]


def exchange(lanes: int, s: ColumnSchedule, shape: ColumnShape) -> int:
    """Bytes of shared memory that a block exchanges through."""
    return exchange_bytes(s.team, lanes, s.vector, shape)


def exchange_bytes(team: int, lanes: int, vector: int, shape: ColumnShape) -> int:
    """The same of so many threads."""
    return (team + 1) * shape.exchanged * vector * lanes * 4 if team > 1 else 0


def next_tile(lanes: int, s: ColumnSchedule, shape: ColumnShape) -> int:
    """Bytes of shared memory that the next tile of a block takes, where it is on its way."""
    return s.items * lanes * s.team * s.vector * shape.reads if s.ahead else 0


def shared(lanes: int, s: ColumnSchedule, shape: ColumnShape) -> int:
    """Bytes of shared memory that a block takes."""
    return exchange(lanes, s, shape) + next_tile(lanes, s, shape)


def blocks_resident(s: ColumnSchedule, lanes: int, shape: ColumnShape) -> int:
    """Blocks that a multiprocessor has room for."""
    resident = shape.device.resident(lanes * s.team, s.registers, shared(lanes, s, shape))
    return max(1, min(resident, _MAX_BLOCKS))
