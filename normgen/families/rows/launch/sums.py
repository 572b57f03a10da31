"""Candidates for sums over rows in clusters of blocks: rings whose slices arrive as bulk copies, kept in
registers, read again, or exchanged ahead of the row before."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from normgen.families.rows.launch.clusters import CLUSTERS, lates, may_skew, pairs, ring, skewed_ring
from normgen.families.rows.launch.schedule import (
    Schedule,
    Shape,
    at_least_one,
    power_of_two,
    warps,
)
from normgen.launching.machine import Machine


class _Way(NamedTuple):
    """A ring in a cluster: elements of a thread, threads of a block, whether slices are read again and what
    rows share is loaded late, how many blocks a row may have, and a multiprocessor; whether slices arrive as
    bulk copies though they are kept in registers, and how many are in the ring; or whether that is refilled
    vector by vector."""

    elements: int
    threads: int
    reload: bool = False
    late: bool = False
    most: int = CLUSTERS[-1]
    blocks: int = 0
    bulk: bool = False
    stages: int = 0
    rolling: bool = False


_KEPT_16, _KEPT_32 = _Way(16, 256), _Way(32, 256)
_AGAIN, _AGAIN_LONG = _Way(32, 256, reload=True), _Way(64, 256, reload=True)
_AGAIN_LATE, _AGAIN_LAST = _Way(32, 256, reload=True, late=True), _Way(32, 512, reload=True, late=True)
_BULK_24, _BULK_32 = (
    _Way(24, 192, blocks=2, bulk=True, stages=3),
    _Way(32, 256, blocks=1, bulk=True, stages=3),
)
_BULK_WHOLE = _Way(32, 256, blocks=1, bulk=True, stages=2)
_BULK_PAIR = _Way(24, 192, most=2, blocks=2, bulk=True, stages=2)
_ROLLING = _Way(64, 256, reload=True, blocks=1, rolling=True)
FOURTHS_LENGTH = 12288  # columns, at most
# of a row in four blocks, by the number of sums over rows
_FOURTHS = {
    1: (_Way(24, 96, most=4), _Way(32, 96, most=4)),
    2: (_Way(24, 96, most=4, bulk=True), _Way(32, 96, most=4, bulk=True)),
}
# a ring of one slice, which is filled again as soon as it has been read
_ONE_44 = _Way(44, 384, reload=True, blocks=1, bulk=True, stages=1)
_ONE_64 = _Way(64, 256, reload=True, blocks=1, bulk=True, stages=1)
# by whether there are elements of 4 bytes, and the number of sums over rows
_SKEWED = {
    (False, 1): (_Way(16, 128, blocks=3),),
    (False, 2): (_Way(32, 128, most=8, blocks=2), _Way(32, 256, blocks=1)),
    (True, 1): (_Way(32, 128, blocks=1),),
    (True, 2): (_Way(32, 128, blocks=1),),
}


class _Short(NamedTuple):
    """A ring for rows of `above` to `length` columns of at most so many operands: blocks of a row, elements
    of a thread, blocks a multiprocessor, and slices in the ring, or 0 where it is skewed."""

    above: int
    length: int
    streams: int
    cluster: int
    elements: int
    blocks: int
    stages: int = 0


# One sum, elements of 2 bytes. us, beside one block or two with 16 elements a thread: 2048 columns 102 (108),
# 2304 114 (116), 4096 194 (200), 5120 124 (136), 5632 136 (142), 6144 150 (154), 7168 175 (181), 7680 187
# (194), 8192 196 (203); what lies between was slower, or not faster. With a third operand 4096 340 (352),
# 8192 336 (350), 2048 and 5120 no faster.
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


def short_sums(shape: Shape, device: Machine) -> list[Schedule]:
    """Sums over rows of at most 8192 columns, of which one block would have uneven shares, or too few bytes
    on their way: small blocks, each with a multiprocessor's part of the ring."""
    able = device.clusters and shape.exchanges and shape.whole_words and not shape.narrow_moments
    if not able or not shape.wide_columns or shape.vector == shape.shifted:
        return []
    if shape.of_floats:
        return _short_whole(shape, device)
    if shape.walked > 2 * shape.streams or shape.wide_columns > 1:
        return []
    for way in _SHORT:
        if way.above < shape.length <= way.length and shape.streams <= way.streams:
            return _small_blocks(shape, device, way)
    return []


def _short_whole(shape: Shape, device: Machine) -> list[Schedule]:
    """Elements of 4 bytes: pairs of blocks with 8 of them a thread, skewed. us, beside one block, one sum:
    1536 columns 146 (157), 2048 193 (199), 2560 237 (252), 3000 142 (157), 5120 238 (252), 7168 343 (349);
    two: 2560 247 (260), 3584 168 (187), 6144 290 (328), 7168 331 (357). Slices of 8 KB and more whose rows
    are a power of two apart are slow (4096 394, in one block 372), and rows of 8192 are kept in registers:
    376 and 385 (386, 404).
    """
    few = _WHOLE_EVEN if shape.wide_columns == 1 else 0
    uneven = shape.length & (shape.length - 1) or shape.length <= few
    kept = shape.wide_columns > 1 and 4608 < shape.length <= 5120  # as pairs: 243, skewed 250
    if _WHOLE.above < shape.length <= _WHOLE.length and uneven and not kept:
        return _small_blocks(shape, device, _WHOLE)
    if _WHOLE.length < shape.length <= 8192 and shape.streams == 2:
        return pairs(shape, device, 8)
    return []


