"""What a kernel of the rows family moves, and how fast: by which strategies are compared."""

from __future__ import annotations

from collections import Counter
from math import gcd, prod, sqrt

from normgen.dtypes import DTYPES
from normgen.families.rows.launch.blocks import RowBlocks
from normgen.launching.accumulating import BIT_WORD, met_name, partial_name, words_name
from normgen.launching.call import WORD
from normgen.launching.machine import LINE, SECTOR

_SHARE = 1.2
# What rows in pieces reach of what their sectors say: those of 20 to 80 bytes take 1.2 to 1.5 times that, of
# 32 twice that; where pieces are added up besides, 1.0 to 1.2 times.
_PIECES, _PIECES_ADDED = 0.7, 0.9
_START = 2.0  # microseconds that a block with a ring or sums of its own takes to begin and end
_SHIFTED_EFFICIENCY = 0.9
# Of rings in clusters: where the rows of a segment are apart 0.7 to 0.9; else the model with 0.8 was 1.2 to
# 1.5 times what most of 350 such took.
_CLUSTER_EFFICIENCY, _CLUSTER_ROWS = 0.8, 0.95
# Of spread rows, with blocks of so many at once: those that wait read nothing.
_SPREAD_EFFICIENCY, _SPREAD_TOGETHER = 0.8, 2.7
_ATOM, _SPREAD_ATOMS = 64, 0.88  # bytes that memory delivers together; of spread rows in pieces of as many
_WIDTH_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.3}


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
        found[met_name(kernel)] += 2 * rows.met * DTYPES["f32"].bytes
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
    # a multiprocessor alone takes little more than its share of the memory's speed
    busy = _SHARE * min(1.0, rows.blocks * s.cluster * s.members / call.multiprocessors)
    # rows of a segment are apart, and their neighbours in a line are another block's
    apart = rows.kernel.segment or rows.kernel.pieces
    lines = _fetched(rows, call.size(rows.kernel.piece) * widest) if apart else 1.0
    access = WORD if form.by_words else min(WORD, s.vector * widest)
    speed = min(1.0, busy, in_flight / call.device.in_flight) * _WIDTH_EFFICIENCY[access] * lines
    speed *= _SHIFTED_EFFICIENCY if s.shifted else 1.0
    if s.cluster > 1 and form.in_order:
        speed *= _CLUSTER_EFFICIENCY if apart else _CLUSTER_ROWS
    if s.members > 1:
        at_once = s.blocks * call.multiprocessors / s.members
        return speed * _SPREAD_EFFICIENCY * sqrt(min(1.0, at_once / _SPREAD_TOGETHER))
    once = form.streams and all(o.passes <= 1 for o in wide)
    if not rows.kernel.accumulates and (once or form.at_once):
        return speed
    moving = sum(moved(rows).values()) / (call.device.bandwidth * max(speed, 1e-3))
    return speed * moving / (moving + _START * rows.resident / together) if moving else speed


def _fetched(rows: RowBlocks, run: int) -> float:
    """The share of what is fetched that belongs to the row, in runs of so many bytes. What is beside a
    piece of a row is in the cache when another team reads it."""
    if run >= LINE:
        return 1.0
    if rows.schedule.members > 1 and run >= _ATOM:
        return _SPREAD_ATOMS
    if not rows.kernel.pieces:
        return run / LINE
    side_by_side = run / (run + SECTOR - gcd(run, SECTOR))  # in sectors
    return (_PIECES_ADDED if rows.kernel.adds_pieces else _PIECES) * side_by_side
