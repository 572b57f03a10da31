"""Schedules of the rows family, and what their choice depends on."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.launching.facts import VECTORS
from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import PLACED, REGISTER_BYTES, WARP

MOST_STAGES, MOST_BATCH = 8, 8


@dataclass(frozen=True, slots=True)
class RowShape:
    """What the rows family needs to know about a call. Bytes are per element of the row, summed over
    operands; an operand is walked where it changes from row to row."""

    length: int  # elements of a row
    vector: int  # elements of the widest naturally aligned vector
    walked: int  # bytes of walked operands
    shared: int  # bytes of operands that all rows share
    rewalked: int  # bytes of walked operands that several passes read
    whole: int  # operands with 4-byte elements, which need no unpacking
    wide_columns: int  # values for each element that wanted accumulators over rows keep
    gathered: int  # of those, how many the thread groups of a block hand to one another
    columns: int  # accumulators over rows
    exchanges: int  # group-wide reductions per row
    moments: bool  # whether one of them merges mean and variance
    functions: bool  # whether exp, tanh and the like are called
    held: int  # results of those that a later pass uses again
    parts: int = 0  # operands with some of the row's axes only, a value for a vector
    picked: int = 0  # such operands of which each element has one of its own to find
    narrowest: int = 4  # bytes of an element of the narrowest walked operand
    rows: int = 1 << 30  # of a segment
    quantises: bool = False  # whether results of one byte are stored
    splits: bool = False  # whether nothing is exchanged in a row
    narrow_moments: bool = False  # whether there are moments with one value for all elements
    whole_words: bool = False  # whether every walked operand's vectors have 16 bytes or a multiple
    realigned: int = 0  # elements of the widest vector for realigned loads; 0 where rows are aligned
    streams: int = 0  # walked operands
    word_alignable: bool = False  # whether misaligned rows may be stored by aligned words
    row_tile: int = 0  # arrays that a block stages through shared memory to move rows together; 0: it cannot
    refills: bool = False  # whether a pipeline may be refilled by vector
    launches: int = 0  # of a row that blocks share: one a level, and a last one; 0 where they may not
    cooperates: bool = False  # whether the blocks of a row may exchange through memory
    one_shot: bool = False  # whether a thread group must hold its row
    tells: bool = False  # whether it waits for what other ranks tell of its row
    folded: int = 0  # neighbours of which a block merges what it accumulates; 0: none
    sums: int = 0  # sums over parts of a row
    in_pieces: bool = False  # whether a row lies in segments that are apart in memory
    run: int = 0  # elements of such a segment; 0: a row lies in one
    piece: int = 0  # vectors of such a segment, where segments are added up; else 0
    segments: int = 1  # of rows
    stored: int = 0  # bytes of results of rows
    again: int = 0  # bytes that passes read again where a row is not held

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return -(-self.length // self.vector)

    @property
    def shares(self) -> bool:
        """Whether rows have vectors of operands in common."""
        return bool(self.shared or self.parts or self.picked)

    @property
    def narrow(self) -> bool:
        """Whether rows are of bytes, and what is accumulated over them has no value for each element: then
        instructions, not registers, are what a thread is short of."""
        return self.walked == 1 and self.columns > 0 and not self.wide_columns


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """One way to run a kernel of the rows family. A thread group has a row at a time."""

    form: str = knob()  # a key of `forms.FORMS`
    vector: int = knob(values=VECTORS)  # elements of an access
    team: int = knob()  # threads of a thread group
    teams: int = knob(bits=False)  # thread groups of a block
    items: int = knob()  # vectors of a row per thread
    blocks: int = knob(0, bits=False)  # per multiprocessor; 0 until it is fitted
    # rows in a block's pipeline; 0 without one, or until it is fitted
    stages: int = knob(0, bits=False, values=range(MOST_STAGES + 1))
    reload: bool = knob(False, bits=False)  # each pass reads the row from the pipeline, not from registers
    late: bool = knob(False, bits=False)  # what all rows share is loaded when used, not before reductions
    held: bool = knob(False, bits=False)  # sums over rows stay in registers, not in memory
    staged: bool = knob(False, bits=False)  # later passes read a copy in shared memory
    cluster: int = knob(1, values=tuple(PLACED))  # blocks of a thread group's cluster
    bulk: bool = knob(False, bits=False)  # a block's slice of a row arrives as one bulk copy
    places: int = knob(0, bits=False)  # per thread: vectors in a pipeline of vectors, or in shared memory
    realigned: bool = knob(False)  # rows are misaligned: vectors are cut out of the words around them
    # rows that a thread group has under way together
    batch: int = knob(1, bits=False, values=range(1, MOST_BATCH + 1))
    walks: bool = knob(False, bits=False)  # blocks go on to further rows even where nothing is accumulated
    members: int = knob(1)  # blocks that share a row: they exchange through memory, or by launches
    registers: int = estimate(0)  # per thread
    shared: int = knob(0, bits=False)  # bytes of a block's dynamic shared memory

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams // (self.cluster * self.members)

    @property
    def elements(self) -> int:
        """Of a row, per thread."""
        return self.items * self.vector

    @property
    def slices(self) -> int:
        """Of a block's part of a pipeline of misaligned rows: one for each warp, or thread group within a
        warp."""
        return self.threads // min(self.team, WARP)

    def together(self, multiprocessors: int) -> int:
        """How many blocks, or clusters of them, or rows that blocks share, are resident at once."""
        blocks = int(PLACED[self.cluster] * multiprocessors) * max(1, self.blocks)
        return max(1, blocks // (self.cluster * self.members))


def register_bytes(vector: int, shape: RowShape) -> int:
    """Bytes of registers that so many elements side by side of every walked operand take. A thread group
    that must hold its row has nothing to pack elements with that are alone in a vector: each takes a
    register."""
    narrow, packed = vector * shape.narrowest, vector * shape.walked
    return packed * REGISTER_BYTES // narrow if shape.one_shot and narrow < REGISTER_BYTES else packed


def at_least_one(value: int) -> int:
    return max(1, value)


def warps(vectors: int, items: int) -> int:
    """Threads in whole warps that have the vectors of a row, so many of them each."""
    return -(-vectors // (items * WARP)) * WARP
