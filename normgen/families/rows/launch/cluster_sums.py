"""Candidates for sums over rows in small blocks, or in clusters of blocks: pipelines whose slices arrive as
bulk copies, kept in registers, read again, or exchanged ahead of the row before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from normgen.families.rows.launch.pipelines import EITHER, Way, in_way, pairs
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.launching.machine import Machine


class _Short(NamedTuple):
    """The way of rows of `above` to `length` columns of at most so many operands."""

    above: int
    length: int
    streams: int
    sums: int  # over rows
    way: Way


# Elements of 2 bytes, a short row in one block: two sums in nearly 512 threads, or four blocks of two rows;
# one sum in one block per row. Lengths between take the usual way.
_DEALT = (
    _Short(1152, 1536, 2, 1, Way(threads=96, cluster=1, blocks=6, stages=2)),
    _Short(512, 960, 2, 2, Way(threads=64, cluster=1, teams=2, blocks=4, stages=2)),
    _Short(1024, 1536, 2, 2, Way(threads=96, cluster=1, teams=5, blocks=1, stages=2)),
    _Short(2048, 2560, 2, 2, Way(threads=160, cluster=1, teams=3, blocks=1, stages=2)),
    _Short(3072, 3584, 2, 2, Way(threads=224, cluster=1, teams=2, blocks=1, stages=2)),
    _Short(3584, 4096, 2, 2, Way(threads=256, cluster=1, teams=2, blocks=1, stages=2)),
    _Short(5376, 6144, 2, 2, Way(threads=192, cluster=1, teams=2, reload=True, blocks=1, stages=2)),
)
# One sum in small blocks. Lengths between take the usual way.
_SMALL = (
    _Short(1920, 2304, 2, 1, Way(24, cluster=1, blocks=4, stages=3)),
    _Short(3840, 4096, 3, 1, Way(24, cluster=2, blocks=3, stages=3, bulk=True)),
    _Short(4608, 5632, 2, 1, Way(16, cluster=2, blocks=2, overlapped=True)),
    _Short(5632, 6144, 2, 1, Way(24, cluster=4, blocks=4, stages=4, bulk=True)),
    _Short(6656, 7168, 2, 1, Way(32, cluster=4, blocks=4, stages=4, bulk=True)),
    _Short(7168, 8192, 3, 1, Way(16, cluster=4, blocks=3, overlapped=True)),
)
_WHOLE = 1024, 7168  # columns of 4-byte elements
_WHOLE_WAY = Way(8, cluster=2, blocks=4, overlapped=True)
_WHOLE_EVEN = 2048  # columns, where they are a power of two
_WHOLE_KEPT = 4608, 5120  # columns, of several sums, that are kept in registers
FOURTHS_LENGTH = 12288  # columns, at most, of a row in four blocks
PAIR_VECTORS = 896  # of a row with several sums, beyond which two small blocks share it
_PAIR = Way(24, 192, most=2, blocks=2, bulk=True, stages=2)
# Of rows exchanged ahead, by whether there are elements of 4 bytes, and the number of sums over rows.
_OVERLAPPED = {
    (False, 1): (Way(16, 128, blocks=3),),
    (False, 2): (Way(32, 128, most=8, blocks=2), Way(32, 256, blocks=1)),
    (True, 1): (Way(32, 128, blocks=1),),
    (True, 2): (Way(32, 128, blocks=1),),
}
_KEPT_16, _KEPT_32 = Way(16, 256), Way(32, 256)
_BULK = (
    Way(24, 192, blocks=2, bulk=True, stages=3),
    Way(32, 256, blocks=1, bulk=True, stages=3),
)
_BULK_WHOLE = Way(32, 256, blocks=1, bulk=True, stages=2)
_AGAIN = Way(32, 256, reload=True)
_AGAIN_LATE = Way(32, 256, reload=True, late=(True,), blocks=1, bulk=True, stages=2)
_AGAIN_LONG = Way(64, 256, reload=True, blocks=1, bulk=True, stages=2)
_AGAIN_LAST = Way(32, 512, reload=True, late=(True,), blocks=1, bulk=True, stages=2)
_REFILLED = Way(64, 256, reload=True, refilled=True)
# one stage, which is filled again as soon as it has been read
_ONE_44 = Way(44, 384, reload=True, blocks=1, bulk=True, stages=1)
_ONE_64 = Way(64, 256, reload=True, blocks=1, bulk=True, stages=1)


def _able(shape: RowShape, device: Machine) -> bool:
    """Whether rows may be summed over in clusters."""
    return device.clusters and bool(shape.exchanges) and not shape.narrow_moments


def _in_ways(shape: RowShape, device: Machine, ways: Iterable[Way]) -> list[RowSchedule]:
    return [made for way in ways for made in in_way(shape, device, way)]


def short_sums(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Sums over rows of at most 8192 columns, of which one block of 256 threads would have uneven shares, or
    too few bytes on their way. With elements of 4 bytes long rows are kept in registers; slices of 8 KB and
    more whose rows are a power of two apart are slow."""
    if not (shape.exchanges and shape.whole_words and shape.wide_columns) or shape.cut:
        return []
    sums, able = shape.wide_columns, _able(shape, device)
    if not (able and shape.of_floats):
        dealt = _DEALT if shape.of_halves and shape.streams == 2 and not shape.functions else ()
        small = _SMALL if able and shape.walked <= 2 * shape.streams else ()
        return [made for table in (dealt, small) for made in _of_length(shape, device, table)]
    uneven = shape.length & (shape.length - 1) or shape.length <= _WHOLE_EVEN * (sums == 1)
    kept = sums > 1 and _WHOLE_KEPT[0] < shape.length <= _WHOLE_KEPT[1]
    if _WHOLE[0] < shape.length <= _WHOLE[1] and uneven and not kept:
        return in_way(shape, device, _WHOLE_WAY)
    return pairs(shape, 8) if _WHOLE[1] < shape.length <= 8192 and shape.streams == 2 else []


