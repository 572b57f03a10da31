"""A kernel of the rows family in one call, as far as the choice of its schedule depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from normgen.families.rows.launch.schedule import RowShape
from normgen.launching.accumulating import wanted_columns
from normgen.launching.call import WORD, Call, once, width_of_parts
from normgen.package.kernels import RowsRecord
from normgen.package.operands import OperandRecord

# Vectors, and elements, of a misaligned row for realigned loads, at least: shorter ones are mostly ends.
_REALIGNED_FROM, _REALIGNED_ELEMENTS = 8, 64


class _Operands(NamedTuple):
    """The operands and results that a row has elements of."""

    walked: list[OperandRecord]
    shared: list[OperandRecord]  # by all rows
    partial: list[OperandRecord]  # with some of the row's axes only
    stores: list[OperandRecord]

    @property
    def wide(self) -> list[OperandRecord]:
        """Those that have an element for each of the row."""
        return [*self.walked, *self.shared]


# What the record itself says.
_OF_KERNEL = (
    *("exchanges", "moments", "functions", "held", "splits"),
    *("one_shot", "tells", "refills", "launches"),
)


@once
def shape_of(kernel: RowsRecord, call: Call) -> RowShape:
    """What the choice of a schedule depends on."""
    length, operands = call.size(kernel.inner), _operands(kernel, call)
    walked, _, partial, stores = operands
    last = [max(kernel.inner.index(axis) for axis in o.inner) for o in partial]
    spans = [call.size(kernel.inner[k + 1 :]) for k in last if k + 1 < len(kernel.inner)]
    vector = _vector(kernel, call, operands, spans)
    widest = WORD // min(map(call.itemsize, [*operands.wide, *stores]), default=WORD)
    realigned = (
        vector * 2 < widest
        and not partial
        and not kernel.one_shot
        and length >= max(_REALIGNED_ELEMENTS, _REALIGNED_FROM * widest)
        and call.aligned(operands.shared)
        and call.apart(walked, length)
    )
    parts = sum(span % vector == 0 for span in spans)
    return RowShape(
        length=length,
        vector=vector,
        **_bytes(kernel, call, operands),
        **_accumulated(kernel, call),
        **{name: getattr(kernel, name) for name in _OF_KERNEL},
        in_pieces=bool(kernel.pieces),
        run=call.size(kernel.piece) if kernel.pieces else 0,
        piece=call.size(kernel.piece) // vector if kernel.adds_pieces else 0,
        whole_words=all(vector * call.itemsize(o) % WORD == 0 for o in walked),
        rows=call.size(kernel.kept) // call.size(kernel.segment),
        segments=call.size(kernel.segment),
        parts=parts,
        picked=len(partial) - parts,
        realigned=widest if realigned else 0,
        streams=len(walked),
        cooperates=kernel.cooperative > 0,
        word_alignable=_word_alignable(kernel, call, [*walked, *stores]),
        row_tile=_row_tile(kernel, call, walked, stores) if vector < widest else 0,
    )


def _operands(kernel: RowsRecord, call: Call) -> _Operands:
    of_rows = [o for o in call.read(kernel.reads) if o.inner]
    wide = [o for o in of_rows if o.inner == kernel.piece]
    # (what all pieces of a row share is little, whether rows share it or not)
    walk = set(kernel.pieces) or set(kernel.kept) - set(kernel.segment)
    walked = [o for o in wide if not walk.isdisjoint(o.kept)]
    return _Operands(
        walked,
        [o for o in wide if o not in walked],
        [o for o in of_rows if o not in wide],
        [o for o in call.present(kernel.writes) if o.inner],
    )


def _vector(kernel: RowsRecord, call: Call, operands: _Operands, spans: list[int]) -> int:
    """Elements of the widest naturally aligned vector."""
    aligned = call.vector_width([*operands.wide, *operands.stores], call.size(kernel.piece))
    vector = width_of_parts(aligned, spans)
    while kernel.part and not kernel.pieces and call.size(kernel.inside) % vector:
        vector //= 2  # each within one part of the row
    moved = list(map(call.itemsize, (*operands.walked, *operands.stores)))
    if moved and min(moved) == 1 < max(moved):
        # two words of a thread share a sector, so that half of every access is fetched, or written, twice
        vector = min(vector, WORD // 2)
    return vector


def _bytes(kernel: RowsRecord, call: Call, operands: _Operands) -> dict[str, Any]:
    """What moves for an element of a row."""
    walked, shared, _, stores = operands

    def size(found: list[OperandRecord]) -> int:
        return sum(map(call.itemsize, found))

    return {
        "walked": size(walked),
        "shared": size(shared),
        # (the blocks of a cluster would each have to take the same row)
        "rewalked": 0 if kernel.tells else size([o for o in walked if o.passes > 1]),
        "again": sum((o.passes - 1) * call.itemsize(o) for o in walked),
        "stored": size([o for o in stores if o.inner == kernel.piece]),
        "whole": sum(call.itemsize(o) == 4 for o in operands.wide),
        "narrowest": min(map(call.itemsize, walked), default=4),
        "quantises": any(call.itemsize(o) == 1 for o in stores),
    }


def _accumulated(kernel: RowsRecord, call: Call) -> dict[str, Any]:
    """What is accumulated over rows."""
    columns = wanted_columns(kernel, call)
    wide = [c for c in columns if c.wide]
    return {
        "wide_columns": sum(c.registers for c in wide),
        "gathered": max((c.gathered for c in wide), default=0),
        "columns": len(kernel.columns) if kernel.accumulates else 0,
        "folded": call.size(kernel.folded) if kernel.folded else 0,
        "sums": len(columns) if kernel.part else 0,
        "narrow_moments": any(not c.wide and c.op == "moments" for c in columns),
    }


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
