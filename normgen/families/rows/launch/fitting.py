"""Which schedule a kernel of the rows family takes: of the candidates whose registers, shared memory and
blocks fit the device, the first that keeps its memory busy, or the one that comes nearest to that."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from normgen.families.rows.launch.any_length import batches, split, stream
from normgen.families.rows.launch.candidates import tiers
from normgen.families.rows.launch.clusters import (
    CLUSTER_BYTES,
    HELD_BYTES,
    SKEWED_LEAST,
    SKEWED_RING,
    SKEWED_STAGES,
)
from normgen.families.rows.launch.registers import held_bytes, registers_of
from normgen.families.rows.launch.schedule import STATIC_SHARED, Rejected, Schedule, Shape, handed, is_narrow
from normgen.families.rows.launch.spread import SPREAD_MEMBERS, SPREAD_ROWS
from normgen.launching.call import WORD
from normgen.launching.machine import QUARTERS, RESERVED_SHARED, Machine

REGISTERS_PER_THREAD = 255
# What a multiprocessor must have in hand, measured on an H200 at 7168 columns of bf16. One-shot: bytes of
# rows (moments 0.85 of a copy with 43 KB, 0.97 with 57; one exchange 0.92 and 0.98), or a full house of
# threads. Rings: bytes of rows, fewer where one block computes while another waits, and as many warps in each
# quarter (one sum over rows 0.86 of a triad with one block of 448 threads, 0.93 with two of 224).
ENOUGH_BYTES = 52_000
FULL_HOUSE = 1500  # by registers as they are estimated, which is too many for short rows
RING_BYTES = 32_000
RING_BYTES_IN_PARTS = 28_000
MAX_BLOCKS = 16
FEW_BYTES = 16  # of a row in a thread: then more blocks, or their exchanges leave the memory idle
# Of a cluster without sums over rows: 4 of them in a ring took 17.8 us where one-shot takes 15.0, 17 of them
# 82 (skewed) and 72.7, 34 of them 155 and 176.
FEW_ROWS = 20
# What two exchanges of three values of 16 x 16 warps take, in messages of four, with the ring's arrivals;
# and what four take.
CLUSTER_STATIC, SKEWED_STATIC = 8448, 16640
# Of a multiprocessor, where rows are of bytes: each has few of them on their way, and much to do with them.
# First pass over grouped fp8, edited by hand: 4096 columns in 10 blocks of 64 threads 27.3 us, 12 29.2; 8192
# in 5 of 128 48.1, 6 50.8.
NARROW_THREADS = 640
CLUSTER_RING = 98304  # bytes of a multiprocessor's ring where blocks are in clusters
STATIC_MOST = 49152  # bytes of shared memory that a kernel may declare
SHIFTED_HELD_BYTES = 384  # of shifted rows, of which a copy has narrow vectors: 0.67 of a copy against 0.95


class Ways(NamedTuple):
    """How a kernel runs, whatever the number of its rows: `many`, or `few` where a segment has fewer than
    `below`. `rejected`: the reasons against the others that were looked at."""

    many: Schedule
    few: Schedule
    below: int = 0
    rejected: tuple[Rejected, ...] = ()

    def of(self, rows: int) -> Schedule:
        """The one for so many rows."""
        return self.few if rows < self.below else self.many


def choose(shape: Shape, device: Machine) -> tuple[Schedule, tuple[Rejected, ...]]:
    """The candidate to run, and the reasons against the others that were looked at."""
    found = ways(shape, device)
    return found.of(shape.rows), found.rejected


def ways(shape: Shape, device: Machine) -> Ways:
    """The candidates to run, of which nothing depends on how many rows the shape has."""
    if shape.shared_rows:
        return _always(split(shape, device))
    if shape.splits and not shape.shifted:
        for many in batches(shape, device):
            if shape.shares:
                (few,) = batches(shape, device, few=True)
                return Ways(many, few, many.teams * many.batch)
        if shape.shares or not batches(shape, device):
            return _always(split(shape, device))
    found, rejected = find(shape, device)
    if found is None:
        return _always((split if shape.splits else stream)(shape, device), rejected)
    return _at_once(found, shape, device)._replace(rejected=rejected)


def _always(schedule: Schedule, rejected: tuple[Rejected, ...] = ()) -> Ways:
    return Ways(schedule, schedule, 0, rejected)


def find(shape: Shape, device: Machine) -> tuple[Schedule | None, tuple[Rejected, ...]]:
    """The one of the candidates in tiers, if one fits, and the reasons against others. (For many rows.)"""
    rejected: list[Rejected] = []
    for tier in tiers(shape, device):
        found: list[Schedule] = []
        for candidate in tier:
            outcome = fit(candidate, shape, device)
            if isinstance(outcome, str):
                rejected.append(Rejected(describe(candidate), outcome))
                continue
            found.append(outcome)
            if _busy(outcome, shape) >= 1:
                break
        if found:
            best = max(found, key=lambda s: _busy(s, shape))
            rejected += [Rejected(describe(s), _too_little(s, shape)) for s in found if s is not best]
            return best, tuple(rejected)
    return None, tuple(rejected)


def _at_once(s: Schedule, shape: Shape, device: Machine) -> Ways:
    """The same teams without a ring, where they have few rows each: a result's bits are the same."""
    kept = s.form == "ring" and s.cluster > 1 and not s.reload
    if not kept or shape.columns:
        return _always(s)
    outcome = fit(replace(s, form="registers", stages=0, shared=0), shape, device)
    if isinstance(outcome, str):
        return _always(s)
    # (the reason is part of the text, which rows of any number share)
    few = replace(outcome, few=True, paired=True, reason=f"{outcome.reason}; there are few of them")
    return Ways(replace(s, paired=True), few, FEW_ROWS * s.together(device.multiprocessors))


