"""Which schedule a kernel of the rows family takes: of the candidates that fit the device, by tiers in order
of preference, the first that keeps the memory busy, or the one of its tier that comes nearest to that.

- Vectors have 16 bytes of the narrowest operand, as far as length, strides and addresses allow.
- Without sums over rows: one-shot, the row in registers. One reduction: 16 elements per thread, one warp
  per row where that is enough. Moments or several reductions: 32 elements, the fewest warps that leave room
  for two blocks per multiprocessor.
- Sums over rows: persistent blocks with a pipeline; any spill is decisive, so that registers are estimated
  first. Longer rows: the same in a cluster of blocks, each with a slice.
- Wider rows: read again from the pipeline, then one pass for each level of reductions, from a copy in shared
  memory or from memory.
- Long rows without sums: with one exchange the registers of a cluster, with moments a pipeline (see `_long`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from normgen.counting import counted
from normgen.families.rows.launch.any_length import batches, copies, split, stream
from normgen.families.rows.launch.clusters import (
    added_segments,
    clusters,
    cooperative_floats,
    cooperative_images,
    cooperative_rows,
    full_pipelines,
    image_rows,
    light_rows,
    whole_rows,
)
from normgen.families.rows.launch.forms import form_of, in_hand
from normgen.families.rows.launch.legal import fit
from normgen.families.rows.launch.one_block import few_warps, light_blocks, one_shot, row_tiles, whole_blocks
from normgen.families.rows.launch.pipelines import ALONE, each_alone, long_rows, overlapped
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.sums import narrow_pipelines, sums
from normgen.launching.call import Call, once
from normgen.launching.family import Rejected
from normgen.launching.machine import Machine
from normgen.launching.support import Support
from normgen.package.kernels import RowsRecord

STAGED_VECTORS = 4096  # of a row, beyond which a single copy of one in shared memory is not enough
# Columns beyond which an exchange ahead of the row gains: of one sum of 2-byte elements, and of moments of
# 4-byte elements whose rows share weights (without weights registers have more room).
OVERLAPPED_LENGTH, OVERLAPPED_WHOLE = 98304, 49152
FEW_ROWS = 20  # per cluster, without sums over rows: fewer are one-shot, more a pipeline

Tier = Iterable[RowSchedule]


class Ways(NamedTuple):
    """How a kernel runs, whatever the number of its rows: `many`, or `few` where a segment has fewer than
    `below`."""

    many: RowSchedule
    few: RowSchedule
    below: int = 0

    def of(self, rows: int) -> RowSchedule:
        """The one for so many rows."""
        return self.few if rows < self.below else self.many


@once
def usual(kernel: RowsRecord, call: Call) -> Ways:
    """How a kernel runs by itself, in this call and in others like it."""
    return ways(shape_of(kernel, call), call.device)


def default(kernel: RowsRecord, call: Call) -> RowSchedule:
    """The schedule that a kernel takes by itself."""
    return usual(kernel, call).of(shape_of(kernel, call).rows)


def ways(shape: RowShape, device: Machine, rejected: list[Rejected] | None = None) -> Ways:
    """The candidates to run, of which nothing depends on how many rows the shape has. `rejected` gets the
    others that were looked at."""
    if shape.shared_rows:
        return _always(split(shape, device))
    if shape.splits and not shape.realigned:
        for many in batches(shape, device):
            if shape.shares:
                (few,) = batches(shape, device, few=True)
                return Ways(many, few, many.teams * many.batch)
        if shape.shares or not batches(shape, device):
            return _always(split(shape, device))
    found = find(shape, device, rejected)
    if found is None:
        return _always((split if shape.splits else stream)(shape, device))
    return _at_once(found, shape, device)


def _always(schedule: RowSchedule) -> Ways:
    return Ways(schedule, schedule)


def find(shape: RowShape, device: Machine, rejected: list[Rejected] | None = None) -> RowSchedule | None:
    """The one of the candidates in tiers, if one fits. (For many rows.)"""
    for tier in tiers(shape, device):
        found: list[tuple[float, RowSchedule]] = []
        for candidate in tier:
            if candidate.cluster > 1 and not device.clusters:
                continue
            outcome = fit(candidate, shape, device)
            if isinstance(outcome, Support):
                if rejected is not None:
                    rejected.append(Rejected(describe(candidate), outcome.reason))
                continue
            found.append((form_of(outcome).busy(outcome, shape), outcome))
            if found[-1][0] >= 1:
                break
        if found:
            _, best = max(found, key=lambda each: each[0])
            if rejected is not None:
                rejected += [Rejected(describe(s), _too_little(s, shape)) for _, s in found if s is not best]
            return best
    return None


def _at_once(s: RowSchedule, shape: RowShape, device: Machine) -> Ways:
    """The same thread groups without a pipeline, where they have few rows each: a result's bits are the
    same."""
    kept = s.form == "pipeline" and s.cluster > 1 and not s.reload
    if not kept or shape.columns:
        return _always(s)
    few = fit(replace(s, form="registers", stages=0, shared=0), shape, device)
    if isinstance(few, Support):
        return _always(s)
    below = FEW_ROWS * s.together(device.multiprocessors)
    return Ways(replace(s, paired=True), replace(few, few=True, paired=True), below)


def _too_little(s: RowSchedule, shape: RowShape) -> str:
    has = f"{counted(s.blocks, 'block')} of {s.threads} threads per multiprocessor"
    return f"{has} have {in_hand(s, shape) / 1000:.0f} KB of rows in flight, too little to keep memory busy"


def describe(s: RowSchedule) -> str:
    """A schedule in a few words."""
    reload = ", row re-read" if s.reload else ""
    reload += ", realigned loads" if s.realigned else ""
    where = "the pipeline" if form_of(s).pipelined else "shared memory"
    reload += f", {counted(s.places, 'vector')} per thread in {where}" if s.places else ""
    several = s.cluster * s.members
    cluster = f" in {several} blocks" if several > 1 else ""
    threads, elements = counted(s.team, "thread"), counted(s.elements, "element")
    return f"{s.form}, {threads} per row{cluster}, {elements} per thread{reload}"


# ------------------------------------------------------------------------------------------------ tiers


def tiers(shape: RowShape, device: Machine) -> Iterator[Tier]:
    """Candidates in order of preference; those of one tier differ in how busy they keep the memory."""
    together = each_alone(row_tiles(shape), narrow_pipelines(shape))
    if not shape.realigned:
        return chain(together, _tiers(shape, device))
    wide = replace(shape, vector=shape.realigned, whole_words=False, cooperates=False)
    realigned = ([replace(each, realigned=True) for each in tier] for tier in _tiers(wide, device))
    return realigned if shape.splits else chain(together, realigned, _tiers(shape, device))


def _tiers(shape: RowShape, device: Machine) -> Iterator[Tier]:
    if shape.piece:
        yield from each_alone(added_segments(shape))
        return
    if shape.columns and not shape.one_shot:
        yield from sums(shape, device)
        return
    yield from each_alone(cooperative_images(shape), image_rows(shape))
    if shape.one_shot:
        # (elements that are read one by one do better with few of them a thread)
        narrow = shape.vector * shape.narrowest < 4
        yield from each_alone(one_shot(shape)) if narrow else [one_shot(shape)]
        yield from each_alone(whole_rows(shape), cooperative_rows(shape))
        return
    # exponentials of long rows in pairs of blocks
    crowded = shape.held and shape.length > ALONE and not shape.whole
    if not crowded:
        yield from each_alone(few_warps(shape), light_blocks(shape), light_rows(shape))
        yield [*whole_blocks(shape), *one_shot(shape)]
    yield from each_alone(cooperative_floats(shape), _long(shape, device))
    if crowded:
        yield [*whole_blocks(shape), *one_shot(shape)]
    yield from each_alone(cooperative_rows(shape))


def _long(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """For long rows of a kernel without sums over rows, in registers or a pipeline.

    None where rows are read once, or where passes over copies in shared memory do as well: with one exchange,
    where rows are whole words. (Misaligned rows have no realigned vectors in such copies and would go by
    single elements.) With one exchange and with exponentials a cluster's registers do best. Moments pass over
    a row more often, and come through a pipeline, but not short ones of 4-byte elements.
    """
    if not shape.rewalked:
        return []
    held = clusters(shape)
    if shape.moments:
        pipelines = list(long_rows(shape))
        whole = shape.streams == 1 and shape.of_floats and shape.shared
        crowded = pipelines and pipelines[0].cluster >= 8 and pipelines[0].elements > 32
        ahead = whole and shape.length > OVERLAPPED_WHOLE
        overlap = overlapped(shape, device) if (crowded or ahead) and not shape.functions else []
        brief = [s for s in held if shape.whole and s.cluster <= 8 and s.threads == 256 and s.elements <= 32]
        return [*overlap, *brief, *pipelines] if ahead else [*brief, *overlap, *pipelines]
    copied = copies(shape, device) > (1 if shape.vectors > STAGED_VECTORS else 0)
    if copied and not shape.deep and shape.whole_words:
        return []
    plain = shape.walked <= 2 and not shape.held and not shape.functions
    overlap = overlapped(shape, device) if plain and shape.length > OVERLAPPED_LENGTH else []
    return [*overlap, *full_pipelines(shape), *held, *long_rows(shape)]
