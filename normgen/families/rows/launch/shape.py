"""A kernel of the rows family in one call, as far as the choice of its schedule depends on it."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.families.rows.launch.schedule import RowShape
from normgen.launching.accumulating import wanted_columns
from normgen.launching.call import WORD, Call, once, width_of_parts
from normgen.package.kernels import RowsRecord
from normgen.package.operands import OperandRecord

# Vectors, and elements, of a misaligned row for realigned loads, at least: shorter ones are mostly ends.
_REALIGNED_FROM, _REALIGNED_ELEMENTS = 8, 64


@once
def shape_of(kernel: RowsRecord, call: Call) -> RowShape:
    """What the choice of a schedule depends on."""
    length = call.size(kernel.inner)
    reads = call.read(kernel.reads)
    wide = [o for o in reads if o.inner == kernel.piece and o.inner]
    # (what all pieces of a row share is little, whether rows share it or not)
    walk = kernel.pieces or [a for a in kernel.kept if a not in kernel.segment]
    walked = [o for o in wide if any(a in walk for a in o.kept)]
    columns = wanted_columns(kernel, call)
    stores = [o for o in call.present(kernel.writes) if o.inner]
    partial = [o for o in reads if o.inner and o not in wide]
    last = [max(kernel.inner.index(axis) for axis in o.inner) for o in partial]
    spans = [call.size(kernel.inner[k + 1 :]) for k in last if k + 1 < len(kernel.inner)]

    vector = width_of_parts(call.vector_width([*wide, *stores], call.size(kernel.piece)), spans)
    while kernel.part and not kernel.pieces and call.size(kernel.inside) % vector:
        vector //= 2  # each within one part of the row
    moved = [call.itemsize(o) for o in (*walked, *stores)]
    if moved and min(moved) == 1 < max(moved):
        # two words of a thread share a sector, so that half of every access is fetched, or written, twice
        vector = min(vector, WORD // 2)

    widest = WORD // min(map(call.itemsize, [*wide, *stores]), default=WORD)
    realignable = (
        vector * 2 < widest
        and not partial
        and not kernel.one_shot
        and length >= max(_REALIGNED_ELEMENTS, _REALIGNED_FROM * widest)
        and call.aligned([o for o in wide if o not in walked])
        and call.apart(walked, length)
    )

    def size(found: list[OperandRecord]) -> int:
        return sum(map(call.itemsize, found))

    return RowShape(
        length=length,
        vector=vector,
        walked=size(walked),
        shared=size([o for o in wide if o not in walked]),
        # (the blocks of a cluster would each have to take the same row)
        rewalked=0 if kernel.tells else size([o for o in walked if o.passes > 1]),
        whole=sum(call.itemsize(o) == 4 for o in wide),
        wide_columns=sum(c.registers for c in columns if c.wide),
        gathered=max((c.gathered for c in columns if c.wide), default=0),
        columns=len(kernel.columns) if kernel.accumulates else 0,
        folded=call.size(kernel.folded) if kernel.folded else 0,
        sums=len(columns) if kernel.part else 0,
        one_shot=kernel.one_shot,
        tells=kernel.tells,
        in_pieces=bool(kernel.pieces),
        run=call.size(kernel.piece) if kernel.pieces else 0,
        piece=call.size(kernel.piece) // vector if kernel.adds_pieces else 0,
        narrow_moments=any(not c.wide and c.op == "moments" for c in columns),
        whole_words=all(vector * call.itemsize(o) % WORD == 0 for o in walked),
        exchanges=kernel.exchanges,
        moments=kernel.moments,
        functions=kernel.functions,
        held=kernel.held,
        splits=kernel.splits,
        narrowest=min(map(call.itemsize, walked), default=4),
        rows=call.size(kernel.kept) // call.size(kernel.segment),
        quantises=any(call.itemsize(o) == 1 for o in stores),
        parts=sum(span % vector == 0 for span in spans),
        picked=len(partial) - sum(span % vector == 0 for span in spans),
        realigned=widest if realignable else 0,
        streams=len(walked),
        refills=kernel.refills,
        cooperates=kernel.cooperative > 0,
        launches=kernel.launches,
        word_alignable=_word_alignable(kernel, call, [*walked, *stores]),
        segments=call.size(kernel.segment),
        stored=size([o for o in stores if o.inner == kernel.piece]),
        again=sum((o.passes - 1) * call.itemsize(o) for o in walked),
        row_tile=_row_tile(kernel, call, walked, stores) if vector < widest else 0,
    )


def _word_alignable(kernel: RowsRecord, call: Call, moving: list[OperandRecord]) -> bool:
    """Whether the rows of a call may be word-aligned, which takes all that the kernel may read."""
    able = any(form.form == "word_aligned" for form in kernel.forms)
    return able and len(call.read(kernel.reads)) == len(kernel.reads) and call.in_step(moving, kernel.kept)


def _row_tile(
    kernel: RowsRecord, call: Call, walked: list[OperandRecord], stores: list[OperandRecord]
) -> int:
    """How many places a block needs to move several rows of a call together, 0 where it cannot. (What
    operands have for several of them does not move.)"""

    def whole(operands: Iterable[OperandRecord]) -> list[OperandRecord]:
        return [o for o in operands if o.inner == kernel.inner and set(o.kept) >= set(kernel.kept)]

    able = kernel.kept and any(form.form == "row_tile" for form in kernel.forms)
    if not (able and whole(walked)):
        return 0
    moving = [*whole(walked), *stores]
    narrowest = call.itemsize(moving[0]) == min(map(call.itemsize, walked))
    if not (narrowest and call.side_by_side(moving, kernel.kept, call.size(kernel.inner))):
        return 0
    # operands and results that are absent have their places too
    return max(len(whole(kernel.reads)), len(whole(kernel.writes)))