def _of_length(shape: RowShape, device: Machine, table: Iterable[_Short]) -> list[RowSchedule]:
    """In the way of rows of such a length."""
    for above, length, streams, sums, way in table:
        if above < shape.length <= length and shape.streams <= streams and shape.wide_columns == sums:
            return in_way(shape, device, way)
    return []


def fourths(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Rows of two operands of 2-byte elements that are a little too long for a block: in four of 96 threads,
    where overlapped slices are uneven."""
    able = _able(shape, device) and shape.whole_words and shape.of_halves and shape.streams == 2
    if not able or not 0 < shape.wide_columns <= 2 or shape.length > FOURTHS_LENGTH:
        return []
    bulk = shape.wide_columns > 1
    return _in_ways(shape, device, (Way(elements, 96, most=4, bulk=bulk) for elements in (24, 32)))


def overlapped_sums(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Small blocks whose exchange runs ahead of the row before."""
    ways = _OVERLAPPED.get((shape.whole > 0, min(shape.wide_columns, 2)), ())
    return _in_ways(shape, device, (way._replace(late=EITHER, overlapped=True) for way in ways))


def wide_pair(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Two sums over rows of 2-byte elements that fill a block: in two small ones."""
    crowded = shape.wide_columns > 1 and shape.walked <= 4 and not shape.whole and shape.whole_words
    able = _able(shape, device) and crowded and shape.vectors > PAIR_VECTORS
    return in_way(shape, device, _PAIR) if able else []


def cluster_pipelines(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Sums over long rows: the slices of a cluster's blocks arrive as bulk copies, or thread by thread, and
    are kept in registers or read again in every pass; of the longest rows from a pipeline that is refilled
    vector by vector."""
    if not _able(shape, device):
        return []
    whole, kept = shape.whole and shape.wide_columns, (_KEPT_32, _KEPT_16)
    if not shape.whole_words:
        return _in_ways(shape, device, (*(reversed(kept) if whole else kept), _AGAIN, _AGAIN_LAST))
    if not whole:
        first = _BULK if shape.wide_columns else ()
        return _in_ways(shape, device, (*first, *kept, _REFILLED, _AGAIN_LONG, _AGAIN_LAST))
    longest = _ONE_44 if shape.wide_columns == 1 else _ONE_64
    ways = (_BULK_WHOLE, _AGAIN_LATE, *reversed(kept), _REFILLED, longest, _AGAIN_LAST)
    return _in_ways(shape, device, ways)
