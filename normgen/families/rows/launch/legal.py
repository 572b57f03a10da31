"""Which schedules a kernel of the rows family may run by in a call: those that divide a row as their form
can, and find place on the device.

What is legal gives right results, whoever has thought of it. Nothing here prefers one schedule to another.
"""

from __future__ import annotations

from dataclasses import fields

from normgen.counting import counted
from normgen.families.rows.launch.fitting import (
    CLUSTER_BYTES,
    HELD_BYTES,
    MAX_BLOCKS,
    REALIGNED_HELD_BYTES,
    Room,
    no_room,
    refused,
)
from normgen.families.rows.launch.forms import FORMS, Form, form_of
from normgen.families.rows.launch.registers import held_bytes
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.knobs import settled
from normgen.launching.machine import REGISTERS_PER_THREAD, WARP, Machine
from normgen.launching.support import Support
from normgen.package.kernels import RowsRecord

STATIC_MOST = 49152  # bytes of shared memory that a kernel may declare


def settle(kernel: RowsRecord, call: Call, s: RowSchedule) -> RowSchedule | Support:
    """The schedule with its registers, or why the kernel cannot run so in this call."""
    if s.form not in FORMS or all(form.form != s.form for form in kernel.forms):
        return refused(f"{kernel.name} has no form {s.form}")
    if kernel.selective and not all(map(call.contiguous, call.read(kernel.reads))):
        return refused("its rows are not contiguous")
    found = legal(s, shape_of(kernel, call), call.device)
    return found if isinstance(found, Support) else settled(s, found)


def legal(s: RowSchedule, shape: RowShape, device: Machine) -> RowSchedule | Support:
    """The candidate with what is estimated filled in, or why rows of this shape cannot run so."""
    form = form_of(s)
    if why := _unlike(s, shape, form) or _not_teams(s, shape, form) or _undivided(s, shape, form):
        return refused(why)
    return fit(s, shape, device)


def fit(s: RowSchedule, shape: RowShape, device: Machine) -> RowSchedule | Support:
    """The candidate with registers, stages and blocks filled in, or the reason why it cannot run well.

    Stages and blocks of a pipeline that the candidate has already are kept, as far as they fit; one that is
    to have a single stage shares the multiprocessor with as many others as there is room for."""
    form = form_of(s)
    if s.threads > 1024:
        return refused(f"needs {s.threads} threads per block")
    if s.cluster > (most := device.max_cluster):
        return refused(f"needs clusters of {s.cluster} blocks, and {device.arch} has {most} in one at most")
    if shape.piece and (unfit := _unfit_for_segments(s, shape)):
        return unfit
    held = held_bytes(s, shape)
    limit = (
        REALIGNED_HELD_BYTES if s.realigned else HELD_BYTES if s.cluster == s.members == 1 else CLUSTER_BYTES
    )
    if form.in_registers and held > limit:
        return refused(f"{held} bytes of the row per thread are more than {limit}")
    registers = form.registers(s, shape, device)
    there = min(REGISTERS_PER_THREAD, device.registers(s.threads))
    if registers > there:
        return refused(f"needs about {registers} registers per thread, and {there} are available")
    blocks = min(device.resident(s.threads, registers), MAX_BLOCKS)
    return form.fit(s, shape, device, Room(registers, blocks))


def _unfit_for_segments(s: RowSchedule, shape: RowShape) -> Support | None:
    """Why the threads of a block cannot add up segments of rows, if they cannot."""
    if s.teams > 1 or s.threads % shape.piece:
        return refused(
            f"a block of {s.threads} threads does not have whole pieces of {shape.piece} vectors of a row"
        )
    shared = s.threads * s.vector * 4 * shape.sums + 4 * s.team  # the latter for the exchange
    return no_room(shared, STATIC_MOST) if shared > STATIC_MOST else None


# ------------------------------------------------------------------------------------------------ structure


_DEFAULTS = {each.name: each.default for each in fields(RowSchedule)}
_OF_SOME = sorted(frozenset[str]().union(*(form.knobs for form in FORMS.values())))
_PLACES = 4  # of a thread for each vector that it would need to have
_WHOLE = ("pipeline", "batch")  # forms whose thread groups need not be warps, or a power of two of lanes


def _unlike(s: RowSchedule, shape: RowShape, form: Form) -> str:
    """Why a schedule is not one of its form, for such rows, if it is not."""
    for name in _OF_SOME:
        if name not in form.knobs and getattr(s, name) != _DEFAULTS[name]:
            return f"{s.form} has no {name}"
    if not form.able(shape):
        return f"{s.form} is not for such rows"
    if s.vector != (shape.realigned if s.realigned else shape.vector):
        return f"vectors of {counted(s.vector, 'element')} are not {'cut out' if s.realigned else 'aligned'}"
    if form.word_stores and not (s.realigned and s.reload):
        return f"{s.form} is for realigned vectors that are read again"
    if s.bulk and not (s.cluster > 1 and shape.whole_words):
        return "bulk copies are for slices of rows that are whole words"
    if s.places and form.pipelined and (s.bulk or not s.reload or not shape.refills):
        return "vectors that are replaced one by one are read again, and come one by one"
    return ""


def _not_teams(s: RowSchedule, shape: RowShape, form: Form) -> str:
    """Why blocks do not have thread groups as a schedule says, if they do not."""
    several = s.cluster * s.members
    if min(s.team, s.teams, s.items, s.vector, s.batch, several) < 1 or s.team % several:
        return "a row has no such part"
    if s.threads % WARP or not s.threads:
        return f"blocks of {counted(s.threads, 'thread')} are not whole warps"
    if s.places >= s.items and not form.pipelined:
        return f"{counted(s.places, 'vector')} in shared memory leave none for registers"
    if several > 1 and s.teams > 1:
        return "blocks that share a row have one each"
    if s.team > WARP and s.team // several % WARP and not _any_team(s, shape):
        return f"{counted(s.team, 'thread')} per row are not whole warps"
    if s.team <= WARP and s.team & (s.team - 1) and not _any_team(s, shape):
        return f"{counted(s.team, 'thread')} per row are not a power of two"
    if s.form == "row_tile" and s.team > WARP:
        return "rows that a block moves together have no more than a warp each"
    if form.streams and (s.teams > 1 or s.team <= WARP):
        return "a block has a row, or a part of one, with several warps"
    return ""


def _undivided(s: RowSchedule, shape: RowShape, form: Form) -> str:
    """Why a row is not divided among threads as a schedule says, if it is not."""
    whole = shape.exchanges and not (shape.narrow_moments or shape.folded)
    if s.form == "pipeline" and s.cluster > 1 and not whole:
        return "what is accumulated takes whole rows in each block"
    vectors = -(-shape.length // s.vector)
    least = -(-vectors // s.team)
    if s.members > 1 and form.meets and s.members != -(-vectors // (s.threads * s.items)):
        return f"{s.members} blocks do not share {vectors} vectors of a row evenly"
    if not form.meets and not least <= s.items <= (1 if form.streams else _PLACES) * least:
        return f"{counted(s.team, 'thread')} with {counted(s.items, 'vector')} each for {vectors} of a row"
    return ""


def _any_team(s: RowSchedule, shape: RowShape) -> bool:
    """Whether thread groups may have any number of threads: where lanes exchange nothing."""
    return s.form in _WHOLE and not shape.exchanges and not s.realigned
