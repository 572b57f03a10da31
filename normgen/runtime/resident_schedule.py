"""How a resident kernel runs: the blocks of a segment, and how much of it each of them holds, and where.

Measured on an H200, us beside those of three kernels in the same run, the launch that clears included: 8
samples of 320 channels of 4096 pixels of 2 bytes 19.5 (25.8), of 4 bytes 29.7 (40.8), both in 32 blocks a
sample; of 960 channels of 2 bytes 45.6 (83.1); of 64 channels of 65536 pixels 51.5 (65.4), of 4 bytes
97.7 (110.6). Samples that no blocks hold: 2 of 512 channels of 65536 pixels of 2 bytes 96.6 (109.3), 1 of 128
channels of 262144 50.6 (62.1), of 4 bytes 99.8 (109.7). So blocks are few and large, since to meet takes 5 to
8 us, in which the memory rests.

Everything depends on lengths, element types and strides alone, not on the number of segments or of
multiprocessors: the bits of results do not either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, inf, log2

from normgen.runtime.calling import WORD, Call
from normgen.runtime.kernel_records import ResidentRecord
from normgen.runtime.launches import Device
from normgen.runtime.operand_records import OperandRecord
from normgen.runtime.schedule import QUARTERS, RESERVED_SHARED, STATIC_SHARED, touched

MEMBERS = 16  # blocks of a segment, where it has so many slices of the least size
MOST_MEMBERS = 128
LEAST_SLICE = 65536  # bytes that are worth a block
# Threads of a block, and blocks of a multiprocessor, which share its registers: 96 for each of 640 threads.
# Where two blocks find place, one sums while the other meets: 64 samples of 320 channels of 1024 pixels of 4
# bytes take 57.4 us, and 74.0 in blocks of 640 threads. So 32 members that do are better than 16 that do not:
# 2 samples of 320 channels of 4096 pixels of 2 bytes 11.4 (13.9), 4 13.8 (15.2), 8 19.5 (19.9), 16 34.2
# (35.0), of 4 bytes 14.1 (18.2), 18.6 (20.6), 29.7 (30.1), 54.6 (55.3).
WAYS = ((320, 2), (640, 1), (512, 1), (320, 1), (1024, 1))
LONG_WAYS = (640, 512, 384)  # threads of a block that has a multiprocessor and reads some rows twice
MOST_DEPTH = 128  # rows of one thread, about whose first one it sums
TEAM_THREADS = 1024  # the most that share a row
DEPTH, DEPTH_BYTES = 32, 512  # rows of one thread, and bytes of them, in registers and in shared memory
SHARE = 2 / 3  # of what a device holds at once, that one segment may take
# Registers of a thread beside what it holds: numbers and addresses, and what it takes to merge columns with
# their neighbours, or to apply what was found. With fewer for 10 and 16 vectors of 16 bytes in 96 registers
# some spill.
_OWN_REGISTERS, _MERGING, _REGISTER_BYTES = 18, 16, 4
# For each column, of exponentials and their like. Some spill up to 20 bytes so; with 5 and 16 besides none
# does, and vectors of 8 columns leave two blocks a multiprocessor no registers.
_FUNCTION = 4
_MORE_REGISTERS = {"sm_100": 20}  # that its compiler takes beside
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
    places: int
    again: int
    members: int
    blocks: int
    shared: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams


@dataclass(frozen=True, slots=True)
class Segment:
    """What a schedule depends on: the rows of a segment, elements of a row, the widest vector, bytes of an
    element of what is held, how many neighbours share their moments, values made of those, and whether
    exponentials and their like are applied."""

    rows: int
    length: int
    vector: int
    itemsize: int
    folded: int
    temporaries: int
    functions: bool

    @property
    def groups(self) -> int:
        """How many moments a row has."""
        return self.length // self.folded


def segment_of(record: ResidentRecord, call: Call) -> Segment:
    """A call, as far as its schedule depends on it."""
    length, segments = call.size(record.inner), call.size(record.segment)
    wide = [o for o in (*call.read(record.reads), *call.present(record.writes)) if o.inner == record.inner]
    return Segment(
        rows=call.size(record.kept) // segments,
        length=length,
        vector=call.vector_width(wide, length),
        itemsize=call.itemsize(record.operand),
        folded=call.size(record.folded),
        temporaries=record.temporaries,
        functions=record.functions,
    )


def find(segment: Segment, device: Device) -> Residence | None:
    """How a segment should be kept; None where it finds no place."""
    return next(iter(found(segment, device)), None)


def found(segment: Segment, device: Device) -> list[Residence]:
    """Every way to keep a segment that fits a device, the usual one first: in so many blocks as there should
    be, or the nearest to that, where two of them share a multiprocessor if that takes no more than twice as
    many; where all blocks do not hold it, ways that read some of it twice.
    """
    ways = product(WAYS, (MEMBERS, MEMBERS // 2, 2 * MEMBERS, 4 * MEMBERS), (0, 4))
    made = [_dealt_out(segment, *way, members, fewer, device) for way, members, fewer in ways]
    usual = _members(segment, MEMBERS)
    whole = sorted(filter(None, made), key=lambda r: abs(log2(r.members / usual)))
    if whole:
        return sorted(whole, key=lambda r: r.blocks == 1 or r.members > 2 * usual)
    twice = product((MOST_MEMBERS, MOST_MEMBERS // 2), LONG_WAYS)
    return [r for members, threads in twice if (r := _read_twice(segment, threads, members, device))]


def _members(segment: Segment, most: int) -> int:
    """How many blocks a segment should have."""
    size = segment.rows * segment.length * segment.itemsize
    return max(1, min(most, size // LEAST_SLICE))


def _dealt_out(
    segment: Segment, threads: int, blocks: int, members: int, fewer: int, device: Device
) -> Residence | None:
    """A segment in so many blocks, or as many as hold it. `fewer`: vectors of a thread that lie in shared
    memory although there are registers for them."""
    items, team, teams, each = _across(segment, threads)
    members = _members(segment, members)
    most = max(1, min(DEPTH, DEPTH_BYTES // each))
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


def _read_twice(segment: Segment, threads: int, members: int, device: Device) -> Residence | None:
    """A segment in blocks that have a multiprocessor each and keep what they can."""
    items, team, teams, each = _across(segment, threads)
    depth = -(-segment.rows // (members * teams))
    members = -(-segment.rows // (depth * teams))
    room = _room(segment, items, registers_of(team * teams, device)) - _MASKED - _ROLLED
    held = min(DEPTH, room // each)
    beside = _shared(segment, team, teams, items, 0)
    places = (device.shared_per_block - STATIC_SHARED - beside) // (each * team * teams)
    again = depth - held - places
    if team * teams > TEAM_THREADS or min(held, places, again) < 1 or depth > MOST_DEPTH:
        return None
    if members > multiprocessors_of(device):
        return None
    shared = _shared(segment, team, teams, items, places)
    return Residence(segment.vector, team, items, teams, depth, places, again, members, 1, shared)


def multiprocessors_of(device: Device) -> float:
    """On which blocks may wait for one another. The host's never do: the first one helps all others."""
    return inf if device.arch == "host" else device.multiprocessors


