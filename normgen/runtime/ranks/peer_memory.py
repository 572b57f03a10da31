"""Exchanges through peer memory: the launches of their kernels (`templates/ranks/peer_memory.cu`), and what
ranks must know of each other's buffers.

Each rank stores into the memory of its peers, which all have to be on its node. Callers allocate the buffers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from importlib import resources

from normgen.dtypes import DTYPES
from normgen.launching.launch import Launch
from normgen.launching.machine import Machine

MOST_RANKS = 8
THREADS = 256
CHUNK = 4 * THREADS  # words that a block exchanges at once
MOST_BLOCKS = 64  # so that many exchanges at the same time leave room for others
COUNTERS = 4  # of a channel, of 4 bytes: its epoch, chunks taken, blocks done, whether it has given up
RECORD_WORDS = COUNTERS // 2 + MOST_RANKS + 4  # of a channel, as kernels read it
WORD = 4  # bytes of what a word tells
ADDED = ("f32", "bf16", "f16")  # what is added up: a word has one element or two
RULE = (
    f"On GPUs, PyTorch processes exchange through peer memory if there are at most {MOST_RANKS} ranks, all "
    f"on one node, and each GPU can access the memory of all others; otherwise through torch.distributed "
    f"collectives."
)
_FORMAT = "PP" + "P" * MOST_RANKS + "PPP" + "iqqi"


@dataclass(frozen=True, slots=True)
class Channel:
    """Where one exchange after the other is made, as a rank sees it: addresses in the memory of its device.
    All ranks make those of a channel in the same order."""

    slots: tuple[int, ...]  # of this channel in the buffer of each rank: words, [2, ranks, capacity]
    counters: int  # 4-byte numbers, of 0 at first
    fault: int  # a word that becomes what `PeerLate` reads, of 0 at first
    capacity: int  # words that a rank can tell at once
    rank: int

    def packed(self, given: int, made: int, count: int, seconds: float) -> bytes:
        """The arguments of an exchange of `count` elements, from one address to another. `seconds`: how long
        to wait for a word."""
        where = given, made, *self._every_slot, self.slots[self.rank], self.counters, self.fault
        return struct.pack(_FORMAT, *where, count, self.capacity, _nanoseconds(seconds), self.rank)

    def record(self, seconds: float) -> tuple[int, ...]:
        """The words behind the counters by which kernels that exchange themselves know the channel
        (`ChannelRecord` in row_words.cuh)."""
        return (*self._every_slot, self.fault, self.capacity, _nanoseconds(seconds), self.rank)

    @property
    def _every_slot(self) -> tuple[int, ...]:
        return self.slots + (0,) * (MOST_RANKS - len(self.slots))


@dataclass(frozen=True, slots=True)
class PeerLate:
    """Who did not deliver: what a kernel has recorded of the first wait that it gave up."""

    rank: int
    place: int
    epoch: int

    @classmethod
    def of(cls, word: int) -> PeerLate | None:
        """That of a record; None where it is empty."""
        rank = word >> 32 & 0xFF
        return cls(rank - 1, word >> 40 & 0xFFFFFF, word & 0xFFFFFFFF) if rank else None


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def channel_words(ranks: int, capacity: int) -> int:
    """The words of a channel in the buffer of a rank."""
    return 2 * ranks * capacity


def words_of(count: int, dtype: str) -> int:
    """The words that so many elements take."""
    return -(-count * DTYPES[dtype].bytes // WORD)


def gather_launch(ranks: int, count: int, device: Machine) -> Launch:
    """Have what all ranks tell: [count] floats become [ranks, count]."""
    return _launch("normgen_gather_words", ranks, "f32", _blocks(count), device)


def sum_launch(ranks: int, count: int, dtype: str, device: Machine) -> Launch:
    """Have the sum of what all ranks have: `count` elements of a type of `ADDED`, added up in float32 and in
    the order of ranks. Both are aligned to `WORD` bytes."""
    return _launch("normgen_sum_words", ranks, dtype, _blocks(words_of(count, dtype)), device)


def _blocks(words: int) -> int:
    return max(1, min(MOST_BLOCKS, -(-words // CHUNK)))


def _all_run(blocks: int, device: Machine) -> bool:
    """Whether so many blocks all run at the same time sooner or later, whatever else does. They take no more
    than half of the multiprocessors: there is room for others that wait."""
    return 2 * blocks <= device.multiprocessors


@cache
def _launch(entry: str, ranks: int, dtype: str, blocks: int, device: Machine) -> Launch:
    numbers = {"RANKS": ranks, "THREADS": THREADS}
    flags = {"TICKETS": not _all_run(blocks, device), "PROGRAMMATIC": device.programmatic}
    constants = [
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
        f"using Element = {DTYPES[dtype].c_type};",
    ]
    text = "\n".join([*constants, "", _text()])
    return Launch(
        text=text,
        entry=entry,
        grid=(blocks, 1, 1),
        block=(THREADS, 1, 1),
        shared=0,
        format=_FORMAT,
        values=(),
        reads=(),
        writes=(),
        programmatic=device.programmatic,
    )


@cache
def _text() -> str:
    return (resources.files("normgen") / "templates" / "ranks" / "peer_memory.cu").read_text(encoding="utf-8")
