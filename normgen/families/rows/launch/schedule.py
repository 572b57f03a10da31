"""What a schedule of the rows family is, and what its choice depends on."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from normgen.launching.knobs import estimate, knob
from normgen.launching.machine import PLACED, REGISTER_BYTES

STATIC_SHARED = 2048  # what the exchange scratch may take of a block's shared memory, rounded up


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule depends on. Bytes are per element of the row, summed over operands.

    `vector`: the widest vector that alignment allows, in elements. `shifted`: the widest where rows may begin
    anywhere in a word of memory, or 0 where that cannot be, or is not worth it. `streams`: how many operands
    change from row to row. `walked`: operands that change from
    row to row; `shared`: those that all rows share; `rewalked`: walked ones that several passes read;
    `whole`: how many have 4-byte elements, which need no unpacking. `columns`: the kernel's accumulators
    over rows; `wide_columns`: the values that those wanted keep for each element; `gathered`: how many the
    teams of a block hand to one another. `functions`: whether exp, tanh and
    the like are called; `held`: how many results of those a later pass uses again; `parts`: how many
    operands have some of the row's axes only, a value for a vector; `picked`: of how many each element has
    one of its own to find; `narrowest`: bytes of an element of the narrowest walked operand; `rows`: of a
    segment. `quantises`: whether bytes are stored. `splits`: whether blocks may share a row; `shared_rows`:
    whether they do whatever its length. `narrow_moments`: whether there are moments of one value for all
    elements. `whole_words`: whether every walked operand's vectors have 16 bytes or a multiple. `skews`:
    whether a row's exchange may go on while the row before it is finished; `slants`: whether its results may
    go by words of memory, rows that are a word's elements apart beginning at the same one; `rolls`: whether a
    ring may hold vectors of whatever row; `spreads`: whether blocks that share a row may meet in memory.
    `one_shot`: whether a team must hold its row; `sums`: how many sums over parts of it there are;
    `in_pieces`: whether it is. `piece`: the vectors of a piece, where pieces are added up, else 0. `folded`:
    of how many neighbours a block merges what it accumulates, 0 where it does not. `slab`: where rows
    lie side by side, but begin where only short vectors may, how many places a block needs to move several of
    them together; else 0.
    """

    length: int
    vector: int
    walked: int
    shared: int
    rewalked: int
    whole: int
    wide_columns: int
    gathered: int
    columns: int
    exchanges: int
    moments: bool
    functions: bool
    held: int
    parts: int = 0
    picked: int = 0
    narrowest: int = 4
    rows: int = 1 << 30
    quantises: bool = False
    splits: bool = False
    shared_rows: bool = False
    narrow_moments: bool = False
    whole_words: bool = False
    shifted: int = 0
    streams: int = 0
    skews: bool = False
    slants: bool = False
    slab: int = 0
    rolls: bool = False
    spreads: bool = False
    one_shot: bool = False
    folded: int = 0
    sums: int = 0
    in_pieces: bool = False
    piece: int = 0

    @property
    def of_floats(self) -> bool:
        """Whether all operands that change from row to row have elements of 4 bytes."""
        return self.walked == 4 * self.streams > 0

    @property
    def shares(self) -> bool:
        """Whether rows have vectors of operands in common."""
        return bool(self.shared or self.parts or self.picked)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to run a kernel. `blocks`: blocks a multiprocessor; `stages`: rows that a block's ring holds, 0
    where there is none, or until it is fitted; `reason` says why it was taken.

    `late`: operands that all rows share are loaded when they are used, not before the reductions. `reload`: a
    row is read from the ring in every pass instead of being kept in registers. `staged`: later passes read a
    copy in shared memory. `cluster`: the blocks that a team has, where it has several. `bulk`: a block's
    slice of a row arrives in the ring as one copy. `shifted`: rows begin anywhere, and vectors are cut out of
    the words of memory around them. `places`: of the vectors of each thread, where its ring holds those of
    whatever row and not whole rows; of a spread row those that are not in registers. `batch`: rows that a
    team has under way together;
    `walks`: blocks then go on to further rows even where nothing is accumulated. `members`: the blocks
    that share a row and meet in memory, where there are several. `few`: it is for few rows, and more of them
    have another schedule; `paired`: it is one of two such.
    """

    form: str
    vector: int
    team: int
    teams: int
    items: int
    blocks: int = knob(fine=True)
    stages: int = knob(0, fine=True)
    reload: bool = knob(False, fine=True)
    late: bool = knob(False, fine=True)
    staged: bool = knob(False, fine=True)
    cluster: int = 1
    bulk: bool = knob(False, fine=True)
    places: int = knob(0, fine=True)
    shifted: bool = False
    batch: int = 1
    walks: bool = False
    members: int = 1
    few: bool = estimate(False)
    paired: bool = estimate(False)
    registers: int = estimate(0)
    shared: int = knob(0, fine=True)
    reason: str = estimate("")

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams // (self.cluster * self.members)

    @property
    def slices(self) -> int:
        """Of a block's part of a ring of shifted rows: one for each warp, or team within a warp."""
        return self.threads // min(self.team, 32)

    @property
    def spare(self) -> int:
        """Words of a stage of a ring of shifted rows beside its vectors: the one after each slice, and of
        slanted rows the one in which a row ends."""
        ends = self.teams if self.form == "slanted" else 0
        return self.slices + ends if self.shifted else 0

    def together(self, multiprocessors: int) -> int:
        """How many blocks, or clusters of them, or rows that blocks share, are resident at once."""
        blocks = int(PLACED[self.cluster] * multiprocessors) * max(1, self.blocks)
        return max(1, blocks // (self.cluster * self.members))


@dataclass(frozen=True, slots=True)
class Rejected:
    """A schedule that was not taken, and why."""

    what: str
    reason: str


def is_deep(shape: Shape) -> bool:
    """Whether the elements of a row are visited three times."""
    return shape.moments or shape.exchanges > 1


def is_narrow(shape: Shape) -> bool:
    """Whether rows are of bytes, and what is accumulated over them has no value for each element: then
    instructions, not registers, are what a thread is short of."""
    return shape.walked == 1 and shape.columns > 0 and not shape.wide_columns


def handed(s: Schedule, shape: Shape) -> int:
    """Values that a thread hands to the other teams of its block: of its columns, or of the groups of
    neighbours that its vectors may touch (folded.cuh)."""
    if shape.folded:
        return s.items * touched(s.vector, shape.folded) * shape.gathered
    return s.items * s.vector * shape.gathered if s.teams > 1 else 0


def touched(vector: int, folded: int) -> int:
    """How many groups a vector may touch, where both begin at multiples of their lengths."""
    unit = gcd(vector, folded)
    return 1 if vector == unit else (vector // unit - 2) // (folded // unit) + 2


def register_bytes(vector: int, shape: Shape) -> int:
    """Bytes of registers that so many elements side by side of every walked operand take. A team that must
    hold its row has nothing to pack elements with that are alone in a vector: each takes a register."""
    narrow, packed = vector * shape.narrowest, vector * shape.walked
    return packed * REGISTER_BYTES // narrow if shape.one_shot and narrow < REGISTER_BYTES else packed


def at_least_one(value: int) -> int:
    return max(1, value)


def power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def warps(vectors: int, items: int) -> int:
    """Threads in whole warps that have the vectors of a row, so many of them each."""
    threads = -(-vectors // items)
    return -(-threads // 32) * 32
