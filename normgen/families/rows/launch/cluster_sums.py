"""Candidates for sums over rows in clusters of blocks: pipelines whose slices arrive as bulk copies, kept in
registers, read again, or exchanged ahead of the row before."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from normgen.families.rows.launch.rings import CLUSTERS, may_skew, pairs, ring, skewed_ring
from normgen.families.rows.launch.schedule import RowSchedule, RowShape, warps
from normgen.launching.facts import power_of_two
from normgen.launching.machine import Machine


class _Way(NamedTuple):
    """A pipeline in a cluster."""

    elements: int  # of a thread
    threads: int  # of a block
    reload: bool = False  # slices are read again
    late: bool = False  # what rows share is loaded late
    most: int = CLUSTERS[-1]  # blocks of a row, at most
    blocks: int = 0  # per multiprocessor
    bulk: bool = False  # slices arrive as bulk copies though they are kept in registers
    stages: int = 0
    rolling: bool = False  # the pipeline is refilled vector by vector


_KEPT_16, _KEPT_32 = _Way(16, 256), _Way(32, 256)
_AGAIN, _AGAIN_LONG = _Way(32, 256, reload=True), _Way(64, 256, reload=True)
_AGAIN_LATE, _AGAIN_LAST = _Way(32, 256, reload=True, late=True), _Way(32, 512, reload=True, late=True)
_BULK_24 = _Way(24, 192, blocks=2, bulk=True, stages=3)
_BULK_32 = _Way(32, 256, blocks=1, bulk=True, stages=3)
_BULK_WHOLE = _Way(32, 256, blocks=1, bulk=True, stages=2)
_BULK_PAIR = _Way(24, 192, most=2, blocks=2, bulk=True, stages=2)
_ROLLING = _Way(64, 256, reload=True, blocks=1, rolling=True)
# one stage, which is filled again as soon as it has been read
_ONE_44 = _Way(44, 384, reload=True, blocks=1, bulk=True, stages=1)
_ONE_64 = _Way(64, 256, reload=True, blocks=1, bulk=True, stages=1)
FOURTHS_LENGTH = 12288  # columns, at most, of a row in four blocks
PAIR_VECTORS = 896  # of a row with several sums, beyond which two small blocks share it
# of such a row, by the number of sums over rows
_FOURTHS = {
    1: (_Way(24, 96, most=4), _Way(32, 96, most=4)),
    2: (_Way(24, 96, most=4, bulk=True), _Way(32, 96, most=4, bulk=True)),
}
# by whether there are elements of 4 bytes, and the number of sums over rows
_SKEWED = {
    (False, 1): (_Way(16, 128, blocks=3),),
    (False, 2): (_Way(32, 128, most=8, blocks=2), _Way(32, 256, blocks=1)),
    (True, 1): (_Way(32, 128, blocks=1),),
    (True, 2): (_Way(32, 128, blocks=1),),
}


class _Short(NamedTuple):
    """A pipeline for rows of `above` to `length` columns of at most so many operands."""

    above: int
    length: int
    streams: int
    cluster: int  # blocks of a row
    elements: int  # of a thread
    blocks: int  # per multiprocessor
    stages: int = 0  # 0: skewed


# One sum, elements of 2 bytes. What lies between was slower, or not faster.
_SHORT = (
    _Short(1920, 2304, 2, 1, 24, 4, 3),
    _Short(3840, 4096, 3, 2, 24, 3, 3),
    _Short(4608, 5632, 2, 2, 16, 2),
    _Short(5632, 6144, 2, 4, 24, 4, 4),
    _Short(6656, 7168, 2, 4, 32, 4, 4),
    _Short(7168, 8192, 3, 4, 16, 3),
)
_WHOLE = _Short(1024, 7168, 8, 2, 8, 4)  # of 4-byte elements
_WHOLE_EVEN = 2048  # columns, where they are a power of two
_WHOLE_KEPT = 4608, 5120  # columns, of several sums, that are kept in registers


def _able(shape: RowShape, device: Machine) -> bool:
    """Whether rows may be summed over in clusters."""
    return device.clusters and bool(shape.exchanges) and not shape.narrow_moments


def short_sums(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Sums over rows of at most 8192 columns, of which one block would have uneven shares, or too few bytes
    on their way: small blocks, each with a multiprocessor's part of the pipeline."""
    if not (_able(shape, device) and shape.whole_words) or not shape.wide_columns or shape.cut:
        return []
    if shape.of_floats:
        return _short_whole(shape, device)
    if shape.walked > 2 * shape.streams or shape.wide_columns > 1:
        return []
    for way in _SHORT:
        if way.above < shape.length <= way.length and shape.streams <= way.streams:
            return _small_blocks(shape, device, way)
    return []


