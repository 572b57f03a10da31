"""How a resident kernel runs: the blocks of a segment, and how much of it each of them holds, and where.

Measured on an H200, us beside those of three kernels in the same run, the launch that clears included: 8
samples of 320 channels of 4096 pixels of 2 bytes 19.5 (25.8), of 4 bytes 29.7 (40.8), both in 32 blocks a
sample; of 960 channels of 2 bytes 45.6 (83.1); of 64 channels of 65536 pixels 51.5 (65.4), of 4 bytes
97.7 (110.6). Samples that no blocks hold: 2 of 512 channels of 65536 pixels of 2 bytes 96.6 (109.3), 1 of 128
channels of 262144 50.6 (62.1), of 4 bytes 99.8 (109.7). So blocks are few and large, since to meet takes 5 to
8 us, in which the memory rests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from normgen.families.resident.launch import residence
from normgen.families.resident.launch.residence import (
    Residence,
    band_of,
    kept_in_bands,
    kept_in_part,
    kept_whole,
    members_of,
)
from normgen.families.rows.launch.schedule import touched
from normgen.launching.call import WORD, Call, once
from normgen.launching.machine import REGISTER_BYTES, Machine
from normgen.package.kernels import ResidentRecord

# Threads of a block, and blocks of a multiprocessor, which share its registers: 96 for each of 640 threads.
# Where two blocks find place, one sums while the other meets: 64 samples of 320 channels of 1024 pixels of 4
# bytes take 57.4 us, and 74.0 in blocks of 640 threads. So 32 members that do are better than 16 that do not:
# 2 samples of 320 channels of 4096 pixels of 2 bytes 11.4 (13.9), 4 13.8 (15.2), 8 19.5 (19.9), 16 34.2
# (35.0), of 4 bytes 14.1 (18.2), 18.6 (20.6), 29.7 (30.1), 54.6 (55.3).
WAYS = ((320, 2), (640, 1), (512, 1), (320, 1), (1024, 1))
LONG_WAYS = (640, 512, 384)  # threads of a block that has a multiprocessor and reads some rows twice
BAND_WAYS, LONG_BAND_WAYS = ((256, 2), (512, 1), (320, 2), (640, 1)), (512, 640)  # of bands
# Registers of a thread beside what it holds: numbers and addresses, and what it takes to merge columns with
# their neighbours, or to apply what was found. With fewer for 10 and 16 vectors of 16 bytes in 96 registers
# some spill.
_OWN_REGISTERS, _MERGING = 18, 16
# Where each column has moments of its own, and states are updated: with none 24 bytes spill, with 4 twelve.
_OF_BANDS = 8
# For each column, of exponentials and their like. Some spill up to 20 bytes so; with 5 and 16 besides none
# does, and vectors of 8 columns leave two blocks a multiprocessor no registers.
_FUNCTION = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """What a schedule depends on: the rows of a segment, elements of a row, in how many bands, the widest
    vector, bytes of an element of what is held, how many neighbours share their moments, values made of
    those, and whether exponentials and their like are applied."""

    rows: int
    length: int
    bands: int
    vector: int
    itemsize: int
    folded: int
    temporaries: int
    functions: bool

    @property
    def groups(self) -> int:
        """How many moments a row has."""
        return self.length // self.folded

    @property
    def operands(self) -> int:
        """How many are held."""
        return 1

    @property
    def vector_bytes(self) -> int:
        """Of a thread's registers, for a vector of it."""
        return max(REGISTER_BYTES, self.vector * self.itemsize)

    def room(self, items: int, registers: int) -> int:
        """Bytes of rows in a thread's registers: beside three sums of each column, or what is applied."""
        columns = self.vector * items
        applied = (1 + self.temporaries + _FUNCTION * self.functions) * columns
        own = _OWN_REGISTERS + _OF_BANDS * bool(self.bands)
        return REGISTER_BYTES * (registers - own - max(3 * columns + _MERGING, applied))

    def shared(self, team: int, teams: int, items: int, places: int) -> int:
        """Bytes of shared memory: rows that are not in registers, moments that threads hand to neighbours,
        and a table of those of all groups, or of what is made of them."""
        rows = places * items * self.vector * self.itemsize * team * teams
        vectors = self.length // self.vector
        parts = touched(self.vector, self.folded) * teams * vectors * WORD
        return rows + parts + 4 * (max(3, self.temporaries) * self.groups + 4)


@once
def segment_of(record: ResidentRecord, call: Call) -> Segment:
    """A call, as far as its schedule depends on it."""
    whole, segments = call.size(record.inner), call.size(record.segment)
    length = whole if record.segment else band_of(whole, call.itemsize(record.operand))
    wide = [o for o in (*call.read(record.reads), *call.present(record.writes)) if o.inner == record.inner]
    return Segment(
        rows=call.size(record.kept) // segments,
        length=length,
        bands=0 if record.segment else whole // length,
        vector=call.vector_width(wide, length),
        itemsize=call.itemsize(record.operand),
        folded=call.size(record.folded),
        temporaries=record.temporaries,
        functions=record.functions,
    )


def find(segment: Segment, device: Machine) -> Residence | None:
    """How a segment should be kept; None where it finds no place."""
    return next(iter(found(segment, device)), None)


def found(segment: Segment, device: Machine) -> list[Residence]:
    """Every way to keep a segment that fits a device, the usual one first: in so many blocks as there should
    be, or the nearest to that, where two of them share a multiprocessor if that takes no more than twice as
    many; where all blocks do not hold it, ways that read some of it twice.
    """
    if segment.bands:
        return kept_in_bands(segment, BAND_WAYS, LONG_BAND_WAYS, device)
    usual = members_of(segment, residence.MEMBERS)
    whole = sorted(kept_whole(segment, WAYS, device), key=lambda r: abs(log2(r.members / usual)))
    few = sorted(whole, key=lambda r: r.blocks == 1 or r.members > 2 * usual)
    return few or kept_in_part(segment, LONG_WAYS, device)
