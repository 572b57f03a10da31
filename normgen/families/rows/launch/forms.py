"""The forms of the rows family: what schedules of each have in common, and whether one fits a device.

A new form is an entry of `FORMS`, and schedules that name it (`candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

from normgen.counting import counted
from normgen.families.rows.launch.registers import held_bytes, of_held, of_pipeline, of_row_tile
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.call import WORD
from normgen.launching.facts import STATIC_SHARED, touched
from normgen.launching.machine import QUARTERS, WARP, Machine

REGISTERS_PER_THREAD = 255
MAX_BLOCKS = 16  # per multiprocessor
STATIC_MOST = 49152  # bytes of shared memory that a kernel may declare
# Bytes of a row in one thread's registers, beyond which the row goes to shared memory: in one block, in
# several, and of misaligned rows, whose copy would have narrow vectors.
HELD_BYTES, CLUSTER_BYTES, REALIGNED_HELD_BYTES = 128, 256, 384
# What a multiprocessor must have in hand to keep the memory busy. One-shot: bytes of rows, or a full house of
# threads (by registers as they are estimated, which is too many for short rows). Pipelines: bytes of rows,
# fewer where one block computes while another waits, and as many warps in each quarter.
ENOUGH_BYTES, FULL_HOUSE = 52_000, 1500
PIPELINE_BYTES, PIPELINE_BYTES_IN_PARTS = 32_000, 28_000
FEW_BYTES = 16  # of a row in a thread: then more blocks, or their exchanges leave the memory idle
NARROW_THREADS = 640  # of a multiprocessor, where rows are of bytes: few are under way, with much to do each
CLUSTER_PIPELINE = 98304  # bytes of a multiprocessor's pipelines where blocks are in clusters
# Bytes of shared memory for two exchanges of three values of 16 x 16 warps, and for four, with the
# pipeline's arrivals.
CLUSTER_STATIC, OVERLAPPED_STATIC = 8448, 16640
# Stages of a pipeline whose rows leave it two rows later, the fewest that work, and its bytes.
OVERLAPPED_STAGES, OVERLAPPED_LEAST, OVERLAPPED_PIPELINE = 6, 4, 196608
COOPERATIVE_MEMBERS = 256  # blocks that share a row, at most: each reads the parts of all
COOPERATIVE_ROWS = 2  # whose blocks must find place together: one that waits leaves room for another's loads


class Misfit:
    """A schedule that cannot run well; why, is told to those who ask."""

    def __init__(self, why: str, *values: object) -> None:
        self._why, self._values = why, values

    def __str__(self) -> str:
        return self._why.format(*self._values)


class Room(NamedTuple):
    """What registers leave room for."""

    registers: int  # per thread
    blocks: int  # per multiprocessor, at most


@dataclass(frozen=True, slots=True)
class Form:
    """What the planner asks about the schedules of a form."""

    reason: str  # why a schedule was taken, see `reason_of`
    # Loads of each operand that a thread has on their way.
    deep: Callable[[RowSchedule], int] = lambda s: s.items
    # Registers per thread.
    registers: Callable[[RowSchedule, RowShape, Machine], int] = lambda s, shape, device: s.registers
    # A schedule with its registers, blocks, stages and shared memory. Forms for rows of any length need no
    # fitting.
    fit: Callable[[RowSchedule, RowShape, Machine, Room], RowSchedule | Misfit] = lambda s, *_: s
    # Bytes in flight per multiprocessor, over the bytes that keep the memory busy.
    busy: Callable[[RowSchedule, RowShape], float] = lambda s, shape: 1.0
    # SLOTS and BATCH of its text: vectors of a thread in shared memory, rows or vectors under way together.
    slots: Callable[[RowSchedule], int] = lambda s: 0
    batch: Callable[[RowSchedule], int] = lambda s: s.batch
    in_registers: bool = False  # a thread group has its row in registers
    covers: bool = False  # the threads of a thread group have the whole row at once
    pipelined: bool = False  # the rows to come are on their way into shared memory
    in_order: bool = False  # blocks go on to further rows, one after the other
    next_segment: bool = False  # and from one segment to the next, where they are in clusters
    at_once: bool = False  # nothing is to begin or end beside the rows
    across_segments: bool = False  # rows are numbered across segments
    far: bool = False  # its text has 64 bits for the offsets of rows, unless it is short of registers
    streams: bool = False  # every pass reads memory again
    shares_rows: bool = False  # blocks share a row that has nothing to exchange
    tags: bool = False  # loads may be tagged for the cache
    word_stores: bool = False  # misaligned rows are stored by aligned words
    by_words: bool = False  # memory is read in whole words, whatever the vectors
    rounds: int = 1  # blocks that walk over the rows, per resident block: the later ones even out the work


def form_of(s: RowSchedule) -> Form:
    """The form of a schedule."""
    return FORMS[s.form]


def reason_of(s: RowSchedule, shape: RowShape) -> str:
    """Why a schedule was taken."""
    form = form_of(s)
    blocks = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    threads = counted(s.team, "thread")
    kept = "read again from the pipeline" if s.reload else "held in registers"
    return (_REFILLED if form.pipelined and s.places else form.reason).format(
        s,
        threads=threads,
        rows=counted(s.teams, "row"),
        blocks=blocks,
        few="; there are few of them" if s.few else "",
        sums=f"column sums fit the registers of {threads}{blocks}, " if shape.columns else "",
        kept=kept + (", its results stored by aligned words" if form.word_stores else ""),
        source="a copy in shared memory" if s.staged else "memory",
    )


def spare_words(s: RowSchedule) -> int:
    """Words of a stage of misaligned rows beside its vectors: the one after each slice, and where results go
    by words the one in which a row ends."""
    return s.slices + s.teams * form_of(s).word_stores if s.realigned else 0


def fit(s: RowSchedule, shape: RowShape, device: Machine) -> RowSchedule | Misfit:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well.

    Stages and blocks of a pipeline that the candidate has already are kept, as far as they fit; one that is
    to have a single stage shares the multiprocessor with as many others as there is room for."""
    form = form_of(s)
    if s.threads > 1024:
        return Misfit("needs {} threads per block", s.threads)
    if s.cluster > (most := device.max_cluster):
        why = "needs clusters of {} blocks, and {} has {} in one at most"
        return Misfit(why, s.cluster, device.arch, most)
    if shape.piece and (unfit := _unfit_for_segments(s, shape)):
        return unfit
    held = held_bytes(s, shape)
    limit = (
        REALIGNED_HELD_BYTES if s.realigned else HELD_BYTES if s.cluster == s.members == 1 else CLUSTER_BYTES
    )
    if form.in_registers and held > limit:
        return Misfit("{} bytes of the row per thread are more than {}", held, limit)
    registers = form.registers(s, shape, device)
    there = min(REGISTERS_PER_THREAD, device.registers_per_multiprocessor // s.threads // 8 * 8)
    if registers > there:
        return Misfit("needs about {} registers per thread, {} are there", registers, there)
    by_registers = WARP * device.warps(registers) // s.threads
    blocks = min(by_registers, device.threads_per_multiprocessor // s.threads, MAX_BLOCKS)
    return form.fit(s, shape, device, Room(registers, blocks))


def _unfit_for_segments(s: RowSchedule, shape: RowShape) -> Misfit | None:
    """Why the threads of a block cannot add up segments of rows, if they cannot."""
    if s.teams > 1 or s.threads % shape.piece:
        why = "a block of {} threads does not have whole pieces of {} vectors of a row"
        return Misfit(why, s.threads, shape.piece)
    shared = s.threads * s.vector * 4 * shape.sums + 4 * s.team  # the latter for the exchange
    return _no_room(shared, STATIC_MOST) if shared > STATIC_MOST else None


def _no_room(shared: int, room: int) -> Misfit:
    return Misfit("needs {} bytes of shared memory, {} are there", shared, room)


def _placed(
    s: RowSchedule,
    device: Machine,
    room: Room,
    shared: int = 0,
    static: int = STATIC_SHARED,
    blocks: int = 0,
    **pipeline: Any,
) -> RowSchedule | Misfit:
    """With so much shared memory in each block, and as many blocks as find place, or as are given."""
    most = device.shared_per_block - static
    if shared > most:
        return _no_room(shared, most)
    blocks = min(blocks or room.blocks, device.blocks(shared + static))
    return replace(s, blocks=blocks, registers=room.registers, shared=shared, **pipeline)


# ------------------------------------------------------------------------------------------------ one-shot


def _fit_registers(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    if room.blocks < 2 and s.cluster == 1 and 256 < s.threads < 1024:
        why = "one block of {} threads per multiprocessor leaves nothing in flight while it reduces"
        return Misfit(why, s.threads)
    return _placed(s, device, room)


def _fit_row_tile(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    """With the rows that each block moves together."""
    row_tile = s.teams * shape.length * shape.narrowest
    assert row_tile % WORD == 0, "what a block moves is whole words"
    return _placed(s, device, room, row_tile * shape.row_tile)


def _fit_cooperative(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    """As many blocks as hold the row, if those of several rows find place together."""
    found = _placed(s, device, room, s.places * s.vector * s.threads * shape.walked, blocks=s.blocks)
    if isinstance(found, Misfit):
        return found
    together = device.multiprocessors * found.blocks
    if not 1 < s.members <= COOPERATIVE_MEMBERS:
        return Misfit("a row takes {} blocks, and 2 to {} may share it", s.members, COOPERATIVE_MEMBERS)
    if together < COOPERATIVE_ROWS * s.members:
        return Misfit("a row takes {} blocks, of which {} run together", s.members, together)
    return found


def in_hand(s: RowSchedule, shape: RowShape) -> int:
    """Bytes of rows that a multiprocessor works at."""
    return s.blocks * s.teams * shape.length * shape.walked // s.cluster


def _full(s: RowSchedule, shape: RowShape) -> float:
    return max(in_hand(s, shape) / ENOUGH_BYTES, s.blocks * s.threads / FULL_HOUSE)


# ------------------------------------------------------------------------------------------------ pipelines


def _fit_pipeline(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    if s.places:
        return _fit_refilled(s, shape, device, room)
    gather = s.threads * 4 * max(1, _handed(s, shape))
    blocks = max(1, min(room.blocks, s.blocks or _usual_blocks(s, shape)))
    stage = s.elements * s.threads * shape.walked
    stages = s.stages or _usual_stages(s, shape, blocks, stage)
    static = CLUSTER_STATIC if s.cluster > 1 else STATIC_SHARED
    most = device.shared_per_block - static
    stage += spare_words(s) * WORD * shape.streams
    stages = min(stages, max(1, most // max(1, stage)))
    # (a row that is kept in registers leaves its place in the pipeline to the next one)
    if stages < 2 and s.stages != 1 and stage and (s.cluster == 1 if shape.columns else s.reload):
        return Misfit("two rows of {} bytes do not fit {} bytes of shared memory", stage, most)
    return _placed(s, device, room, max(stages * stage, gather), static, blocks, stages=stages)


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


def _fit_overlapped(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    """As long a pipeline as finds place beside what is exchanged: a row leaves it two rows later, so that one
    of four has one row on its way."""
    stage = s.elements * s.threads * shape.walked
    most = min(OVERLAPPED_PIPELINE, device.shared_per_block - OVERLAPPED_STATIC)
    stages = min(s.stages or OVERLAPPED_STAGES, most // stage)
    if stages < (OVERLAPPED_LEAST if s.stages else OVERLAPPED_STAGES - 1):
        return Misfit("{} rows of {} bytes in {} bytes of shared memory are too few", stages, stage, most)
    by_registers = device.registers_per_multiprocessor // (s.threads * room.registers)
    blocks = max(1, min(s.blocks or 1, by_registers))
    return _placed(s, device, room, stages * stage, OVERLAPPED_STATIC, blocks, stages=stages)


def _fit_refilled(s: RowSchedule, shape: RowShape, device: Machine, room: Room) -> RowSchedule | Misfit:
    """As many vectors of each thread as find place, or as the candidate has: a row that is read again in each
    pass, with the next one on its way where there is no room for both."""
    each = s.vector * s.threads * shape.walked
    places = min(s.places, (device.shared_per_block - CLUSTER_STATIC) // each)
    if s.elements * s.team != shape.length:
        return Misfit("{} threads have {} vectors each, of which some are beyond the row", s.team, s.items)
    if not shape.refills:
        return Misfit("rows are finished one after the other")
    if places <= s.items:
        return Misfit("{} places of {} bytes are too few for a row and more", places, each)
    return _placed(s, device, room, places * each, CLUSTER_STATIC, 1, places=places)


def _pipeline_busy(s: RowSchedule, shape: RowShape) -> float:
    if s.blocks * s.teams > 1:
        return in_hand(s, shape) / PIPELINE_BYTES_IN_PARTS
    warps = s.threads // WARP
    return min(1.0, in_hand(s, shape) / PIPELINE_BYTES) * warps / (-(-warps // QUARTERS) * QUARTERS)


def store_quantum(s: RowSchedule) -> int:
    """Of how many blocks the rows of a thread group must be a multiple apart, to begin at the same element
    of a word: 1 unless results go by words."""
    return s.vector // gcd(s.vector, s.teams) if form_of(s).word_stores else 1


_REFILLED = "the shared memory of {0.cluster} blocks holds more than one row"


def _pipeline_slots(s: RowSchedule) -> int:
    return s.places or s.stages * s.items


# A multistage pipeline in shared memory, of rows or of vectors.
_PIPELINE = Form(
    reason="{sums}the row is {kept}",
    deep=_pipeline_slots,
    registers=of_pipeline,
    fit=_fit_pipeline,
    busy=_pipeline_busy,
    slots=_pipeline_slots,
    covers=True,
    pipelined=True,
)

FORMS: Mapping[str, Form] = MappingProxyType(
    {
        # One-shot: a thread group holds its row in registers. Without exchanges no thread waits for another.
        "registers": Form(
            reason="the row fits the registers of {threads}{blocks}{few}",
            registers=of_held,
            fit=_fit_registers,
            busy=lambda s, shape: _full(s, shape) if shape.exchanges else 1.0,
            in_registers=True,
            covers=True,
            at_once=True,
            across_segments=True,
            far=True,
            tags=True,
        ),
        # One-shot, for short rows that lie side by side: a block stages several through shared memory.
        "row_tile": Form(
            reason="{rows} lie side by side and fit the registers of {threads} each",
            registers=of_row_tile,
            fit=_fit_row_tile,
            busy=_full,
            covers=True,
            at_once=True,
            by_words=True,
        ),
        # A row split over blocks that exchange through memory (a cooperative grid).
        "cooperative": Form(
            reason="the row fits {0.members} blocks, which exchange through memory",
            registers=of_held,
            fit=_fit_cooperative,
            slots=lambda s: s.places,
            in_registers=True,
        ),
        # Several rows per thread group, where nothing is exchanged.
        "batch": Form(
            reason="nothing in a row is exchanged; "
            "{rows} per block side by side, {0.batch} one after another",
            deep=lambda s: s.items * s.batch,
            at_once=True,
            far=True,
            rounds=4,
        ),
        "pipeline": replace(_PIPELINE, in_order=True, next_segment=True, tags=True),
        # A software-pipelined cluster exchange: while one row is exchanged the one before it is finished.
        "overlapped": replace(
            _PIPELINE,
            reason="a row of {0.cluster} blocks is exchanged while the one before it is finished",
            deep=lambda s: s.items * (s.stages - 3),
            fit=_fit_overlapped,
            in_order=True,
            tags=True,
        ),
        # A pipeline of misaligned rows, whose results are stored by aligned words.
        "word_aligned": replace(_PIPELINE, registers=partial(of_pipeline, copies=2), word_stores=True),
        # One pass over memory for each level of reductions.
        "multipass": Form(
            reason="the row does not fit registers; later passes read it from {source}",
            deep=lambda s: 4,
            slots=lambda s: s.items,
            streams=True,
        ),
        # Rows that blocks share, where nothing is exchanged.
        "split": Form(
            reason="the row is long and nothing in it is exchanged; blocks share it",
            batch=lambda s: s.items,
            at_once=True,
            shares_rows=True,
        ),
    }
)
