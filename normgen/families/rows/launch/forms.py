"""The forms of the rows family: what schedules of each have in common.

A new form is an entry of `FORMS`, and starts that name it (`space`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from types import MappingProxyType

from normgen.counting import counted
from normgen.families.rows.launch.fitting import (
    Room,
    fit_batch,
    fit_cooperative,
    fit_multipass,
    fit_pipeline,
    fit_registers,
    fit_row_tile,
)
from normgen.families.rows.launch.registers import (
    of_batch,
    of_held,
    of_multipass,
    of_pipeline,
    of_row_tile,
)
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.machine import Machine
from normgen.launching.support import Support


@dataclass(frozen=True, slots=True)
class Form:
    """What the planner asks about the schedules of a form."""

    reason: str  # why a schedule was taken, see `reason_of`
    # Registers per thread.
    registers: Callable[[RowSchedule, RowShape, Machine], int]
    # A schedule with its registers, blocks, stages and shared memory.
    fit: Callable[[RowSchedule, RowShape, Machine, Room], RowSchedule | Support]
    # Whether it is for such rows, where its kernel has it; and the knobs that it has beside those of all.
    able: Callable[[RowShape], bool] = lambda shape: True
    knobs: frozenset[str] = frozenset()
    # How the elements of a row are added up: forms with the same word give a row the same bits, where they
    # divide it alike.
    order: str = "held"
    # Loads of each operand that a thread has on their way.
    deep: Callable[[RowSchedule], int] = lambda s: s.items
    # SLOTS of its text: vectors of a thread in shared memory.
    slots: Callable[[RowSchedule], int] = lambda s: 0
    in_registers: bool = False  # a thread group has its row in registers
    covers: bool = False  # the threads of a thread group have the whole row at once
    pipelined: bool = False  # the rows to come are on their way into shared memory
    # Blocks go on to further rows, one after the other; and from one segment to the next, where they are in
    # clusters.
    in_order: bool = False
    at_once: bool = False  # nothing is to begin or end beside the rows
    across_segments: bool = False  # rows are numbered across segments
    far: bool = False  # its text has 64 bits for the offsets of rows, unless it is short of registers
    streams: bool = False  # every pass reads memory again
    meets: bool = False  # blocks of a row wait for one another
    tags: bool = False  # loads may be tagged for the cache
    word_stores: bool = False  # misaligned rows are stored by aligned words
    finishes: bool = False  # where one unit has all rows it stores what is accumulated as results
    rounds: int = 1  # blocks that walk over the rows, per resident block: the later ones even out the work

    @property
    def holds(self) -> bool:
        """Whether its threads have whole rows at once."""
        return self.covers or self.in_registers


def form_of(s: RowSchedule) -> Form:
    """The form of a schedule."""
    return FORMS[s.form]


def reason_of(s: RowSchedule, shape: RowShape) -> str:
    """Why a schedule was taken."""
    form = form_of(s)
    blocks = f" in {s.cluster} blocks" if s.cluster > 1 else ""
    sharing = f", and {s.members} blocks share it" if s.members > 1 else ""
    threads = counted(s.team, "thread")
    kept = "read again from the pipeline" if s.reload else "held in registers"
    return (_REFILLED if form.pipelined and s.places else form.reason).format(
        s,
        threads=threads,
        rows=counted(s.teams, "row"),
        blocks=blocks,
        sharing=sharing,
        sums=f"column sums fit the registers of {threads}{blocks}, " if shape.columns else "",
        kept=kept + (", its results stored by aligned words" if form.word_stores else ""),
        source="a copy in shared memory" if s.staged else "memory",
    )


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
    fit=fit_pipeline,
    knobs=frozenset({"stages", "reload", "late", "cluster", "bulk", "places", "realigned"}),
    slots=_pipeline_slots,
    covers=True,
    pipelined=True,
    finishes=True,
)

FORMS: Mapping[str, Form] = MappingProxyType(
    {
        # One-shot: a thread group holds its row in registers. Without exchanges no thread waits for another.
        "registers": Form(
            reason="the row fits the registers of {threads}{blocks}",
            registers=of_held,
            fit=fit_registers,
            knobs=frozenset({"late", "cluster", "realigned"}),
            in_registers=True,
            covers=True,
            at_once=True,
            across_segments=True,
            far=True,
            tags=True,
        ),
        # One-shot, for short rows that lie side by side: a block stages several through shared memory.
        "row_tile": Form(
            reason="{rows} are contiguous and fit the registers of {threads} each",
            registers=of_row_tile,
            fit=fit_row_tile,
            able=lambda shape: shape.row_tile > 0,
            knobs=frozenset({"late"}),
            covers=True,
            at_once=True,
        ),
        # A row split over blocks that exchange through memory (a cooperative grid).
        "cooperative": Form(
            reason="the row fits {0.members} blocks, which exchange through memory",
            registers=of_held,
            fit=fit_cooperative,
            able=lambda shape: shape.cooperates and shape.rewalked > 0 and shape.whole_words,
            knobs=frozenset({"members", "places"}),
            order="cooperative",
            slots=lambda s: s.places,
            in_registers=True,
            meets=True,
        ),
        # Several rows per thread group, where nothing is exchanged.
        "batch": Form(
            reason="nothing in a row is exchanged; "
            "{rows} per block side by side, {0.batch} one after another",
            registers=of_batch,
            fit=fit_batch,
            able=lambda shape: shape.splits,
            knobs=frozenset({"batch", "walks"}),
            order="none",
            deep=lambda s: s.items * s.batch,
            at_once=True,
            far=True,
            rounds=4,
        ),
        "pipeline": replace(_PIPELINE, able=lambda shape: shape.walked > 0, in_order=True, tags=True),
        # A pipeline of misaligned rows, whose results are stored by aligned words.
        "word_aligned": replace(
            _PIPELINE,
            registers=partial(of_pipeline, copies=2),
            fit=partial(fit_pipeline, word_stores=True),
            able=lambda shape: shape.word_alignable,
            knobs=frozenset({"stages", "reload", "realigned"}),
            word_stores=True,
        ),
        # One pass over memory for each level of reductions.
        "multipass": Form(
            reason="the row does not fit registers{sharing}; later passes read it from {source}",
            registers=of_multipass,
            fit=fit_multipass,
            knobs=frozenset({"staged", "members", "realigned", "held"}),
            order="running",
            deep=lambda s: 8 if s.members > 1 and s.vector <= 2 else 4,
            slots=lambda s: s.items,
            streams=True,
            finishes=True,
        ),
    }
)
