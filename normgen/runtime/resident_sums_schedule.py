"""How a resident kernel of sums runs: the blocks of a segment, how much of it each of them holds, and where.

As for statistics and what applies them (`resident_schedule.py`), with a row of every operand that is held in
the place of one. Measured on an H200, us beside those of the best other strategy in the same run: backwards
of 8 samples of 320 channels of 4096 pixels of 2 bytes 26.0 (43.0), of 4 bytes 47.4 (62.0), 2 samples of 2
bytes 18.1 (20.5), 16 48.2 (69.4); of 64 channels of 65536 pixels, each a group, 82.2 (97.4), of 4 bytes 147.9
(172.0); samples that no blocks hold, 1 of 128 channels of 262144 81.5 (96.3), 156.1 (167.0), 2 of 512
channels of 65536 159.2 (169.0), 313.2 (319.3).

Everything depends on lengths, element types and strides alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import log2

from normgen.runtime.calling import Call
from normgen.runtime.kernel_records import ResidentSumsRecord
from normgen.runtime.launches import Device
from normgen.runtime.operand_records import OperandRecord
from normgen.runtime.resident_schedule import (
    DEPTH,
    DEPTH_BYTES,
    LEAST_SLICE,
    MOST_DEPTH,
    MOST_MEMBERS,
    SHARE,
    TEAM_THREADS,
    Residence,
    multiprocessors_of,
    registers_of,
    teams_of,
)
from normgen.runtime.schedule import RESERVED_SHARED, STATIC_SHARED

MEMBERS = 16  # blocks of a segment, where it has so many slices of the least size
# Threads of a block, and blocks of a multiprocessor.
WAYS = ((320, 2), (512, 1), (384, 1), (640, 1), (320, 1), (256, 1))
LONG_WAYS = (512, 384, 256)  # threads of a block that has a multiprocessor and reads some rows twice
# Registers of a thread beside rows that it holds, sums and factors: numbers and addresses.
_OWN_REGISTERS, _REGISTER_BYTES = 30, 4
_MASKED, _ROLLED = 16, 16  # bytes of them, where the last slice is shorter; where rows go by in a loop


@dataclass(frozen=True, slots=True)
class SumsSegment:
    """What a schedule depends on: the rows of a segment, elements of a row, the widest vector, bytes of an
    element of each operand that is held, how many neighbours are added up, whether what members leave lies
    apart from their sums, and the numbers of the record."""

    rows: int
    length: int
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


def segment_of(record: ResidentSumsRecord, call: Call) -> SumsSegment:
    """A call, as far as its schedule depends on it."""
    length, segments = call.size(record.inner), call.size(record.segment)
    wide = [o for o in (*call.read(record.reads), *call.present(record.writes)) if o.inner == record.inner]
    return SumsSegment(
        rows=call.size(record.kept) // segments,
        length=length,
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


def find(segment: SumsSegment, device: Device) -> Residence | None:
    """How a segment should be kept; None where it finds no place."""
    return next(iter(found(segment, device)), None)


def found(segment: SumsSegment, device: Device) -> list[Residence]:
    """Every way to keep a segment that fits a device, the usual one first: in so many blocks as there should
    be, or near to that (52 of 320 threads take 87.7 us where 64 of 512 take 82.2); where all blocks do not
    hold it, ways that read some of it twice."""
    ways = product(WAYS, (MEMBERS, MEMBERS // 2, 2 * MEMBERS, 4 * MEMBERS), (0, 4))
    made = [_dealt_out(segment, *way, members, fewer, device) for way, members, fewer in ways]
    usual = _members(segment, MEMBERS)
    whole = sorted(filter(None, made), key=lambda r: round(abs(log2(r.members / usual))))
    if whole:
        return sorted(whole, key=lambda r: r.blocks == 1 or r.members > 2 * usual)
    twice = product((MOST_MEMBERS, MOST_MEMBERS // 2), LONG_WAYS)
    return [r for members, threads in twice if (r := _read_twice(segment, threads, members, device))]


def _members(segment: SumsSegment, most: int) -> int:
    """How many blocks a segment should have."""
    size = segment.rows * segment.length * segment.itemsize
    return max(1, min(most, size // LEAST_SLICE))


def _dealt_out(
    segment: SumsSegment, threads: int, blocks: int, members: int, fewer: int, device: Device
) -> Residence | None:
    """A segment in so many blocks, or as many as hold it. `fewer`: rows of a thread that lie in shared memory
    although there are registers for them."""
    items, team, teams, each = _across(segment, threads)
    members = _members(segment, members)
    most = max(1, min(DEPTH, 2 * DEPTH_BYTES // each))
    depth = min(most, -(-segment.rows // (members * teams)))
    members = -(-segment.rows // (depth * teams))
    if team * teams > TEAM_THREADS or not 1 < members <= MOST_MEMBERS:
        return None
    room = _room(segment, items, registers_of(blocks * team * teams, device))
    room -= (segment.rows % (depth * teams) > 0) * _MASKED
    places = max(0, depth - max(1, room // each - fewer))
    shared = _shared(segment, team, teams, items, places)
    if room < each or shared > device.shared_per_block - STATIC_SHARED:
        return None
    if blocks > device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED):
        return None
    if members > SHARE * blocks * multiprocessors_of(device):
        return None
    return Residence(segment.vector, team, items, teams, depth, places, 0, members, blocks, shared)


def _read_twice(segment: SumsSegment, threads: int, members: int, device: Device) -> Residence | None:
    """A segment in blocks that have a multiprocessor each and keep what they can."""
    items, team, teams, each = _across(segment, threads)
    depth = -(-segment.rows // (members * teams))
    members = -(-segment.rows // (depth * teams))
    room = _room(segment, items, registers_of(team * teams, device)) - _MASKED - _ROLLED
    held = min(DEPTH, room // each)
    beside = _shared(segment, team, teams, items, 0)
    row = segment.vector * segment.itemsize * items * team * teams
    places = (device.shared_per_block - STATIC_SHARED - beside) // row
    again = depth - held - places
    if team * teams > TEAM_THREADS or min(held, places, again) < 1 or depth > MOST_DEPTH:
        return None
    if members > multiprocessors_of(device):
        return None
    shared = _shared(segment, team, teams, items, places)
    return Residence(segment.vector, team, items, teams, depth, places, again, members, 1, shared)


def _across(segment: SumsSegment, threads: int) -> tuple[int, int, int, int]:
    """Vectors of a thread in a row, threads that have a row, rows of a block side by side, and bytes of a row
    in one thread's registers."""
    vectors = segment.length // segment.vector
    items = -(-vectors // min(threads, TEAM_THREADS))
    team, teams = teams_of(-(-vectors // items), threads)
    each = sum(max(_REGISTER_BYTES, segment.vector * size) for size in segment.itemsizes) * items
    return items, team, teams, each


def _room(segment: SumsSegment, items: int, registers: int) -> int:
    """Bytes of rows that a thread's registers hold beside sums of each column, or factors of what is held."""
    columns = segment.vector * items
    return _REGISTER_BYTES * (registers - _OWN_REGISTERS - segment.beside * columns)


def _shared(segment: SumsSegment, team: int, teams: int, items: int, places: int) -> int:
    """Bytes of shared memory: rows that are not in registers, the sums of teams, those of the slice, what
    members leave, own and all, what is made of it, and factors of the results."""
    rows = places * items * segment.vector * segment.itemsize * team * teams
    room = teams * (segment.length + 4)
    own = (segment.sums + segment.factors) * segment.length + (
        segment.left * segment.groups if segment.apart else 0
    )
    return rows + 4 * (room + own + (segment.left + segment.made) * segment.groups)


def is_contiguous(record: ResidentSumsRecord, call: Call) -> bool:
    """Whether rows can be read and written in vectors at all."""
    operands: list[OperandRecord] = [*call.read(record.reads), *call.present(record.writes)]
    return all(call.contiguous(o) for o in operands if o.inner == record.inner)
