"""How the segments of a resident kernel may be dealt out to blocks.

Where blocks do not hold a segment, they read some of its rows twice. The only segment of a call is dealt out
in bands of neighbouring columns, each with blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import NamedTuple

from normgen.families.resident.launch.segments import MOST_BAND, Segment
from normgen.launching.facts import STATIC_SHARED, VECTORS, in_whole_warps
from normgen.launching.knobs import knob
from normgen.launching.machine import QUARTERS, WARP, Machine

MOST_MEMBERS = 128  # blocks of a segment
MOST_DEPTH = 128  # rows of one thread, about whose first one it sums
MOST_STARTS = 60  # that are looked at of a kernel
TEAM_THREADS = 1024  # the most that share a row
# Rows of one thread, and bytes of each operand's, in registers and in shared memory.
DEPTH, DEPTH_BYTES = 32, 512
SHARE = 2 / 3  # of what a device holds at once, that one segment may take
_MORE_REGISTERS = 20  # that a hungry compiler takes beside
_SOME = range(1, TEAM_THREADS + 1)
# Threads of a block, blocks of a multiprocessor, blocks of a segment, and vectors of a thread that lie in
# shared memory although there are registers for them: of all ways that are offered.
_THREADS, _BLOCKS = (512, 256, 320, 640, 384, 128, 1024, 768, 192), (1, 2, 3, 4)
_MEMBERS, FEWER = (2, 4, 8, 16, 32, 64, MOST_MEMBERS), (0, 4)
_MASKED, _ROLLED = 16, 16  # bytes of them, where the last slice is shorter; where rows go by in a loop


@dataclass(frozen=True, slots=True)
class Residence:
    """One way to run a kernel."""

    vector: int = knob(values=VECTORS)  # elements
    team: int = knob(values=_SOME)  # threads that have a row
    items: int = knob(values=_SOME)  # vectors of each of them
    teams: int = knob(values=_SOME)  # rows of a block side by side
    depth: int = knob(values=range(1, MOST_DEPTH + 1))  # rows of each thread group, which it keeps
    places: int = knob(bits=False)  # of them, in shared memory
    again: int = knob(bits=False)  # of them, read twice instead
    members: int = knob(values=range(1, MOST_MEMBERS + 1))  # blocks of a segment
    blocks: int = knob(bits=False, values=range(1, 33))  # that find place on a multiprocessor
    shared: int = knob(bits=False)  # bytes of a block's shared memory

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.team * self.teams

    @property
    def rows(self) -> int:
        """Those that the blocks of a segment have place for."""
        return self.members * self.teams * self.depth


class Division(NamedTuple):
    """How a segment is divided among threads: what decides its bits."""

    items: int  # vectors of a thread in a row
    team: int  # threads that have a row
    teams: int  # rows side by side
    depth: int  # of each thread group


def every(segment: Segment, device: Machine) -> Iterator[Residence]:
    """Ways to keep a segment in blocks of any size, and any number of them."""
    if segment.bands and segment.length > MOST_BAND:
        return
    for items, team, teams in dict.fromkeys(_across(segment, threads) for threads in _THREADS):
        wanted = [-(-segment.rows // (members * teams)) for members in _MEMBERS]
        most = _most_depth(segment, items)
        for depth in dict.fromkeys((*(min(most, each) for each in wanted), *wanted)):
            yield from divided(segment, Division(items, team, teams, depth), device, FEWER[:1])


def divided(
    segment: Segment, division: Division, device: Machine, fewer: Sequence[int] | None = None
) -> Iterator[Residence]:
    """Ways to keep a segment that is divided so. `fewer`: vectors of a thread that lie in shared memory
    although there are registers for them."""
    if division.team * division.teams > TEAM_THREADS:
        return
    for blocks, each in product(_BLOCKS, FEWER if fewer is None else fewer):
        if r := _kept(segment, division, blocks, each, device):
            yield r
    if r := _read_twice(segment, division, device):
        yield r


def division_of(r: Residence) -> Division:
    """How a residence divides its segment."""
    return Division(r.items, r.team, r.teams, r.depth)


def _kept(segment: Segment, division: Division, blocks: int, fewer: int, device: Machine) -> Residence | None:
    """A segment that so many blocks of a multiprocessor keep."""
    items, team, teams, depth = division
    members = -(-segment.rows // (depth * teams))
    if depth > _most_depth(segment, items) or not 1 < members <= MOST_MEMBERS:
        return None
    held = _room(segment, items, teams, depth, _registers(blocks * team * teams, device))
    places = max(0, depth - max(1, held - fewer))
    shared = segment.shared(team, teams, items, places)
    r = Residence(segment.vector, team, items, teams, depth, places, 0, members, blocks, shared)
    return None if _no_place(segment, r, device) else r


def _most_depth(segment: Segment, items: int) -> int:
    """Rows that a thread keeps, at most."""
    return max(1, min(DEPTH, len(segment.itemsizes) * DEPTH_BYTES // (segment.vector_bytes * items)))


def _read_twice(segment: Segment, division: Division, device: Machine) -> Residence | None:
    """A segment in blocks that have a multiprocessor each and keep what they can."""
    items, team, teams, depth = division
    members = -(-segment.rows // (depth * teams))
    held = min(DEPTH, _room(segment, items, teams, depth, _registers(team * teams, device), again=True))
    free = device.shared_per_block - STATIC_SHARED - segment.shared(team, teams, items, 0)
    places = free // (segment.vector_bytes * items * team * teams)
    again = depth - held - places
    if min(held, places, again) < 1 or depth > MOST_DEPTH or not 1 < members <= MOST_MEMBERS:
        return None
    shared = segment.shared(team, teams, items, places)
    r = Residence(segment.vector, team, items, teams, depth, places, again, members, 1, shared)
    return None if _no_place(segment, r, device) else r


def unfit(segment: Segment, r: Residence, device: Machine) -> str:
    """Why a segment cannot be kept so, if it cannot: any division of its rows and of a row will do that
    leaves no block without rows and finds place."""
    vectors = segment.length // segment.vector
    if segment.bands and segment.length > MOST_BAND:
        return f"bands of {segment.length} elements are too wide"
    if r.vector != segment.vector:
        return f"vectors of {r.vector} elements, and {segment.vector} are aligned"
    if r.threads > TEAM_THREADS or r.threads % WARP:
        return f"blocks of {r.threads} threads"
    if r.team > -(-vectors // WARP) * WARP:
        return f"{r.team} threads for {vectors} vectors"
    if r.items != (items := -(-vectors // r.team)):
        return f"items is {r.items}, and {items} fits"
    members = -(-segment.rows // (r.teams * r.depth))
    if r.members != members or members < 2:
        return f"members is {r.members}, and {max(2, members)} fits"
    return _no_place(segment, r, device)


def _no_place(segment: Segment, r: Residence, device: Machine) -> str:
    """Why blocks do not find place, if they do not, or those of a segment not together."""
    registers = _registers(r.blocks * r.threads, device)
    most = min(DEPTH, _room(segment, r.items, r.teams, r.depth, registers, again=r.again > 0))
    held = r.depth - r.places - r.again
    if not 1 <= held <= most:
        return f"{held} rows of a thread group in registers, which hold {most}"
    if r.again and not (r.places and r.blocks == 1):
        return "rows are read twice although there is place for them"
    if r.shared != (needed := segment.shared(r.team, r.teams, r.items, r.places)):
        return f"shared is {r.shared}, and {needed} fits"
    if needed > device.shared_per_block - STATIC_SHARED or r.blocks > device.blocks(needed + STATIC_SHARED):
        return f"{r.blocks} blocks have no {needed} bytes of shared memory each"
    share = 1 if segment.bands or r.again else SHARE
    if r.members > share * r.blocks * _multiprocessors(device):
        return f"{r.members} blocks are not in place together"
    return ""


def _room(segment: Segment, items: int, teams: int, depth: int, registers: int, again: bool = False) -> int:
    """Rows of a thread group that so many registers per thread hold. `again`: others are read twice."""
    masked = again or segment.rows % (depth * teams) > 0
    room = segment.room(items, registers) - _MASKED * masked - _ROLLED * again
    return room // (segment.vector_bytes * items)


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