def fit(s: Schedule, shape: Shape, device: Machine) -> Schedule | str:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well.

    Of a ring, stages and blocks that the candidate has already are kept, as far as they fit; one that is to
    have a single stage shares the multiprocessor with as many others as there is room for."""
    if s.threads > 1024:
        return f"needs {s.threads} threads a block"
    if s.cluster > (most := device.max_cluster):
        return f"needs clusters of {s.cluster} blocks, and {device.arch} has {most} in one at most"
    if shape.piece and (reason := _unfit_for_pieces(s, shape)):
        return reason
    held = held_bytes(s, shape)
    limit = SHIFTED_HELD_BYTES if s.shifted else HELD_BYTES if s.cluster == s.members == 1 else CLUSTER_BYTES
    if s.form in ("registers", "spread") and held > limit:
        return f"{held} bytes of the row a thread are more than {limit}"
    registers = registers_of(s, shape, device)
    limit = min(REGISTERS_PER_THREAD, device.registers_per_multiprocessor // s.threads // 8 * 8)
    if registers > limit:
        return f"needs about {registers} registers a thread, {limit} are there"
    warps = QUARTERS * (device.registers_per_multiprocessor // QUARTERS // (32 * registers))
    blocks = min(32 * warps // s.threads, device.threads_per_multiprocessor // s.threads, MAX_BLOCKS)
    if s.form == "registers":
        # 0.72 of a copy at 16384 columns, where two reach 0.98
        if blocks < 2 and s.cluster == 1 and 256 < s.threads < 1024:
            return (
                f"one block of {s.threads} threads a multiprocessor leaves nothing in flight while it reduces"
            )
        where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
        reason = f"the row fits the registers of {s.team} threads{where}"
        return replace(s, blocks=blocks, registers=registers, reason=reason)
    if s.form == "slab":
        return _slab(replace(s, blocks=blocks, registers=registers), shape, device)
    if s.form == "spread":
        return _spread(replace(s, blocks=s.blocks or blocks, registers=registers), shape, device)
    stage = s.items * s.vector * s.threads * shape.walked
    if s.form == "skewed":
        return _skewed(s, stage, registers, device)
    if s.places:
        return _rolling(s, shape, registers, device)
    gather = s.threads * 4 * max(1, handed(s, shape))
    few = s.items * s.vector * shape.walked <= FEW_BYTES
    most = 4 if s.threads < 256 or (few and not shape.wide_columns) else 2
    if is_narrow(shape) and s.cluster == 1:
        most = max(most, -(-NARROW_THREADS // s.threads))
    most = MAX_BLOCKS if s.stages == 1 else most
    blocks = max(1, min(blocks, s.blocks or most))
    if s.stages:
        stages = s.stages
    elif s.cluster == 1:
        stages = max(3 if blocks == 1 and shape.columns else 2, min(8, -(-65536 // max(1, blocks * stage))))
    else:
        stages = max(3, min(8, CLUSTER_RING // max(1, blocks * stage)))
    static = CLUSTER_STATIC if s.cluster > 1 else STATIC_SHARED
    room = device.shared_per_block - static
    stage += s.spare * WORD * shape.streams
    stages = min(stages, max(1, room // max(1, stage)))
    # (a row that is kept in registers leaves its place in the ring to the next one)
    if stages < 2 and s.stages != 1 and stage and (s.cluster == 1 if shape.columns else s.reload):
        return f"two rows of {stage} bytes do not fit {room} bytes of shared memory"
    shared = max(stages * stage, gather)
    if shared > room:
        return f"needs {shared} bytes of shared memory, {room} are there"
    blocks = max(1, min(blocks, device.shared_per_multiprocessor // (shared + static + RESERVED_SHARED)))
    kept = "re-read from the ring" if s.reload else "kept in registers"
    kept += ", its results by words of memory" if s.form == "slanted" else ""
    where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    first = f"column sums fit the registers of {s.team} threads{where}, the" if shape.columns else "the"
    reason = f"{first} row is {kept}"
    return replace(s, blocks=blocks, stages=stages, registers=registers, shared=shared, reason=reason)


def _spread(s: Schedule, shape: Shape, device: Machine) -> Schedule | str:
    """As many blocks as hold the row, if those of several rows find place together."""
    shared = s.places * s.vector * s.threads * shape.walked
    room = device.shared_per_block - STATIC_SHARED
    if shared > room:
        return f"needs {shared} bytes of shared memory, {room} are there"
    by_shared = device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED)
    blocks = min(s.blocks, by_shared)
    together = device.multiprocessors * blocks
    if not 1 < s.members <= SPREAD_MEMBERS:
        return f"a row takes {s.members} blocks, and 2 to {SPREAD_MEMBERS} may share it"
    if together < SPREAD_ROWS * s.members:
        return f"a row takes {s.members} blocks, of which {together} run together"
    reason = f"the row fits {s.members} blocks, which meet in memory"
    return replace(s, blocks=blocks, shared=shared, reason=reason)


def _slab(s: Schedule, shape: Shape, device: Machine) -> Schedule | str:
    """As many blocks as find place with the rows that each moves together."""
    slab = s.teams * shape.length * shape.narrowest
    shared, room = slab * shape.slab, device.shared_per_block - STATIC_SHARED
    assert slab % WORD == 0, "what a block moves is whole words"
    if shared > room:
        return f"needs {shared} bytes of shared memory, {room} are there"
    by_shared = device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED)
    reason = f"{s.teams} rows lie side by side and fit the registers of {s.team} threads each"
    return replace(s, blocks=min(s.blocks, by_shared), shared=shared, reason=reason)


def _skewed(s: Schedule, stage: int, registers: int, device: Machine) -> Schedule | str:
    """As long a ring as finds place beside what is exchanged: a row leaves it two rows later, so that one of
    four has one row on its way."""
    room = min(SKEWED_RING, device.shared_per_block - SKEWED_STATIC)
    stages = min(s.stages or SKEWED_STAGES, room // stage)
    if stages < (SKEWED_LEAST if s.stages else SKEWED_STAGES - 1):
        return f"{stages} rows of {stage} bytes in {room} bytes of shared memory are too few"
    shared = stages * stage
    by_shared = device.shared_per_multiprocessor // (shared + SKEWED_STATIC + RESERVED_SHARED)
    by_registers = device.registers_per_multiprocessor // (s.threads * registers)
    blocks = max(1, min(s.blocks or 1, by_shared, by_registers))
    reason = f"a row of {s.cluster} blocks is exchanged while the one before it is finished"
    return replace(s, blocks=blocks, stages=stages, registers=registers, shared=shared, reason=reason)


def _rolling(s: Schedule, shape: Shape, registers: int, device: Machine) -> Schedule | str:
    """As many vectors of each thread as find place, or as the candidate has: a row that is read
    again in each pass, with the next one on its way where there is no room for both."""
    each = s.vector * s.threads * shape.walked
    places = min(s.places, (device.shared_per_block - CLUSTER_STATIC) // each)
    if s.items * s.team * s.vector != shape.length:
        return f"{s.team} threads have {s.items} vectors each, of which some are beyond the row"
    if not shape.rolls:
        return "rows are finished one after the other"
    if places <= s.items:
        return f"{places} places of {each} bytes are too few for a row and more"
    reason = f"the shared memory of {s.cluster} blocks holds more than one row"
    return replace(s, blocks=1, places=places, registers=registers, shared=places * each, reason=reason)


def _unfit_for_pieces(s: Schedule, shape: Shape) -> str:
    """Why the threads of a block cannot add up pieces of rows, if they cannot."""
    if s.teams > 1 or s.threads % shape.piece:
        return f"a block of {s.threads} threads does not have whole pieces of {shape.piece} vectors of a row"
    shared = s.threads * s.vector * 4 * shape.sums + 4 * s.team  # the latter for the exchange
    return f"needs {shared} bytes of shared memory, {STATIC_MOST} are there" if shared > STATIC_MOST else ""


def _busy(s: Schedule, shape: Shape) -> float:
    """How much of what a multiprocessor must have in hand it has."""
    if s.form == "registers" and not shape.exchanges:
        return 1.0  # no thread waits for another
    if s.form == "spread":
        return 1.0
    if s.form in ("registers", "slab"):
        return max(_in_hand(s, shape) / ENOUGH_BYTES, s.blocks * s.threads / FULL_HOUSE)
    if s.blocks * s.teams > 1:
        return _in_hand(s, shape) / RING_BYTES_IN_PARTS
    warps = s.threads // 32
    return min(1.0, _in_hand(s, shape) / RING_BYTES) * warps / (-(-warps // QUARTERS) * QUARTERS)


def _in_hand(s: Schedule, shape: Shape) -> int:
    """Bytes of rows that a multiprocessor works at."""
    return s.blocks * s.teams * shape.length * shape.walked // s.cluster


def _too_little(s: Schedule, shape: Shape) -> str:
    has = f"{s.blocks} blocks of {s.threads} threads a multiprocessor"
    return f"{has} work at {_in_hand(s, shape) / 1000:.0f} KB of rows, too little to keep the memory busy"


def describe(s: Schedule) -> str:
    """A schedule in a few words."""
    reload = ", row re-read" if s.reload else ""
    reload += ", shifted vectors" if s.shifted else ""
    where = "shared memory" if s.form == "spread" else "the ring"
    reload += f", {s.places} vectors of a thread in {where}" if s.places else ""
    several = s.cluster * s.members
    cluster = f" in {several} blocks" if several > 1 else ""
    return f"{s.form}, {s.team} threads a row{cluster}, {s.items * s.vector} elements a thread{reload}"
