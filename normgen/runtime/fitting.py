"""Which schedule a kernel of the rows family takes: the first candidate whose registers, shared memory and
blocks fit the device."""

from __future__ import annotations

from dataclasses import replace

from normgen.runtime.candidates import clusters, one_shot, split, stream, with_columns
from normgen.runtime.launches import Device
from normgen.runtime.schedule import RESERVED_SHARED, STATIC_SHARED, Rejected, Schedule, Shape

REGISTERS_PER_THREAD = 255
MAX_BLOCKS = 16
SPLIT_VECTORS = 1024  # of a row that blocks share: enough for each thread of one to have several under way
CLUSTER_RING = 98304  # bytes of a multiprocessor's ring where blocks are in clusters
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster
SHIFTED_HELD_BYTES = 384  # where vectors of the copy would be narrow: 0.67 of a copy against 0.95


def choose(shape: Shape, device: Device) -> tuple[Schedule, tuple[Rejected, ...]]:
    """The first candidate that fits, in order of preference, and the reasons against those before it."""
    rejected: list[Rejected] = []
    long = shape.columns and shape.length >= SPLIT_VECTORS * shape.vector
    if shape.shared_rows or (shape.splits and long):
        return split(shape, device), ()
    for candidate in [*_shifted(shape, device), *_candidates(shape, device)]:
        outcome = _fit(candidate, shape, device)
        if isinstance(outcome, Schedule):
            return outcome, tuple(rejected)
        rejected.append(Rejected(_describe(candidate), outcome))
    if shape.splits:
        return split(shape, device), tuple(rejected)
    return stream(shape, device), tuple(rejected)


def _candidates(shape: Shape, device: Device) -> list[Schedule]:
    if shape.columns:
        return with_columns(shape, device)
    return [*one_shot(shape), *clusters(shape, device)]


def _shifted(shape: Shape, device: Device) -> list[Schedule]:
    """The candidates with vectors that are as wide as if rows began where a word of memory does."""
    if not shape.shifted:
        return []
    wide = replace(shape, vector=shape.shifted, whole_words=False)
    return [replace(candidate, shifted=True) for candidate in _candidates(wide, device)]


def _fit(s: Schedule, shape: Shape, device: Device) -> Schedule | str:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well."""
    if s.threads > 1024:
        return f"needs {s.threads} threads a block"
    held = s.items * s.vector * shape.walked
    most = SHIFTED_HELD_BYTES if s.shifted else HELD_BYTES
    if s.form == "registers" and held > most:
        return f"{held} bytes of the row a thread are more than {most}"
    registers = _registers(s, shape)
    limit = min(REGISTERS_PER_THREAD, device.registers_per_multiprocessor // s.threads // 8 * 8)
    if registers > limit:
        return f"needs about {registers} registers a thread, {limit} are there"
    # registers are handed out by warps, to the four quarters of a multiprocessor alike
    pieces = s.form == "ring" and (s.shifted or s.cluster > 1)
    even = s.threads if pieces else -(-s.threads // 128) * 128
    warps = device.registers_per_multiprocessor // (32 * registers)
    blocks = min(
        (warps // 4 * 4 if pieces else warps) * 32 // even,
        device.threads_per_multiprocessor // s.threads,
        MAX_BLOCKS,
    )
    if s.form == "registers":
        if blocks * s.threads < 1024 and s.threads > 256:
            # one block a multiprocessor: 0.72 of a copy at 16384 columns, where two reach 0.98
            return f"{blocks} blocks of {s.threads} threads a multiprocessor leave too little in flight"
        where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
        reason = f"the row fits the registers of {s.team} threads{where}"
        return replace(s, blocks=blocks, registers=registers, reason=reason)
    stage = s.items * s.vector * s.threads * shape.walked
    gather = s.threads * 4
    if s.teams > 1:
        gather = max(gather, s.items * s.vector * s.threads * shape.gathered * 4)
    blocks = max(1, min(blocks, 2 if s.threads >= 256 else 4 if s.cluster == 1 else 3))
    if s.cluster == 1:
        stages = max(3 if blocks == 1 else 2, min(8, -(-65536 // max(1, blocks * stage))))
    else:
        stages = max(3, min(8, CLUSTER_RING // max(1, blocks * stage)))
    room = device.shared_per_block - STATIC_SHARED
    spare = s.slices * 16 * shape.streams if s.shifted else 0  # the word after each slice
    stage += spare
    stages = min(stages, max(1, room // max(1, stage)))
    if stages < 2 and stage and s.cluster == 1:
        return f"two rows of {stage} bytes do not fit {room} bytes of shared memory"
    shared = max(stages * stage, gather)
    if shared > room:
        return f"needs {shared} bytes of shared memory, {room} are there"
    blocks = max(
        1, min(blocks, device.shared_per_multiprocessor // (shared + STATIC_SHARED + RESERVED_SHARED))
    )
    kept = "re-read from the ring" if s.reload else "kept in registers"
    where = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    reason = f"column sums fit the registers of {s.team} threads{where}, the row is {kept}"
    return replace(s, blocks=blocks, stages=stages, registers=registers, shared=shared, reason=reason)


def _registers(s: Schedule, shape: Shape) -> int:
    """Registers a thread: fitted to what the compiler reported for hand-written kernels of both forms."""
    elements = s.items * s.vector
    columns = elements * shape.wide_columns
    walked, shared = elements * shape.walked / 4, elements * shape.shared / 4
    whole = elements * shape.whole
    if s.form == "registers":
        masked = 0.0 if s.items * s.team * s.vector == shape.length else 24.0
        if (
            s.shifted
        ):  # the word after each vector, for which 2-byte elements have room when they are unpacked
            masked = walked + 32 if shape.whole else 24.0 if shape.streams > 1 else 0.0
        functions = 8 if shape.functions or (shape.moments and s.late) else 0
        unpacking = 0 if shape.whole else 0.3 * walked
        row = max(walked + unpacking, elements * shape.held)
        parts = s.items * shape.parts
        estimate = 24 + row + parts + (0 if s.late else 1.05 * shared) + masked + functions
        return _round8(max(estimate, 32 + elements) if s.shifted else estimate)
    packed = walked + shared - whole
    functions = 8 if shape.functions else 0
    if s.reload:
        kept = 0 if s.late else elements * shape.shared / 4
        return _round8(44 + functions + 1.05 * (columns + kept))
    return _round8(30 + 1.6 * (columns + packed) + 1.1 * whole + 2 * s.items * shape.parts)


def _describe(s: Schedule) -> str:
    reload = ", row re-read" if s.reload else ""
    reload += ", shifted vectors" if s.shifted else ""
    cluster = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    return f"{s.form}, {s.team} threads a row{cluster}, {s.items * s.vector} elements a thread{reload}"


def _round8(value: float) -> int:
    return -(-int(value) // 8) * 8
