"""What the rows family offers for a kernel: its own candidates in order of preference, then what else fits.

The candidates are few, by rules that hold for most widths. Around them stand all divisions of a row among
threads, blocks and clusters that `fit` lets pass, with every way to hold it, and rings of other lengths. The
best of them is seldom far from the first; which one it is, only the device can say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2

from normgen.families.rows.launch.any_length import split, stream
from normgen.families.rows.launch.candidates import tiers
from normgen.families.rows.launch.clusters import CLUSTERS, lates, may_skew, skewed_ring
from normgen.families.rows.launch.fitting import Ways, describe, fit, ways
from normgen.families.rows.launch.pieces import any_added_pieces
from normgen.families.rows.launch.schedule import (
    Schedule,
    Shape,
    at_least_one,
    is_deep,
    power_of_two,
    warps,
)
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.slabs import any_slab
from normgen.families.rows.launch.spread import any_spread
from normgen.launching.call import Call, once
from normgen.launching.knobs import distinct
from normgen.launching.machine import Machine
from normgen.package.kernels import KernelRecord

_MOST_ELEMENTS = 64  # of a row, in one thread
_RESIDENT = 512  # threads a multiprocessor below which nothing hides the latency of an exchange
_CLUSTER_THREADS = (64, 512)  # the fewest and the most of a cluster's block
_BLOCK_THREADS = (128, 256, 512)  # of a block whose teams are smaller
_HELD = ("registers", "slab")
_RINGS = ("ring", "skewed", "slanted")
_STAGES = (1, 2, 3, 4, 6, 8)
_BLOCKS = (1, 2, 3, 4, 6)


def space(kernel: KernelRecord, call: Call) -> Iterator[Schedule]:
    """Every schedule for a kernel in a call: the one that it takes by itself first."""
    forms = {form.form for form in kernel.forms}
    return distinct(each for each in _space(kernel, call) if each.form in forms)


def _space(kernel: KernelRecord, call: Call) -> Iterator[Schedule]:
    shape, device = shape_of(kernel, call), call.device
    yield usual(kernel, call).of(shape.rows)
    fitted = (fit(candidate, shape, device) for candidate in _candidates(shape, device))
    yield from (each for each in fitted if isinstance(each, Schedule))
    yield from _any_length(shape, device)


@once
def usual(kernel: KernelRecord, call: Call) -> Ways:
    """How a kernel runs by itself, in this call and in others like it."""
    return ways(shape_of(kernel, call), call.device)


def describe_offer(s: Schedule) -> str:
    """A schedule in a few words, so that offers differ."""
    how = [describe(s)]
    if s.form in _HELD and s.teams > 1:
        how.append(f"{s.teams} rows a block")
    if s.form in _RINGS:
        how.append(f"{s.teams} rows a block" if s.cluster == 1 else f"{s.threads} threads a block")
        how.append(f"{s.stages} stages")
    if s.bulk and s.form == "ring":
        how.append("bulk")
    if s.late:
        how.append("late")
    if s.staged:
        how.append("staged")
    return ", ".join([*how, f"{s.blocks} a multiprocessor"])


def merit_of(s: Schedule, shape: Shape) -> float:
    """By the threads that have elements, and those that are there to hide an exchange."""
    chunk = s.vector * s.threads * s.cluster // s.teams
    used = shape.length / (-(-shape.length // chunk) * chunk)
    if s.form in (*_HELD, *_RINGS):
        used = shape.length / (s.items * s.vector * s.team)
    resident = max(1, s.blocks) * s.threads
    hidden = min(1.0, resident / _RESIDENT) ** 0.25 if shape.exchanges else 1.0
    return used * hidden


# ------------------------------------------------------------------------------------------------ candidates


def _candidates(shape: Shape, device: Machine) -> Iterator[Schedule]:
    """Those of the rules, then the rest, each before it is fitted to the device."""
    if shape.shared_rows:
        return
    found = [candidate for tier in tiers(shape, device) for candidate in tier]
    found += _any_ring(shape, device) if shape.columns else _any_one_shot(shape, device)
    found += [*_any_skewed(shape, device), *_any_slanted(shape), *any_slab(shape), *any_spread(shape)]
    yield from found
    for ring in (s for s in found if s.form in _RINGS):
        yield from (replace(ring, stages=stages) for stages in _STAGES)
        yield from (replace(ring, blocks=blocks) for blocks in _BLOCKS)


def _items(shape: Shape) -> list[int]:
    """Vectors a thread, those of a usual number of elements first."""
    usual = 32 if is_deep(shape) else 16
    most = at_least_one(_MOST_ELEMENTS // shape.vector)
    return sorted(range(1, most + 1), key=lambda items: abs(log2(items * shape.vector / usual)))


def _teams(shape: Shape) -> Iterator[tuple[int, int]]:
    """(threads, vectors of each) of a team of one block."""
    vectors = -(-shape.length // shape.vector)
    for items in _items(shape):
        threads = -(-vectors // items)
        team = power_of_two(threads) if threads <= 32 else warps(vectors, items)
        if team <= 1024:
            yield team, -(-vectors // team)


def _cluster_teams(shape: Shape, device: Machine) -> Iterator[tuple[int, int, int]]:
    """(blocks, threads of each, vectors of each) of a team that is a cluster."""
    if not device.clusters or not shape.exchanges or not shape.rewalked:
        return
    vectors = -(-shape.length // shape.vector)
    fewest, most = _CLUSTER_THREADS
    for items in _items(shape):
        for cluster in CLUSTERS:
            threads = warps(vectors, cluster * items)
            if fewest <= threads <= most:
                yield cluster, threads, items


def _any_one_shot(shape: Shape, device: Machine) -> Iterator[Schedule]:
    if shape.piece:
        yield from any_added_pieces(shape, device)
        return
    for late in lates(shape):
        for team, items in _teams(shape):
            for threads in _BLOCK_THREADS:
                teams = max(1, threads // team)
                yield Schedule("registers", shape.vector, team, teams, items, 0, late=late)
        for cluster, threads, items in _cluster_teams(shape, device):
            yield Schedule(
                "registers", shape.vector, cluster * threads, 1, items, 0, late=late, cluster=cluster
            )


def _any_ring(shape: Shape, device: Machine) -> Iterator[Schedule]:
    ways = [(False, False), (True, False), *([(True, True)] if shape.shared else [])]
    for reload, late in ways:
        for team, items in _teams(shape):
            for threads in _BLOCK_THREADS:
                teams = max(1, threads // team)
                yield Schedule("ring", shape.vector, team, teams, items, 0, reload=reload, late=late)
        if shape.narrow_moments:
            continue
        for cluster, threads, items in _cluster_teams(shape, device):
            for bulk in (False, True) if shape.whole_words else (False,):
                if bulk or not reload:
                    yield Schedule(
                        "ring", shape.vector, cluster * threads, 1, items, 0,
                        reload=reload, late=late, cluster=cluster, bulk=bulk,
                    )  # fmt: skip


def _any_skewed(shape: Shape, device: Machine) -> Iterator[Schedule]:
    if not may_skew(shape, device):
        return
    for late in lates(shape):
        for cluster, threads, _ in _cluster_teams(shape, device):
            yield skewed_ring(shape, threads, cluster, late)


def _any_slanted(shape: Shape) -> Iterator[Schedule]:
    if not (shape.slants and shape.shifted):
        return
    wide = replace(shape, vector=shape.shifted)
    for team, items in _teams(wide):
        for threads in _BLOCK_THREADS if team % 32 == 0 else ():
            made = Schedule("slanted", wide.vector, team, max(1, threads // team), items, 0, reload=True)
            yield replace(made, shifted=True, stages=2)


def _any_length(shape: Shape, device: Machine) -> list[Schedule]:
    """Forms for rows of any length, which need no fitting."""
    if shape.splits or shape.shared_rows:
        return [split(shape, device)]
    streaming = stream(shape, device)
    reason = "the row does not fit registers; later passes read it from memory"
    return [streaming, replace(streaming, staged=False, shared=0, reason=reason)]