def _across(segment: Segment, threads: int) -> tuple[int, int, int, int]:
    """Vectors of a thread in a row, threads that have a row, rows of a block side by side, and bytes of a row
    in one thread."""
    vectors = segment.length // segment.vector
    items = -(-vectors // min(threads, TEAM_THREADS))
    team, teams = teams_of(-(-vectors // items), threads)
    return items, team, teams, max(_REGISTER_BYTES, segment.vector * segment.itemsize) * items


def registers_of(threads: int, device: Device) -> int:
    """That a thread may use, where so many share a multiprocessor."""
    warps = -(-threads // (32 * QUARTERS)) * QUARTERS
    found = min(255, device.registers_per_multiprocessor // (32 * warps) // 8 * 8)
    return found - _MORE_REGISTERS.get(device.arch, 0)


def teams_of(lanes: int, threads: int) -> tuple[int, int]:
    """Threads that have a row, and rows side by side, of a block of whole warps. As few threads are idle as
    can be."""
    for step in (1, 2, 4, 8, 16, 32):
        team = -(-lanes // step) * step
        quantum = 32 // gcd(team, 32)
        if team * quantum <= threads:
            return team, threads // (team * quantum) * quantum
    return -(-lanes // 32) * 32, 1


def _room(segment: Segment, items: int, registers: int) -> int:
    """Bytes of rows that a thread's registers hold: beside three sums of each column, or what is applied."""
    columns = segment.vector * items
    applied = (1 + segment.temporaries + _FUNCTION * segment.functions) * columns
    return _REGISTER_BYTES * (registers - _OWN_REGISTERS - max(3 * columns + _MERGING, applied))


def _shared(segment: Segment, team: int, teams: int, items: int, places: int) -> int:
    """Bytes of shared memory: rows that are not in registers, moments that threads hand to neighbours, and a
    table of those of all groups, or of what is made of them."""
    rows = places * items * segment.vector * segment.itemsize * team * teams
    vectors = segment.length // segment.vector
    parts = touched(segment.vector, segment.folded) * teams * vectors * WORD
    return rows + parts + 4 * (max(3, segment.temporaries) * segment.groups + 4)


def is_contiguous(record: ResidentRecord, call: Call) -> bool:
    """Whether rows can be read and written in vectors at all."""
    operands: list[OperandRecord] = [*call.read(record.reads), *call.present(record.writes)]
    return all(call.contiguous(o) for o in operands if o.inner == record.inner)
