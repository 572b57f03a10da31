"""How the segments of a resident kernel are dealt out to blocks, whatever these add up and apply: in as many
blocks as there should be, or where blocks do not hold a segment, with rows that are read twice. The only
segment of a call is dealt out in bands of neighbouring columns, each with blocks of its own.

Everything depends on lengths, element types and strides alone, not on the number of segments or of
multiprocessors: the bits of results do not either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import gcd, inf
from typing import Protocol

from normgen.families.rows.launch.schedule import STATIC_SHARED
from normgen.launching.call import WORD, Call
from normgen.launching.knobs import knob
from normgen.launching.machine import QUARTERS, RESERVED_SHARED, SECTOR, Machine
from normgen.package.kernels import ResidentRecord, ResidentSumsRecord
from normgen.package.operands import OperandRecord

MEMBERS = 16  # blocks of a segment, where it has so many slices of the least size
MOST_MEMBERS = 128
LEAST_SLICE, BANDED_SLICE = 65536, 16384  # bytes that are worth a block: of a segment, of a band
MOST_DEPTH = 128  # rows of one thread, about whose first one it sums
TEAM_THREADS = 1024  # the most that share a row
# Rows of one thread, and bytes of each operand's, in registers and in shared memory.
DEPTH, DEPTH_BYTES = 32, 512
SHARE = 2 / 3  # of what a device holds at once, that one segment may take
# Bytes of a row that a block has of each operand, where all rows are one segment, and the most columns: of
# each blocks hand one another moments, or sums.
BAND_BYTES, MOST_BAND = 128, 256
BANDED_BLOCKS = 128  # of all bands, which are in place at once
# Of a block's rows that it may read twice, or else a band has more blocks; and where bands come after bands.
AGAIN, MOST_AGAIN = 1 / 3, 1 / 2
_MORE_REGISTERS = 20  # that a hungry compiler takes beside
_MASKED, _ROLLED = 16, 16  # bytes of them, where the last slice is shorter; where rows go by in a loop


@dataclass(frozen=True, slots=True)
class Residence:
    """One way to run a kernel: elements of a vector, threads that have a row and vectors of each, rows of a
    block side by side. Each team has `depth` rows; `again` of them are read twice, the others are kept,
    `places` of them in shared memory. `members` blocks have a segment. `blocks`: those that find place on a
    multiprocessor; `shared`: bytes of a block's shared memory.
    """

    vector: int
    team: int
    items: int
    teams: int
    depth: int
    places: int = knob(fine=True)
    again: int = knob()
    members: int = knob()
    blocks: int = knob(fine=True)
    shared: int = knob(fine=True)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams


class Kept(Protocol):
    """What a schedule asks of a segment: its rows, elements of a row, in how many bands, none if it is not
    the only one, the widest vector, how many operands are held, and bytes of an element of all of them. Of a
    band the elements are its own."""

    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def bands(self) -> int: ...
    @property
    def vector(self) -> int: ...
    @property
    def operands(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def vector_bytes(self) -> int:
        """Of a thread's registers, for a vector of each operand."""

    def room(self, items: int, registers: int) -> int:
        """Bytes of rows that a thread's registers hold beside all else, with so many vectors of a row."""

    def shared(self, team: int, teams: int, items: int, places: int) -> int:
        """Bytes of shared memory, with so many rows of a team in it."""


