"""What the rows family offers for a kernel: its own candidates in order of preference, then what else fits.

The candidates are few, by rules that hold for most widths. Around them stand all divisions of a row among
threads, blocks and clusters that `fit` lets pass, with every way to hold it, and pipelines of other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from math import log2

from normgen.counting import counted
from normgen.families.rows.launch.any_length import split, stream
from normgen.families.rows.launch.choose import default, describe, tiers
from normgen.families.rows.launch.clusters import any_added_segments, any_cooperative
from normgen.families.rows.launch.forms import form_of
from normgen.families.rows.launch.legal import fit
from normgen.families.rows.launch.one_block import any_row_tile
from normgen.families.rows.launch.pipelines import CLUSTERS, may_overlap, overlapped_pipeline
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, warps
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.facts import power_of_two
from normgen.launching.knobs import distinct
from normgen.launching.machine import WARP, Machine
from normgen.launching.support import Support
from normgen.package.kernels import RowsRecord

_MOST_ELEMENTS = 64  # of a row, in one thread
_RESIDENT = 512  # threads per multiprocessor below which nothing hides the latency of an exchange
_CLUSTER_THREADS = (64, 512)  # the fewest and the most of a cluster's block
_BLOCK_THREADS = (128, 256, 512)  # of a block whose thread groups are smaller
_STAGES = (1, 2, 3, 4, 6, 8)
_BLOCKS = (1, 2, 3, 4, 6)


def space(kernel: RowsRecord, call: Call) -> Iterator[RowSchedule]:
    """Every schedule for a kernel in a call: the one that it takes by itself first."""
    forms = {form.form for form in kernel.forms}
    return distinct(each for each in _space(kernel, call) if each.form in forms)


def _space(kernel: RowsRecord, call: Call) -> Iterator[RowSchedule]:
    yield default(kernel, call)
    shape, device = shape_of(kernel, call), call.device
    fitted = (fit(candidate, shape, device) for candidate in _candidates(shape, device))
    yield from (each for each in fitted if not isinstance(each, Support))
    yield from _any_length(shape, device)


def describe_fully(s: RowSchedule) -> str:
    """A schedule in so many words that no two of a call are alike."""
    form, how = form_of(s), [describe(s)]
    if form.covers and s.cluster == 1 and (s.teams > 1 or form.pipelined):
        how.append(f"{counted(s.teams, 'row')} per block")
    if form.pipelined:
        how += [f"{s.threads} threads per block"] if s.cluster > 1 else []
        how.append(counted(s.stages, "stage"))
    if s.bulk and form.next_segment:
        how.append("bulk")
    how += [word for word, on in (("late", s.late), ("staged", s.staged)) if on]
    return ", ".join([*how, f"{counted(s.blocks, 'block')} per multiprocessor"])


def merit_of(s: RowSchedule, shape: RowShape) -> float:
    """By the threads that have elements, and those that are there to hide an exchange."""
    chunk = s.vector * s.threads * s.cluster // s.teams
    used = shape.length / (-(-shape.length // chunk) * chunk)
    if form_of(s).covers:
        used = shape.length / (s.elements * s.team)
    resident = max(1, s.blocks) * s.threads
    hidden = min(1.0, resident / _RESIDENT) ** 0.25 if shape.exchanges else 1.0
    return used * hidden


# ------------------------------------------------------------------------------------------------ candidates


def _candidates(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    """Those of the rules, then the rest, each before it is fitted to the device."""
    if shape.shared_rows:
        return
    found = [candidate for tier in tiers(shape, device) for candidate in tier]
    found += _any_pipeline(shape, device) if shape.columns else _any_one_shot(shape, device)
    found += [
        *_any_overlapped(shape, device),
        *_any_word_aligned(shape),
        *any_row_tile(shape),
        *any_cooperative(shape),
    ]
    yield from found
    for pipeline in (s for s in found if form_of(s).pipelined):
        yield from (replace(pipeline, stages=stages) for stages in _STAGES)
        yield from (replace(pipeline, blocks=blocks) for blocks in _BLOCKS)


def _items(shape: RowShape) -> list[int]:
    """Vectors a thread, those of a usual number of elements first."""
    usual = 32 if shape.deep else 16
    counts = range(1, shape.items(_MOST_ELEMENTS) + 1)
    return sorted(counts, key=lambda items: abs(log2(items * shape.vector / usual)))


def _in_block(shape: RowShape, form: str) -> Iterator[RowSchedule]:
    """Thread groups of one block."""
    for items in _items(shape):
        threads = -(-shape.vectors // items)
        team = power_of_two(threads) if threads <= WARP else warps(shape.vectors, items)
        for most in _BLOCK_THREADS if team <= 1024 else ():
            teams = max(1, most // team)
            yield RowSchedule(form, shape.vector, team, teams, -(-shape.vectors // team))


def _in_clusters(shape: RowShape, device: Machine, form: str) -> Iterator[RowSchedule]:
    """Thread groups that are clusters."""
    if not device.clusters or not shape.exchanges or not shape.rewalked:
        return
    fewest, most = _CLUSTER_THREADS
    for items, cluster in product(_items(shape), CLUSTERS):
        threads = warps(shape.vectors, cluster * items)
        if fewest <= threads <= most:
            yield RowSchedule(form, shape.vector, cluster * threads, 1, items, cluster=cluster)


def _any_one_shot(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    if shape.piece:
        yield from any_added_segments(shape)
        return
    for late in shape.lates:
        for each in chain(_in_block(shape, "registers"), _in_clusters(shape, device, "registers")):
            yield replace(each, late=late)


def _any_pipeline(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    for reload, late in ((False, False), *((True, late) for late in shape.lates)):
        for each in _in_block(shape, "pipeline"):
            yield replace(each, reload=reload, late=late)
        for each in _in_clusters(shape, device, "pipeline") if not shape.narrow_moments else ():
            for bulk in (False, True) if shape.whole_words else (False,):
                if bulk or not reload:
                    yield replace(each, reload=reload, late=late, bulk=bulk)


def _any_overlapped(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
    if may_overlap(shape, device):
        for late, each in product(shape.lates, _in_clusters(shape, device, "overlapped")):
            yield overlapped_pipeline(shape, each.threads, each.cluster, late)


def _any_word_aligned(shape: RowShape) -> Iterator[RowSchedule]:
    if shape.word_alignable and shape.realigned:
        for each in _in_block(replace(shape, vector=shape.realigned), "word_aligned"):
            if each.team % WARP == 0:
                yield replace(each, reload=True, realigned=True, stages=2)


def _any_length(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Forms for rows of any length, which need no fitting."""
    if shape.splits or shape.shared_rows:
        return [split(shape, device)]
    streaming = stream(shape, device)
    return [streaming, replace(streaming, staged=False, shared=0)]
