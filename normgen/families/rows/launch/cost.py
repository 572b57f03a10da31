"""What a kernel of the rows family moves."""

from __future__ import annotations

from collections import Counter
from math import prod

from normgen.dtypes import DTYPES
from normgen.families.rows.launch.blocks import RowBlocks
from normgen.launching.accumulating import BIT_WORD, partial_name, published_name, words_name


def moved(rows: RowBlocks) -> dict[str, int]:
    """Bytes by array. What rows share is counted once a launch, since it stays in the cache."""
    call, kernel, streams = rows.call, rows.kernel, rows.form.streams
    found: Counter[str] = Counter()
    for o in call.read(kernel.reads):
        whole = o.inner == kernel.piece and set(o.kept) >= set(kernel.kept)
        again = streams and not rows.schedule.staged and (whole or rows.launches > 1)
        passes = o.passes if o.inner else rows.launches
        found[o.tensor] += (passes if again else 1) * call.bytes_of(o.tensor)
    for o in call.present((*kernel.writes, *kernel.finals, *call.read(kernel.final_reads))):
        found[o.tensor] += call.bytes_of(o.tensor)
    if rows.words:
        found[words_name(kernel)] += 3 * rows.words * BIT_WORD
    if rows.published:
        found[published_name(kernel)] += 2 * rows.published * DTYPES["f32"].bytes
    for column in rows.columns if rows.leaves else ():
        floats = 2 * prod(rows.partials_of(column))
        if streams and column.wide:
            # Too long for registers, it is in memory: read and written again by each further row, and
            # moments once more when they are settled.
            settled = rows.blocks if column.op == "moments" else 0
            visits = rows.rows * rows.segments - rows.blocks + settled
            floats += 2 * visits * column.registers * rows.length
        found[partial_name(kernel, column)] += floats * DTYPES["f32"].bytes
    return dict(found)