def kept_whole(segment: Kept, ways: Iterable[tuple[int, int]], device: Machine) -> list[Residence]:
    """The ways in which blocks keep a segment: so many threads of a block, and blocks of a multiprocessor."""
    every = product(ways, (MEMBERS, MEMBERS // 2, 2 * MEMBERS, 4 * MEMBERS), (0, 4))
    made = [_dealt_out(segment, *way, members, fewer, device) for way, members, fewer in every]
    return [r for r in made if r]


def kept_in_part(segment: Kept, threads: Iterable[int], device: Machine) -> list[Residence]:
    """Those in which they read some of it twice, in blocks of so many threads."""
    twice = product((MOST_MEMBERS, MOST_MEMBERS // 2), threads)
    return [r for members, each in twice if (r := _read_twice(segment, each, members, device))]


def kept_in_bands(
    segment: Kept, ways: Iterable[tuple[int, int]], threads: Iterable[int], device: Machine
) -> list[Residence]:
    """Those in which they keep a band of the only segment, the usual one first: in as few blocks as read some
    of it twice, from so many on that all bands are in place at once."""
    found: list[Residence] = []
    if segment.length > MOST_BAND:
        return found
    members = min(max(2, BANDED_BLOCKS // segment.bands), MOST_MEMBERS)
    while members <= MOST_MEMBERS:
        whole = (_dealt_out(segment, *way, members, 0, device) for way in ways)
        twice = (_read_twice(segment, each, members, device) for each in threads)
        most = 1 if members * segment.bands <= BANDED_BLOCKS else MOST_AGAIN
        found += [r for r in (*whole, *twice) if r and r.members <= members and r.again <= most * r.depth]
        members *= 2
    return sorted(found, key=lambda r: r.again > AGAIN * r.depth)


def band_of(length: int, itemsize: int) -> int:
    """Columns of a band: as few as fill its bytes, without a sector of a neighbour's if that can be, or else
    of whole vectors; all of a row that has no such parts."""
    least = -(-BAND_BYTES // itemsize)
    parts = [n for n in range(least, min(length, MOST_BAND) + 1) if length % n == 0]
    aligned = ([n for n in parts if n * itemsize % size == 0] for size in (SECTOR, WORD, itemsize))
    return next((found[0] for found in aligned if found), length)


def members_of(segment: Kept, most: int) -> int:
    """How many blocks a segment should have."""
    size = segment.rows * segment.length * segment.itemsize
    return max(1, min(most, size // (BANDED_SLICE if segment.bands else LEAST_SLICE)))


def _dealt_out(
    segment: Kept, threads: int, blocks: int, members: int, fewer: int, device: Machine
) -> Residence | None:
    """A segment in so many blocks, or as many as hold it. `fewer`: vectors of a thread that lie in shared
    memory although there are registers for them."""
    items, team, teams = _across(segment, threads)
    each, members = segment.vector_bytes * items, members_of(segment, members)
    most = max(1, min(DEPTH, segment.operands * DEPTH_BYTES // each))
    depth = min(most, -(-segment.rows // (members * teams)))
    members = -(-segment.rows // (depth * teams))
    if team * teams > TEAM_THREADS or not 1 < members <= MOST_MEMBERS:
        return None
    room = segment.room(items, _registers(blocks * team * teams, device))
    room -= (segment.rows % (depth * teams) > 0) * _MASKED
    places = max(0, depth - max(1, room // each - fewer))
    shared = segment.shared(team, teams, items, places)
    if room < each or shared > device.shared_per_block - STATIC_SHARED:
        return None
    if blocks > device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED):
        return None
    if members > (1 if segment.bands else SHARE) * blocks * _multiprocessors(device):
        return None
    return Residence(segment.vector, team, items, teams, depth, places, 0, members, blocks, shared)


def _read_twice(segment: Kept, threads: int, members: int, device: Machine) -> Residence | None:
    """A segment in blocks that have a multiprocessor each and keep what they can."""
    items, team, teams = _across(segment, threads)
    depth = -(-segment.rows // (members * teams))
    members = -(-segment.rows // (depth * teams))
    room = segment.room(items, _registers(team * teams, device)) - _MASKED - _ROLLED
    held = min(DEPTH, room // (segment.vector_bytes * items))
    free = device.shared_per_block - STATIC_SHARED - segment.shared(team, teams, items, 0)
    places = free // (segment.vector_bytes * items * team * teams)
    again = depth - held - places
    if team * teams > TEAM_THREADS or min(held, places, again) < 1 or depth > MOST_DEPTH:
        return None
    if members > _multiprocessors(device):
        return None
    shared = segment.shared(team, teams, items, places)
    return Residence(segment.vector, team, items, teams, depth, places, again, members, 1, shared)


def _across(segment: Kept, threads: int) -> tuple[int, int, int]:
    """Vectors of a thread in a row, threads that have a row, and rows of a block side by side."""
    vectors = segment.length // segment.vector
    items = -(-vectors // min(threads, TEAM_THREADS))
    return items, *_teams(-(-vectors // items), threads)


def _multiprocessors(device: Machine) -> float:
    """On which blocks may wait for one another. The host's never do: the first one helps all others."""
    return inf if device.host else device.multiprocessors


def _registers(threads: int, device: Machine) -> int:
    """That a thread may use, where so many share a multiprocessor."""
    warps = -(-threads // (32 * QUARTERS)) * QUARTERS
    found = min(255, device.registers_per_multiprocessor // (32 * warps) // 8 * 8)
    return found - (_MORE_REGISTERS if device.hungry else 0)


def _teams(lanes: int, threads: int) -> tuple[int, int]:
    """Threads that have a row, and rows side by side, of a block of whole warps. As few threads are idle as
    can be."""
    for step in (1, 2, 4, 8, 16, 32):
        team = -(-lanes // step) * step
        quantum = 32 // gcd(team, 32)
        if team * quantum <= threads:
            return team, threads // (team * quantum) * quantum
    return -(-lanes // 32) * 32, 1


def is_contiguous(record: ResidentRecord | ResidentSumsRecord, call: Call) -> bool:
    """Whether rows can be read and written in vectors at all."""
    operands: list[OperandRecord] = [*call.read(record.reads), *call.present(record.writes)]
    return all(call.contiguous(o) for o in operands if o.inner == record.inner)
