"""The segments of a call, as far as the schedule of a resident kernel depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.launching.call import WORD, Call, once
from normgen.launching.facts import touched
from normgen.launching.machine import REGISTER_BYTES, SECTOR
from normgen.package.kernels import ResidentRecord

# The least bytes of a row of a band, of each operand: blocks hand one another statistics of each element. And
# the most elements.
BAND_BYTES, MOST_BAND = 128, 256
FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Registers:
    """What a thread takes beside the values that it keeps, for one kind of statistics."""

    own: int  # numbers and addresses
    bands: int  # more of them for bands
    merging: tuple[int, int]  # of the pass that reads: per column, and in all
    function: int  # per column for exponentials and their like


MOMENTS = Registers(own=18, bands=8, merging=(3, 16), function=4)
SUMS = Registers(own=30, bands=0, merging=(0, 0), function=0)


@dataclass(frozen=True, slots=True)
class Segment:
    """What a schedule depends on, in elements unless stated. Of a band its own."""

    record: ResidentRecord
    rows: int
    length: int  # of a row
    bands: int  # 0 unless all rows are one segment
    vector: int  # the widest that all operands allow
    itemsizes: tuple[int, ...]  # bytes, of each operand that is held
    folded: int  # neighbours that have one value of what blocks leave

    @property
    def registers(self) -> Registers:
        """Those for its kind of statistics."""
        return MOMENTS if self.record.moments else SUMS

    @property
    def groups(self) -> int:
        """How many values of each kind blocks leave."""
        return self.length // self.folded

    @property
    def itemsize(self) -> int:
        """Bytes of an element of all that is held."""
        return sum(self.itemsizes)

    @property
    def vector_bytes(self) -> int:
        """Of a thread's registers, for a vector of each operand."""
        return sum(max(REGISTER_BYTES, self.vector * size) for size in self.itemsizes)

    def room(self, items: int, registers: int) -> int:
        """Bytes of rows that a thread's registers hold beside all else, with so many vectors of a row."""
        taken, columns = self.registers, self.vector * items
        each, merging = taken.merging
        values = self.record.beside + taken.function * self.record.functions
        own = taken.own + taken.bands * bool(self.bands)
        return REGISTER_BYTES * (registers - own - max(each * columns + merging, values * columns))

    def shared(self, team: int, teams: int, items: int, places: int) -> int:
        """Bytes of shared memory, with so many rows of a thread group in it.

        Beside them lie, of moments, what threads hand to neighbours, and a table of all groups' moments or
        of what is made of them. Of sums those of thread groups and of the slice, what blocks leave, own and
        all, what is made of it, and factors of the results.
        """
        record, groups = self.record, self.groups
        rows = places * items * self.vector * self.itemsize * team * teams
        if record.moments:
            parts = touched(self.vector, self.folded) * teams * (self.length // self.vector)
            return rows + parts * WORD + FLOAT * (max(3, record.made) * groups + 4)
        left = record.left * groups * (2 if record.folded else 1)
        columns = teams * (self.length + 4) + (record.sums + record.factors) * self.length
        return rows + FLOAT * (columns + left + record.made * groups)


@once
def segment_of(record: ResidentRecord, call: Call) -> Segment:
    """A call, as far as its schedule depends on it."""
    whole, segments = call.size(record.inner), call.size(record.segment)
    itemsizes = tuple(map(call.itemsize, record.held))
    length = whole if record.segment else band_of(whole, min(itemsizes))
    wide = [o for o in (*call.read(record.reads), *call.present(record.writes)) if o.inner == record.inner]
    return Segment(
        record=record,
        rows=call.size(record.kept) // segments,
        length=length,
        bands=0 if record.segment else whole // length,
        vector=call.vector_width(wide, length),
        itemsizes=itemsizes,
        folded=call.size(record.folded),
    )


def band_of(length: int, itemsize: int) -> int:
    """Columns of a band: as few as fill its bytes, without a sector of a neighbour's if that can be, or else
    of whole vectors; all of a row that has no such parts."""
    least = -(-BAND_BYTES // itemsize)
    parts = [n for n in range(least, min(length, MOST_BAND) + 1) if length % n == 0]
    aligned = ([n for n in parts if n * itemsize % size == 0] for size in (SECTOR, WORD, itemsize))
    return next((found[0] for found in aligned if found), length)
