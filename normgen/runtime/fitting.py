"""Which schedule a kernel of the rows family takes: the first candidate whose registers, shared memory and
blocks fit the device."""

from __future__ import annotations

from dataclasses import replace

from normgen.runtime.candidates import batches, clusters, one_shot, split, stream, with_columns
from normgen.runtime.launches import Device
from normgen.runtime.schedule import RESERVED_SHARED, STATIC_SHARED, Rejected, Schedule, Shape

REGISTERS_PER_THREAD = 255
MAX_BLOCKS = 16
FEW_BYTES = 16  # of a row in a thread: then more blocks, or their exchanges leave the memory idle
CLUSTER_RING = 98304  # bytes of a multiprocessor's ring where blocks are in clusters
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster


def choose(shape: Shape, device: Device) -> tuple[Schedule, tuple[Rejected, ...]]:
    """The first candidate that fits, in order of preference, and the reasons against those before it."""
    rejected: list[Rejected] = []
    if shape.shared_rows:
        return split(shape, device), ()
    if shape.splits:
        return next(iter(batches(shape, device)), split(shape, device)), ()
    candidates = (
        with_columns(shape, device) if shape.columns else [*one_shot(shape), *clusters(shape, device)]
    )
    for candidate in candidates:
        outcome = _fit(candidate, shape, device)
        if isinstance(outcome, Schedule):
            return outcome, tuple(rejected)
        rejected.append(Rejected(_describe(candidate), outcome))
    return stream(shape, device), tuple(rejected)


def _fit(s: Schedule, shape: Shape, device: Device) -> Schedule | str:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well."""
    if s.threads > 1024:
        return f"needs {s.threads} threads a block"
    held = s.items * s.vector * shape.walked
    if s.form == "registers" and held > HELD_BYTES:
        return f"{held} bytes of the row a thread are more than {HELD_BYTES}"
    registers = _registers(s, shape)
    limit = min(REGISTERS_PER_THREAD, device.registers_per_multiprocessor // s.threads // 8 * 8)
    if registers > limit:
        return f"needs about {registers} registers a thread, {limit} are there"
    # registers are handed out to the four quarters of a multiprocessor alike
    even = -(-s.threads // 128) * 128
    blocks = min(
        device.registers_per_multiprocessor // (even * registers),
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
    few = s.items * s.vector * shape.walked <= FEW_BYTES
    blocks = max(1, min(blocks, 4 if s.threads < 256 or (few and not shape.wide_columns) else 2))
    if s.cluster == 1:
        stages = max(3 if blocks == 1 else 2, min(8, -(-65536 // max(1, blocks * stage))))
    else:
        stages = max(3, min(8, CLUSTER_RING // max(1, blocks * stage)))
    room = device.shared_per_block - STATIC_SHARED
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
        masked = 0 if s.items * s.team * s.vector == shape.length else 24
        functions = 8 if shape.functions or shape.quantises else 0
        unpacking = 0 if shape.whole else 0.3 * walked
        row = max(walked + unpacking, elements * shape.held)
        parts = s.items * shape.parts
        return _round8(24 + row + parts + (0 if s.late else 1.05 * shared) + masked + functions)
    packed = walked + shared - whole
    functions = 8 if shape.functions else 0
    if s.reload:
        kept = 0 if s.late else elements * shape.shared / 4
        return _round8(44 + functions + 1.05 * (columns + kept))
    return _round8(30 + 1.6 * (columns + packed) + 1.1 * whole + 2 * s.items * shape.parts)


def _describe(s: Schedule) -> str:
    reload = ", row re-read" if s.reload else ""
    cluster = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    return f"{s.form}, {s.team} threads a row{cluster}, {s.items * s.vector} elements a thread{reload}"


def _round8(value: float) -> int:
    return -(-int(value) // 8) * 8
