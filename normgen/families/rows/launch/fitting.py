"""How schedules of the rows family find place on a multiprocessor: their registers, blocks, stages and shared
memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.call import WORD
from normgen.launching.facts import STATIC_SHARED, touched
from normgen.launching.machine import Machine
from normgen.launching.support import Support

MAX_BLOCKS = 16  # per multiprocessor
BATCH_BLOCKS, MULTIPASS_BLOCKS = 32, 2  # where nothing is exchanged; where rows stream
# Bytes of a row in one thread's registers, beyond which the row goes to shared memory: in one block, in
# several, and of misaligned rows, whose copy would have narrow vectors.
HELD_BYTES, CLUSTER_BYTES, REALIGNED_HELD_BYTES = 128, 256, 384
FEW_BYTES = 16  # of a row in a thread: then more blocks, or their exchanges leave the memory idle
NARROW_THREADS = 640  # of a multiprocessor, where rows are of bytes: few are under way, with much to do each
CLUSTER_PIPELINE = 98304  # bytes of a multiprocessor's pipelines where blocks are in clusters
# Bytes of shared memory for two exchanges of three values of 16 x 16 warps, with the pipeline's arrivals.
CLUSTER_STATIC = 8448
COOPERATIVE_MEMBERS = 256  # blocks that share a row, at most: each reads the parts of all
COOPERATIVE_ROWS = 2  # whose blocks must find place together: one that waits leaves room for another's loads


class Room(NamedTuple):
    """What registers leave room for."""

    registers: int  # per thread
    blocks: int  # per multiprocessor, at most


def refused(why: str) -> Support:
    """That a schedule cannot run, or not well."""
    return Support(False, why)


def spare_words(s: RowSchedule, word_stores: bool) -> int:
    """Words of a stage of misaligned rows beside its vectors: the one after each slice, and where results go
    by words the one in which a row ends."""
    return s.slices + s.teams * word_stores if s.realigned else 0


def no_room(shared: int, room: int) -> Support:
    return refused(f"needs {shared} bytes of shared memory, and {room} are available")


def placed(
    s: RowSchedule,
    device: Machine,
    room: Room,
    shared: int = 0,
    static: int = STATIC_SHARED,
    blocks: int = 0,
    **pipeline: Any,
) -> RowSchedule | Support:
    """With so much shared memory in each block, and as many blocks as find place, or as are given."""
    most = device.shared_per_block - static
    if shared > most:
        return no_room(shared, most)
    blocks = min(blocks or room.blocks, device.blocks(shared + static))
    return replace(s, blocks=blocks, registers=room.registers, shared=shared, **pipeline)


# ------------------------------------------------------------------------------------------------ one-shot


def fit_registers(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    if room.blocks < 2 and s.cluster == 1 and 256 < s.threads < 1024:
        return refused(
            f"one block of {s.threads} threads per multiprocessor leaves nothing in flight while it reduces"
        )
    return placed(s, device, room)


def fit_row_tile(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    """With the rows that each block moves together."""
    row_tile = s.teams * shape.length * shape.narrowest
    if row_tile % WORD:
        return refused(f"{s.teams} rows that a block moves together are not whole words")
    return placed(s, device, room, row_tile * shape.row_tile)


def fit_cooperative(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    """As many blocks as hold the row, if those of several rows find place together."""
    found = placed(s, device, room, s.places * s.vector * s.threads * shape.walked, blocks=s.blocks)
    if isinstance(found, Support):
        return found
    together = device.multiprocessors * found.blocks
    if not 1 < s.members <= COOPERATIVE_MEMBERS:
        return refused(f"a row takes {s.members} blocks, and 2 to {COOPERATIVE_MEMBERS} may share it")
    if together < COOPERATIVE_ROWS * s.members:
        return refused(f"a row takes {s.members} blocks, of which {together} run together")
    return found


# ------------------------------------------------------------------------------------------------ any length


def fit_batch(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    """Of rows that a thread group has under way together, as many as their registers are there for."""
    blocks = _blocks(s, device, room.registers, BATCH_BLOCKS)
    return replace(s, blocks=min(s.blocks or blocks, blocks), registers=room.registers)


def fit_multipass(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    """With a copy of the row, as far as later passes read it, where it is staged."""
    if s.members > 1 and not shape.launches:
        return refused("threads keep something of their passes for the results, which does not last")
    if s.members > s.threads and shape.exchanges:
        return refused(f"a thread takes what one block leaves: {s.threads} threads, {s.members} blocks")
    if s.members > 1 and s.staged:
        return refused("a copy in shared memory does not last from launch to launch")
    if s.held and not shape.wide_columns:
        return refused("nothing is added up over rows, element by element")
    if s.realigned and s.staged:
        return refused("a copy in shared memory is of vectors that are not cut out")
    shared = s.elements * s.threads * shape.rewalked if s.staged else 0
    there = device.shared_per_block - STATIC_SHARED
    if shared > there or (s.staged and not shared):
        return no_room(shared, there) if shared else refused("no later pass reads the row again")
    by_shared = device.blocks(shared + STATIC_SHARED)
    most = MULTIPASS_BLOCKS if shape.exchanges else BATCH_BLOCKS
    blocks = max(1, min(_blocks(s, device, room.registers, most), by_shared))
    return replace(s, blocks=min(s.blocks or blocks, blocks), shared=shared)


def _blocks(s: RowSchedule, device: Machine, registers: int, most: int) -> int:
    """Blocks that a multiprocessor has place for, with so many registers per thread."""
    by_registers = device.registers_per_multiprocessor // (s.threads * registers)
    return max(1, min(by_registers, device.threads_per_multiprocessor // s.threads, most))


# ------------------------------------------------------------------------------------------------ pipelines


def fit_pipeline(
    s: RowSchedule, shape: RowShape, device: Machine, room: Room, word_stores: bool = False
) -> RowSchedule | Support:
    if s.places:
        return _fit_refilled(s, shape, device, room)
    gather = s.threads * 4 * max(1, _handed(s, shape))
    blocks = max(1, min(room.blocks, s.blocks or _usual_blocks(s, shape)))
    stage = s.elements * s.threads * shape.walked
    stages = s.stages or _usual_stages(s, shape, blocks, stage)
    static = CLUSTER_STATIC if s.cluster > 1 else STATIC_SHARED
    most = device.shared_per_block - static
    stage += spare_words(s, word_stores) * WORD * shape.streams
    stages = min(stages, max(1, most // max(1, stage)))
    # (a row that is kept in registers leaves its place in the pipeline to the next one)
    if stages < 2 and s.stages != 1 and stage and (s.cluster == 1 if shape.columns else s.reload):
        return refused(f"two rows of {stage} bytes do not fit {most} bytes of shared memory")
    # (a bulk copy waits until all threads have read the stage: in a single one nothing would be on its way)
    bulk = s.bulk and stages > 1
    return placed(s, device, room, max(stages * stage, gather), static, blocks, stages=stages, bulk=bulk)


def _handed(s: RowSchedule, shape: RowShape) -> int:
    """Values that a thread hands to the other thread groups of its block: of its columns, or of the groups of
    neighbours that its vectors may touch (folded.cuh)."""
    if shape.folded:
        return s.items * touched(s.vector, shape.folded) * shape.gathered
    return s.elements * shape.gathered if s.teams > 1 else 0


def _usual_blocks(s: RowSchedule, shape: RowShape) -> int:
    if s.stages == 1:
        return MAX_BLOCKS
    few = s.elements * shape.walked <= FEW_BYTES
    most = 4 if s.threads < 256 or (few and not shape.wide_columns) else 2
    return max(most, -(-NARROW_THREADS // s.threads)) if shape.narrow and s.cluster == 1 else most


def _usual_stages(s: RowSchedule, shape: RowShape, blocks: int, stage: int) -> int:
    if s.cluster > 1:
        return max(3, min(8, CLUSTER_PIPELINE // max(1, blocks * stage)))
    return max(3 if blocks == 1 and shape.columns else 2, min(8, -(-65536 // max(1, blocks * stage))))


def _fit_refilled(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Support:
    """As many vectors of each thread as find place, or as the candidate has: a row that is read again in each
    pass, with the next one on its way where there is no room for both."""
    each = s.vector * s.threads * shape.walked
    places = min(s.places, (device.shared_per_block - CLUSTER_STATIC) // each)
    if s.elements * s.team != shape.length:
        return refused(f"{s.team} threads have {s.items} vectors each, of which some are beyond the row")
    if not shape.refills:
        return refused("rows are finished one after the other")
    if places <= s.items:
        return refused(f"{places} places of {each} bytes are too few for a row and more")
    return placed(s, device, room, places * each, CLUSTER_STATIC, 1, places=places)
