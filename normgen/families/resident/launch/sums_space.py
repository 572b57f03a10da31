"""How a resident kernel of sums runs: the blocks of a segment, how much of it each of them holds, and where.

As for statistics and what applies them (`resident_schedule.py`), with a row of every operand that is held in
the place of one. Measured on an H200, us beside those of the best other strategy in the same run: backwards
of 8 samples of 320 channels of 4096 pixels of 2 bytes 26.0 (43.0), of 4 bytes 47.4 (62.0), 2 samples of 2
bytes 18.1 (20.5), 16 48.2 (69.4); of 64 channels of 65536 pixels, each a group, 82.2 (97.4), of 4 bytes 147.9
(172.0); samples that no blocks hold, 1 of 128 channels of 262144 81.5 (96.3), 156.1 (167.0), 2 of 512
channels of 65536 159.2 (169.0), 313.2 (319.3).
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
from normgen.launching.call import Call, once
from normgen.launching.machine import REGISTER_BYTES, Machine
from normgen.package.kernels import ResidentSumsRecord

# Threads of a block, and blocks of a multiprocessor.
WAYS = ((320, 2), (512, 1), (384, 1), (640, 1), (320, 1), (256, 1))
LONG_WAYS = (512, 384, 256)  # threads of a block that has a multiprocessor and reads some rows twice
BAND_WAYS, LONG_BAND_WAYS = ((512, 1), (384, 1), (256, 1)), (512, 384)  # of bands
_OWN_REGISTERS = 30  # of a thread, beside rows that it holds, sums and factors: numbers and addresses


@dataclass(frozen=True, slots=True)
class SumsSegment:
    """What a schedule depends on: the rows of a segment, elements of a row, in how many bands, the widest
    vector, bytes of an element of each operand that is held, how many neighbours are added up, whether what
    members leave lies apart from their sums, and the numbers of the record."""

    rows: int
    length: int
    bands: int
    vector: int
    itemsizes: tuple[int, ...]
    folded: int
    apart: bool
    sums: int
    left: int
    made: int
    factors: int
    beside: int

    @property
    def groups(self) -> int:
        """How many values of each kind members leave."""
        return self.length // self.folded

    @property
    def itemsize(self) -> int:
        """Bytes of an element of all that is held."""
        return sum(self.itemsizes)

    @property
    def operands(self) -> int:
        """How many are held."""
        return len(self.itemsizes)

    @property
    def vector_bytes(self) -> int:
        """Of a thread's registers, for a vector of each operand."""
        return sum(max(REGISTER_BYTES, self.vector * size) for size in self.itemsizes)

    def room(self, items: int, registers: int) -> int:
        """Bytes of rows in a thread's registers: beside sums of each column, or factors of what is held."""
        columns = self.vector * items
        return REGISTER_BYTES * (registers - _OWN_REGISTERS - self.beside * columns)

    def shared(self, team: int, teams: int, items: int, places: int) -> int:
        """Bytes of shared memory: rows that are not in registers, the sums of teams, those of the slice, what
        members leave, own and all, what is made of it, and factors of the results."""
        rows = places * items * self.vector * self.itemsize * team * teams
        room = teams * (self.length + 4)
        own = (self.sums + self.factors) * self.length + (self.left * self.groups if self.apart else 0)
        return rows + 4 * (room + own + (self.left + self.made) * self.groups)


@once
def segment_of(record: ResidentSumsRecord, call: Call) -> SumsSegment:
    """A call, as far as its schedule depends on it."""
    whole, segments = call.size(record.inner), call.size(record.segment)
    length = whole if record.segment else band_of(whole, min(call.itemsize(name) for name in record.held))
    wide = [o for o in (*call.read(record.reads), *call.present(record.writes)) if o.inner == record.inner]
    return SumsSegment(
        rows=call.size(record.kept) // segments,
        length=length,
        bands=0 if record.segment else whole // length,
        vector=call.vector_width(wide, length),
        itemsizes=tuple(call.itemsize(name) for name in record.held),
        folded=call.size(record.folded),
        apart=bool(record.folded),
        sums=record.sums,
        left=record.left,
        made=record.made,
        factors=record.factors,
        beside=record.beside,
    )


def find(segment: SumsSegment, device: Machine) -> Residence | None:
    """How a segment should be kept; None where it finds no place."""
    return next(iter(found(segment, device)), None)


def found(segment: SumsSegment, device: Machine) -> list[Residence]:
    """Every way to keep a segment that fits a device, the usual one first: in so many blocks as there should
    be, or near to that (52 of 320 threads take 87.7 us where 64 of 512 take 82.2); where all blocks do not
    hold it, ways that read some of it twice."""
    if segment.bands:
        return kept_in_bands(segment, BAND_WAYS, LONG_BAND_WAYS, device)
    usual = members_of(segment, residence.MEMBERS)
    whole = sorted(kept_whole(segment, WAYS, device), key=lambda r: round(abs(log2(r.members / usual))))
    few = sorted(whole, key=lambda r: r.blocks == 1 or r.members > 2 * usual)
    return few or kept_in_part(segment, LONG_WAYS, device)
