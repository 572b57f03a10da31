"""What a kernel of the rows family moves, and how fast: by which strategies are compared."""

from __future__ import annotations

from collections import Counter
from math import gcd, prod, sqrt

from normgen.dtypes import DTYPES
from normgen.families.rows.launch.blocks import RowBlocks
from normgen.launching.accumulating import BIT_WORD, partial_name, published_name, words_name
from normgen.launching.call import WORD
from normgen.launching.machine import LINE, SECTOR

# Fractions of copy bandwidth. Evidence: bench/evidence/rules_seam.csv, groups.csv and rows_long.csv.
_SHARE = 1.2  # of a multiprocessor that runs alone, over its part of the bandwidth
_PIECES, _PIECES_ADDED = 0.7, 0.9  # of rows in segments, beside what their sectors say; summed over segments
_REALIGNED_EFFICIENCY = 0.9  # of realigned loads
_CLUSTER_EFFICIENCY, _CLUSTER_ROWS = 0.8, 0.95  # of pipelines in clusters: rows of a segment apart, or not
# Of rows split over blocks; and how many such rows must be in flight: blocks that wait read nothing.
_COOPERATIVE_EFFICIENCY, _COOPERATIVE_TOGETHER = 0.8, 2.7
_ATOM, _COOPERATIVE_ATOMS = 64, 0.88  # bytes that memory delivers together; split rows in segments of as many
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.3}  # by bytes per access
_START = 2.0  # microseconds that a block with a pipeline or sums of its own takes to begin and end


def moved(rows: RowBlocks) -> dict[str, int]:
    """Bytes by array. What rows share is counted once, since it stays in the cache."""
    call, kernel, streams = rows.call, rows.kernel, rows.form.streams
    found: Counter[str] = Counter()
    for o in call.read(kernel.reads):
        whole = o.inner == kernel.piece and set(o.kept) >= set(kernel.kept)
        again = streams and not rows.schedule.staged and whole
        found[o.tensor] += (o.passes if again else 1) * call.bytes_of(o.tensor)
    for o in call.present((*kernel.writes, *kernel.finals, *call.read(kernel.final_reads))):
        found[o.tensor] += call.bytes_of(o.tensor)
    if rows.words:
        found[words_name(kernel)] += 3 * rows.words * BIT_WORD
        found[published_name(kernel)] += 2 * rows.published * DTYPES["f32"].bytes
    for column in rows.columns:
        floats = 2 * prod(rows.partials_of(column))
        if streams and column.wide:
            # Too long for registers, it is in memory: read and written again by each further row, and
            # moments once more when they are settled.
            settled = rows.blocks if column.op == "moments" else 0
            visits = rows.rows * rows.segments - rows.blocks + settled
            floats += 2 * visits * column.registers * rows.length
        found[partial_name(kernel, column)] += floats * DTYPES["f32"].bytes
    return dict(found)


def efficiency(rows: RowBlocks) -> float:
    """By bytes in flight, width of accesses, lines that are read in part, and waves of short blocks."""
    s, form, call = rows.schedule, rows.form, rows.call
    wide = [o for o in call.read(rows.kernel.reads) if o.inner == rows.kernel.piece and o.inner]
    each = sum(map(call.itemsize, wide)) or 1
    widest = max(map(call.itemsize, wide), default=16)
    together = s.together(call.multiprocessors)
    resident = min(rows.blocks, together)
    in_flight = resident * s.threads * s.cluster * s.members * form.deep(s) * s.vector * each
    # a multiprocessor alone takes little more than its part of the bandwidth
    busy = _SHARE * min(1.0, rows.blocks * s.cluster * s.members / call.multiprocessors)
    # rows of a segment are apart, and their neighbours in a line are another block's
    apart = rows.kernel.segment or rows.kernel.pieces
    lines = _fetched(rows, call.size(rows.kernel.piece) * widest) if apart else 1.0
    access = WORD if form.by_words else min(WORD, s.vector * widest)
    speed = min(1.0, busy, in_flight / call.device.in_flight) * _WIDTH_EFFICIENCY[access] * lines
    speed *= _REALIGNED_EFFICIENCY if s.realigned else 1.0
    if s.cluster > 1 and form.in_order:
        speed *= _CLUSTER_EFFICIENCY if apart else _CLUSTER_ROWS
    if s.members > 1:
        at_once = s.blocks * call.multiprocessors / s.members
        return speed * _COOPERATIVE_EFFICIENCY * sqrt(min(1.0, at_once / _COOPERATIVE_TOGETHER))
    once = form.streams and all(o.passes <= 1 for o in wide)
    if not rows.kernel.accumulates and (once or form.at_once):
        return speed
    moving = sum(moved(rows).values()) / (call.device.bandwidth * max(speed, 1e-3))
    return speed * moving / (moving + _START * rows.resident / together) if moving else speed


def _fetched(rows: RowBlocks, run: int) -> float:
    """The fraction of fetched bytes that belong to the row, in runs of so many bytes. What lies beside a
    segment of a row is in L2 when another thread group reads it."""
    if run >= LINE:
        return 1.0
    if rows.schedule.members > 1 and run >= _ATOM:
        return _COOPERATIVE_ATOMS
    if not rows.kernel.pieces:
        return run / LINE
    side_by_side = run / (run + SECTOR - gcd(run, SECTOR))  # in sectors
    return (_PIECES_ADDED if rows.kernel.adds_pieces else _PIECES) * side_by_side