def _short_whole(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Elements of 4 bytes: pairs of blocks with 8 of them a thread, skewed. Slices of 8 KB and more whose
    rows are a power of two apart are slow, and long rows are kept in registers."""
    few = _WHOLE_EVEN if shape.wide_columns == 1 else 0
    uneven = shape.length & (shape.length - 1) or shape.length <= few
    kept = shape.wide_columns > 1 and _WHOLE_KEPT[0] < shape.length <= _WHOLE_KEPT[1]
    if _WHOLE.above < shape.length <= _WHOLE.length and uneven and not kept:
        return _small_blocks(shape, device, _WHOLE)
    if _WHOLE.length < shape.length <= 8192 and shape.streams == 2:
        return pairs(shape, device, 8)
    return []


def _small_blocks(shape: RowShape, device: Machine, way: _Short) -> list[RowSchedule]:
    vectors = -(-shape.length // (shape.vector * way.cluster))
    threads = warps(vectors, shape.items(way.elements))
    if way.stages:
        made = ring(shape, threads, way.cluster)
        return [replace(made, blocks=way.blocks, bulk=way.cluster > 1, stages=way.stages)]
    if not may_skew(shape, device):
        return []
    return [replace(skewed_ring(shape, threads, way.cluster, late=False), blocks=way.blocks)]


def fourths(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Rows of two operands of 2-byte elements that are a little too long for a block: in four of 96 threads,
    where skewed slices are uneven."""
    able = _able(shape, device) and shape.whole_words and shape.of_halves and shape.streams == 2
    if not able or not 0 < shape.wide_columns <= 2 or shape.length > FOURTHS_LENGTH:
        return []
    return [s for way in _FOURTHS[shape.wide_columns] for s in _in_cluster(shape, way)]


def skewed_sums(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Small blocks whose exchange runs ahead of the row before."""
    out = []
    if may_skew(shape, device):
        for way in _SKEWED.get((shape.whole > 0, min(shape.wide_columns, 2)), ()):
            if cluster := _blocks(shape, way):
                vectors = -(-shape.length // (shape.vector * cluster))
                threads = warps(vectors, shape.items(way.elements))
                made = [skewed_ring(shape, threads, cluster, late) for late in shape.lates]
                out += [replace(each, blocks=way.blocks) for each in made]
    return out


def cluster_rings(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Sums over long rows: the slices of a cluster's blocks arrive as bulk copies, or thread by thread, and
    are kept in registers or read again in every pass; of the longest rows from a pipeline that is refilled
    vector by vector."""
    if not _able(shape, device):
        return []
    return [s for way in _ways(shape) for s in _in_cluster(shape, way)]


def wide_pair(shape: RowShape, device: Machine) -> list[RowSchedule]:
    """Two sums over rows of 2-byte elements that fill a block: in two small ones."""
    crowded = shape.wide_columns > 1 and shape.walked <= 4 and not shape.whole and shape.whole_words
    if not (_able(shape, device) and crowded) or shape.vectors <= PAIR_VECTORS:
        return []
    return _in_cluster(shape, _BULK_PAIR)


def _in_cluster(shape: RowShape, way: _Way) -> list[RowSchedule]:
    cluster = _blocks(shape, way)
    if not cluster or (way.rolling and not shape.rolls):
        return []
    stages, late = 2 if way.reload and shape.whole_words else 0, way.late and bool(shape.shared)
    made = ring(shape, way.threads, cluster, way.reload, late, stages)
    if way.rolling:
        # (fewer vectors of 2-byte elements take longer so)
        few = not shape.of_floats and made.elements < way.elements
        return [] if few else [replace(made, blocks=1, bulk=False, stages=1, places=2 * made.items)]
    return [replace(made, blocks=way.blocks, bulk=True, stages=way.stages) if way.bulk else made]


def _blocks(shape: RowShape, way: _Way) -> int:
    """The blocks of a row, or 0 where they are too few or too many."""
    chunk = shape.items(way.elements) * shape.vector * way.threads
    cluster = power_of_two(-(-shape.length // chunk))
    return cluster if cluster in CLUSTERS and cluster <= way.most else 0


def _ways(shape: RowShape) -> tuple[_Way, ...]:
    whole = shape.whole and shape.wide_columns
    if not shape.whole_words:
        return (*((_KEPT_16, _KEPT_32) if whole else (_KEPT_32, _KEPT_16)), _AGAIN, _AGAIN_LAST)
    if whole:
        longest = _ONE_44 if shape.wide_columns == 1 else _ONE_64
        return (_BULK_WHOLE, _AGAIN_LATE, _KEPT_16, _KEPT_32, _ROLLING, longest, _AGAIN_LAST)
    kept = (_BULK_24, _BULK_32) if shape.wide_columns else ()
    return (*kept, _KEPT_32, _KEPT_16, _ROLLING, _AGAIN_LONG, _AGAIN_LAST)
