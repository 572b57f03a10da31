"""How the segments of a resident kernel are dealt out to blocks.

A segment has as many blocks as there should be; where these do not hold it, more, which read some rows twice.
The only segment of a call is dealt out in bands of neighbouring columns, each with blocks of its own.

Everything depends on lengths, element types and strides alone, not on the number of segments or of
multiprocessors: the bits of results do not either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, log2

from normgen.families.resident.launch.segments import MOST_BAND, Segment
from normgen.launching.facts import STATIC_SHARED, in_whole_warps
from normgen.launching.knobs import knob
from normgen.launching.machine import QUARTERS, WARP, Machine

MEMBERS = 16  # blocks of a segment, where it has so many slices of the least size
MOST_MEMBERS = 128
LEAST_SLICE, BANDED_SLICE = 65536, 16384  # bytes that are worth a block: of a segment, of a band
MOST_DEPTH = 128  # rows of one thread, about whose first one it sums
TEAM_THREADS = 1024  # the most that share a row
# Rows of one thread, and bytes of each operand's, in registers and in shared memory.
DEPTH, DEPTH_BYTES = 32, 512
SHARE = 2 / 3  # of what a device holds at once, that one segment may take
BANDED_BLOCKS = 128  # of all bands, which are in place at once
# Of a block's rows that it may read twice, or else a band has more blocks; and where bands come after bands.
AGAIN, MOST_AGAIN = 1 / 3, 1 / 2
_MORE_REGISTERS = 20  # that a hungry compiler takes beside
_MASKED, _ROLLED = 16, 16  # bytes of them, where the last slice is shorter; where rows go by in a loop


@dataclass(frozen=True, slots=True)
class Residence:
    """One way to run a kernel."""

    vector: int  # elements
    team: int  # threads that have a row
    items: int  # vectors of each of them
    teams: int  # rows of a block side by side
    depth: int  # rows of each thread group, which it keeps
    places: int = knob(fine=True)  # of them, in shared memory
    again: int = knob()  # of them, read twice instead
    members: int = knob()  # blocks of a segment
    blocks: int = knob(fine=True)  # that find place on a multiprocessor
    shared: int = knob(fine=True)  # bytes of a block's shared memory

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams

    @property
    def rows(self) -> int:
        """Those that the blocks of a segment have place for."""
        return self.members * self.teams * self.depth


def found(segment: Segment, device: Machine) -> list[Residence]:
    """Every way to keep a segment that fits a device, the usual one first: in so many blocks as there should
    be, or the nearest to that, where two of them share a multiprocessor if that takes no more than twice as
    many; where all blocks do not hold it, ways that read some of it twice.
    """
    if segment.bands:
        return _in_bands(segment, device)
    usual = members_of(segment, MEMBERS)

    def order(r: Residence) -> tuple[bool, float]:
        apart = abs(log2(r.members / usual))
        return r.blocks == 1 or r.members > 2 * usual, round(apart) if segment.rules.nearest else apart

    every = product(segment.rules.ways, (MEMBERS, MEMBERS // 2, 2 * MEMBERS, 4 * MEMBERS), (0, 4))
    whole = [_dealt_out(segment, *way, members, fewer, device) for way, members, fewer in every]
    twice = product((MOST_MEMBERS, MOST_MEMBERS // 2), segment.rules.long_ways)
    return sorted(filter(None, whole), key=order) or [
        r for members, threads in twice if (r := _read_twice(segment, threads, members, device))
    ]


def _in_bands(segment: Segment, device: Machine) -> list[Residence]:
    """The ways to keep a band of the only segment, the usual one first: in as few blocks as read some of it
    twice, from so many on that all bands are in place at once."""
    ways: list[Residence] = []
    if segment.length > MOST_BAND:
        return ways
    members = min(max(2, BANDED_BLOCKS // segment.bands), MOST_MEMBERS)
    while members <= MOST_MEMBERS:
        whole = (_dealt_out(segment, *way, members, 0, device) for way in segment.rules.band_ways)
        twice = (_read_twice(segment, each, members, device) for each in segment.rules.long_band_ways)
        most = 1 if members * segment.bands <= BANDED_BLOCKS else MOST_AGAIN
        ways += [r for r in (*whole, *twice) if r and r.members <= members and r.again <= most * r.depth]
        members *= 2
    return sorted(ways, key=lambda r: r.again > AGAIN * r.depth)


def members_of(segment: Segment, most: int) -> int:
    """How many blocks a segment should have."""
    size = segment.rows * segment.length * segment.itemsize
    return max(1, min(most, size // (BANDED_SLICE if segment.bands else LEAST_SLICE)))


def _dealt_out(
    segment: Segment, threads: int, blocks: int, members: int, fewer: int, device: Machine
) -> Residence | None:
    """A segment in so many blocks, or as many as hold it. `fewer`: vectors of a thread that lie in shared
    memory although there are registers for them."""
    items, team, teams = _across(segment, threads)
    each, members = segment.vector_bytes * items, members_of(segment, members)
    most = max(1, min(DEPTH, len(segment.itemsizes) * DEPTH_BYTES // each))
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
    if blocks > device.blocks(shared + STATIC_SHARED):
        return None
    if members > (1 if segment.bands else SHARE) * blocks * _multiprocessors(device):
        return None
    return Residence(segment.vector, team, items, teams, depth, places, 0, members, blocks, shared)


def _read_twice(segment: Segment, threads: int, members: int, device: Machine) -> Residence | None:
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


def _across(segment: Segment, threads: int) -> tuple[int, int, int]:
    """Vectors of a thread in a row, threads that have a row, and rows side by side of a block of whole warps.
    As few threads are idle as can be."""
    vectors = segment.length // segment.vector
    items = -(-vectors // min(threads, TEAM_THREADS))
    lanes = -(-vectors // items)
    for step in (1, 2, 4, 8, 16, 32):
        team = -(-lanes // step) * step
        if teams := in_whole_warps(team, threads):
            return items, team, teams
    return items, -(-lanes // WARP) * WARP, 1


def _multiprocessors(device: Machine) -> float:
    """On which blocks may wait for one another. The host's never do: the first one helps all others."""
    return inf if device.host else device.multiprocessors


def _registers(threads: int, device: Machine) -> int:
    """That a thread may use, where so many share a multiprocessor."""
    warps = -(-threads // (WARP * QUARTERS)) * QUARTERS
    found = min(255, device.registers_per_multiprocessor // (WARP * warps) // 8 * 8)
    return found - (_MORE_REGISTERS if device.hungry else 0)