def _small_blocks(shape: Shape, device: Machine, way: _Short) -> list[Schedule]:
    vectors = -(-shape.length // (shape.vector * way.cluster))
    threads = warps(vectors, at_least_one(way.elements // shape.vector))
    if way.stages:
        made = ring(shape, threads, way.cluster)
        return [replace(made, blocks=way.blocks, bulk=way.cluster > 1, stages=way.stages)]
    if not may_skew(shape, device):
        return []
    return [replace(skewed_ring(shape, threads, way.cluster, late=False), blocks=way.blocks)]


def fourths(shape: Shape, device: Machine) -> list[Schedule]:
    """Rows of 2-byte elements that are a little too long for a block: in four of 96 threads, where skewed
    slices are uneven. us, one sum and two, beside skewed: 8200 columns 114 (170) and 118 (173), 9216 106
    (152) and 114 (138), 12288 106 (109) and 117 (123)."""
    able = device.clusters and shape.whole_words and shape.exchanges and not shape.narrow_moments
    halves = shape.narrowest == 2 and shape.walked == 2 * shape.streams == 4
    if not (able and halves) or not 0 < shape.wide_columns <= 2 or shape.length > FOURTHS_LENGTH:
        return []
    return [s for way in _FOURTHS[shape.wide_columns] for s in _in_cluster(shape, way)]


def skewed_sums(shape: Shape, device: Machine) -> list[Schedule]:
    """The same for sums over rows, in small blocks.

    bf16, one sum, 16 elements in each of 128 threads, three blocks a multiprocessor: 197 us at 16384 columns
    (kept in registers 202, read again 208); two sums, 32 elements: 211 us (kept 215), 65536 columns in blocks
    of 256 threads 218 (221). Elements of 4 bytes, 32 of them: one sum over 32768 columns 387 us (read again
    398), two over 65536 389 (410)."""
    out = []
    if may_skew(shape, device):
        for way in _SKEWED.get((shape.whole > 0, min(shape.wide_columns, 2)), ()):
            items = at_least_one(way.elements // shape.vector)
            if cluster := _blocks(shape, way):
                threads = warps(-(-shape.length // (shape.vector * cluster)), items)
                made = [skewed_ring(shape, threads, cluster, late) for late in lates(shape)]
                out += [replace(each, blocks=way.blocks) for each in made]
    return out


def cluster_rings(shape: Shape, device: Machine) -> list[Schedule]:
    """Sums over long rows: the slices of a cluster's blocks arrive as bulk copies, or thread by thread, and
    are kept in registers or read again in every pass.

    bf16, one sum over 65536 columns: as bulk copies and kept 201 to 205 us, thread by thread 218, read
    again 228; over 131072 208, read again 223. Elements of 4 bytes, two sums over 131072 columns: kept 408,
    read again 444. 262144 columns, read again from a ring that is refilled vector by vector: 419 and 450, f32
    792 and 815; row by row 442 and 466, f32 1060 to 1099 and 1045.
    """
    if not device.clusters or shape.narrow_moments or not shape.exchanges:
        return []
    return [s for way in _ways(shape) for s in _in_cluster(shape, way)]


def wide_pair(shape: Shape, device: Machine) -> list[Schedule]:
    """Two sums over rows of 2-byte elements that fill a block: in two small ones, 207 us at 8192 columns
    where a block of 512 threads takes 219."""
    vectors = -(-shape.length // shape.vector)
    crowded = (
        shape.wide_columns > 1
        and shape.walked <= 4
        and not shape.whole
        and shape.exchanges
        and shape.whole_words
    )
    if not device.clusters or shape.narrow_moments or not crowded or vectors <= 896:
        return []
    return _in_cluster(shape, _BULK_PAIR)


def _in_cluster(shape: Shape, way: _Way) -> list[Schedule]:
    cluster = _blocks(shape, way)
    if not cluster or (way.rolling and not shape.rolls):
        return []
    stages, late = 2 if way.reload and shape.whole_words else 0, way.late and bool(shape.shared)
    made = ring(shape, way.threads, cluster, way.reload, late, stages)
    if way.rolling:
        # fewer vectors of 2-byte elements take longer so: 196608 columns 434 us, row by row 319
        few = not shape.of_floats and made.items * made.vector < way.elements
        return [] if few else [replace(made, blocks=1, bulk=False, stages=1, places=2 * made.items)]
    return [replace(made, blocks=way.blocks, bulk=True, stages=way.stages) if way.bulk else made]


def _blocks(shape: Shape, way: _Way) -> int:
    """The blocks of a row, or 0 where they are too few or too many."""
    chunk = at_least_one(way.elements // shape.vector) * shape.vector * way.threads
    cluster = power_of_two(-(-shape.length // chunk))
    return cluster if cluster in CLUSTERS and cluster <= way.most else 0


def _ways(shape: Shape) -> tuple[_Way, ...]:
    whole = shape.whole and shape.wide_columns
    if not shape.whole_words:
        return (*((_KEPT_16, _KEPT_32) if whole else (_KEPT_32, _KEPT_16)), _AGAIN, _AGAIN_LAST)
    if whole:
        longest = _ONE_44 if shape.wide_columns == 1 else _ONE_64
        return (_BULK_WHOLE, _AGAIN_LATE, _KEPT_16, _KEPT_32, _ROLLING, longest, _AGAIN_LAST)
    kept = (_BULK_24, _BULK_32) if shape.wide_columns else ()
    return (*kept, _KEPT_32, _KEPT_16, _ROLLING, _AGAIN_LONG, _AGAIN_LAST)
