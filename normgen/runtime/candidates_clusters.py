"""Candidates for rows too long for the registers of one block: rings, and teams of several blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from normgen.runtime.launches import Device
from normgen.runtime.schedule import (
    Schedule,
    Shape,
    at_least_one,
    has_clusters,
    is_deep,
    power_of_two,
    warps,
)

CLUSTERS = (2, 4, 8, 16)  # blocks
# Stages of a ring whose rows leave it two rows later, the fewest that work, and its bytes: of hand-written
# kernels 0.88 of a triad with 6, 0.79 with 4.
SKEWED_STAGES = 6
SKEWED_LEAST = 4
SKEWED_RING = 196608
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
CLUSTER_BYTES = 256  # of it
WHOLE_BYTES = 160  # of it, where parts of the row are summed too
IMAGE_CLUSTERS, IMAGE_THREADS = (4, 8), 128
IMAGE_MOST = 40  # elements of an image in a thread of such a cluster
IMAGE_LENGTH = 16384  # at least: 256 rows of 10240 elements 6.3 us where one block takes 5.1


def clusters(shape: Shape, device: Device) -> list[Schedule]:
    """Rows too long for the registers of a block, in those of several: from sm_90 on, and on the host.

    256 threads a block with 64 elements each: 0.90 to 0.99 of a copy from 65536 columns on where rows have
    two operands, 0.86 to 0.92 with one (rings 0.79 to 0.86); 512 threads where that is not enough.
    Exponentials, which are as many again, in 128 threads where that is enough: 0.91 at 65536 columns, in 256
    threads 0.80; 262144 columns in 256 threads 0.86, in a ring 0.74.
    """
    if not has_clusters(device):
        return []
    out = []
    ways = ((256, HELD_BYTES), (256, CLUSTER_BYTES), (512, CLUSTER_BYTES))
    crowded = shape.held or (shape.functions and is_deep(shape))
    few = ((128, CLUSTER_BYTES), (256, CLUSTER_BYTES))
    for threads, most in few if crowded and not shape.whole else ways:
        for cluster in CLUSTERS:
            made = _held(shape, threads, cluster)
            elements = made.items * made.vector
            if elements <= CLUSTER_ELEMENTS and elements * shape.walked <= most:
                out.append(made)
    return out


def _held(shape: Shape, threads: int, cluster: int) -> Schedule:
    """A row in the registers of so many blocks of so many threads."""
    team, vectors = threads * cluster, -(-shape.length // shape.vector)
    items, late = -(-vectors // team), bool(shape.shared)
    return Schedule("registers", shape.vector, team, 1, items, 0, late=late, cluster=cluster)


def whole_rows(shape: Shape, device: Device) -> list[Schedule]:
    """Rows that are summed in parts too, of which there are few: small blocks, with as much in each thread as
    goes. 256 rows of 160 KB (images of 64 x 64, gradients beside them) 25.3 us in 8 x 128 threads with 40
    elements each, in 4 x 256 27.5, with 24 elements in 8 x 256 31.
    """
    if not has_clusters(device):
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(WHOLE_BYTES // (shape.vector * at_least_one(shape.walked)))
    out = []
    for clusters_of, most in ((CLUSTERS[:-1], 160), (CLUSTERS[:-1], 256), (CLUSTERS, 512)):
        for cluster in clusters_of:
            threads = warps(-(-vectors // cluster), items)
            if threads <= most:
                out.append(_held(shape, threads, cluster))
                break
    return out


def image_rows(shape: Shape, device: Device) -> list[Schedule]:
    """The statistics of images, with params for parts of a row or rows in pieces: four or eight blocks of 128
    threads, however many rows there are, so that a group's bits do not depend on the batch.

    bf16, 16384 elements: 32 rows 4.3 us where one block takes 4.8, 64 rows 4.8 and 5.1, 2048 rows 36.8 and
    39.1; 64 rows of 25088 in pieces 6.15 and 6.9; of 40960 32 rows 5.5, in 4 x 256 threads 6.0, 256 rows 13.0
    and 13.7.
    """
    images = shape.moments and (shape.parts or shape.in_pieces)
    if not has_clusters(device) or not images or shape.length < IMAGE_LENGTH:
        return []
    found = (_held(shape, IMAGE_THREADS, cluster) for cluster in IMAGE_CLUSTERS)
    return [made for made in found if made.items * made.vector <= IMAGE_MOST][:1]


def skewed(shape: Shape, device: Device) -> list[Schedule]:
    """Clusters whose exchange of a row is on its way while the row before it is finished, with as few blocks
    as have room for six slices each: moments of 131072 columns 141 us where a ring takes 146; one sum over
    131072 136, in registers 140. 16 blocks exchange moments of few warps, with 64 elements a thread: 262144
    columns 280 us, with 32 312, in a ring 378."""
    cluster = power_of_two(-(-shape.length * shape.walked * SKEWED_STAGES // SKEWED_RING))
    if not may_skew(shape, device) or cluster not in CLUSTERS:
        return []
    vectors = -(-shape.length // (shape.vector * cluster))
    long, usual = (warps(vectors, at_least_one(elements // shape.vector)) for elements in (64, 32))
    few = [(long, False)] if shape.moments and cluster == CLUSTERS[-1] else []
    ways = (*few, *((usual, late) for late in lates(shape)))
    return [skewed_ring(shape, threads, cluster, late) for threads, late in ways]


def skewed_sums(shape: Shape, device: Device) -> list[Schedule]:
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


def may_skew(shape: Shape, device: Device) -> bool:
    """Whether rows may come as bulk copies into a ring whose exchange runs ahead."""
    able = shape.skews and shape.whole_words and not shape.narrow_moments
    return able and shape.walked > 0 and has_clusters(device)


def skewed_ring(shape: Shape, threads: int, cluster: int, late: bool) -> Schedule:
    return replace(ring(shape, threads, cluster, reload=True, late=late), form="skewed")


def lates(shape: Shape) -> tuple[bool, ...]:
    """Whether what rows share is loaded when it is used: the ways that there are."""
    return (False, True) if shape.shared else (False,)


def ring(
    shape: Shape, threads: int, cluster: int, reload: bool = False, late: bool = False, stages: int = 0
) -> Schedule:
    """One row at a time in a block of so many threads, or in a cluster of such blocks. With `stages` in its
    ring, a block has a multiprocessor of its own."""
    team, vectors = threads * cluster, -(-shape.length // shape.vector)
    return Schedule(
        "ring", shape.vector, team, 1, -(-vectors // team), int(stages > 0), stages=stages,
        reload=reload, late=late, cluster=cluster, bulk=reload and cluster > 1 and shape.whole_words,
    )  # fmt: skip


def rings_alone(shape: Shape) -> list[Schedule]:
    """A thread keeps as much of a row as goes into its registers. One block does better than a cluster, even
    if it loads the params for each row: 0.88 against 0.82 at 32768."""
    if not shape.exchanges or not shape.walked:
        return []
    elements = HELD_BYTES // shape.walked
    return [
        ring(shape, threads, 1, late=late)
        for threads in (512, 1024)
        if shape.length <= threads * elements
        for late in lates(shape)
    ]


def long_rings(shape: Shape, device: Device) -> list[Schedule]:
    """In clusters. What an exchange costs depends on how many warps take part: moments reach 0.85 of a copy
    at 131072 columns with 64 elements in each of 8 x 256 threads, 0.73 with 32 in 8 x 512, 0.61 in 16 x 256.
    """
    if not shape.exchanges or not shape.walked or not has_clusters(device):
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(HELD_BYTES // (shape.vector * shape.walked))
    out = []
    # values that are kept from one pass to the next leave no room for the row: 0.75 at 262144 f32, kept 0.70
    wide = (512, items, bool(shape.held))
    for threads, each, reload in ((256, items, False), wide, (256, 2 * items, True), (512, 2 * items, True)):
        cluster = power_of_two(-(-vectors // (threads * each)))
        if cluster in CLUSTERS:
            out.append(ring(shape, threads, cluster, reload))
    return out


def pairs(shape: Shape, device: Device, elements: int = 16) -> list[Schedule]:
    """Two blocks a row with 16 elements a thread, or as many as are given: more of them find place on a
    multiprocessor than of one that has a row alone (two sums over rows of 5120 columns: 0.87 of a triad
    against 0.75)."""
    if not has_clusters(device) or shape.narrow_moments or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    threads = warps(-(-vectors // 2), at_least_one(elements // shape.vector))
    if threads < 128:
        return []
    return [ring(shape, threads, 2)]


class _Way(NamedTuple):
    """A ring in a cluster: elements of a thread, threads of a block, whether slices are read again and what
    rows share is loaded late, how many blocks a row may have, and a multiprocessor; whether slices arrive as
    bulk copies though they are kept in registers, and how many are in the ring."""

    elements: int
    threads: int
    reload: bool = False
    late: bool = False
    most: int = CLUSTERS[-1]
    blocks: int = 0
    bulk: bool = False
    stages: int = 0


_KEPT_16, _KEPT_32 = _Way(16, 256), _Way(32, 256)
_AGAIN, _AGAIN_LONG = _Way(32, 256, reload=True), _Way(64, 256, reload=True)
_AGAIN_LATE, _AGAIN_LAST = _Way(32, 256, reload=True, late=True), _Way(32, 512, reload=True, late=True)
_BULK_24, _BULK_32 = (
    _Way(24, 192, blocks=2, bulk=True, stages=3),
    _Way(32, 256, blocks=1, bulk=True, stages=3),
)
_BULK_WHOLE = _Way(32, 256, blocks=1, bulk=True, stages=2)
_BULK_PAIR = _Way(24, 192, most=2, blocks=2, bulk=True, stages=2)
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


def cluster_rings(shape: Shape, device: Device) -> list[Schedule]:
    """Sums over long rows: the slices of a cluster's blocks arrive as bulk copies, or thread by thread, and
    are kept in registers or read again in every pass.

    bf16, one sum over 65536 columns: as bulk copies and kept 201 to 205 us, thread by thread 218, read
    again 228; over 131072 208, read again 223; two sums over 262144 with 64 elements a thread, read again,
    464, with 48 520. Elements of 4 bytes, two sums over 131072 columns: kept 408, read again 444; over 262144
    columns of them 1010 in 256 threads with 64 elements, in 512 that load what rows share late 1210; one sum
    960 in 384 threads with 44, in 256 1010, in 512 1070.
    """
    if not has_clusters(device) or shape.narrow_moments or not shape.exchanges:
        return []
    return [s for way in _ways(shape) for s in _in_cluster(shape, way)]


def wide_pair(shape: Shape, device: Device) -> list[Schedule]:
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
    if not has_clusters(device) or shape.narrow_moments or not crowded or vectors <= 896:
        return []
    return _in_cluster(shape, _BULK_PAIR)


def _in_cluster(shape: Shape, way: _Way) -> list[Schedule]:
    cluster = _blocks(shape, way)
    if not cluster:
        return []
    stages, late = 2 if way.reload and shape.whole_words else 0, way.late and bool(shape.shared)
    made = ring(shape, way.threads, cluster, way.reload, late, stages)
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
        return (_BULK_WHOLE, _AGAIN_LATE, _KEPT_16, _KEPT_32, longest, _AGAIN_LAST)
    kept = (_BULK_24, _BULK_32) if shape.wide_columns else ()
    return (*kept, _KEPT_32, _KEPT_16, _AGAIN_LONG, _AGAIN_LAST)
