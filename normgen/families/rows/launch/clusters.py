"""Candidates for rows too long for the registers of one block: rings, and teams of several blocks."""

from __future__ import annotations

from dataclasses import replace

from normgen.families.rows.launch.schedule import (
    Schedule,
    Shape,
    at_least_one,
    is_deep,
    power_of_two,
    register_bytes,
    warps,
)
from normgen.launching.machine import Machine

CLUSTERS = (2, 4, 8, 16)  # blocks, on some device; `fit` refuses what a device has not
# Stages of a ring whose rows leave it two rows later, the fewest that work, and its bytes: of hand-written
# kernels 0.88 of a triad with 6, 0.79 with 4.
SKEWED_STAGES = 6
SKEWED_LEAST = 4
SKEWED_RING = 196608
HELD_BYTES = 128  # of a row in one thread's registers: beyond, a copy in shared memory measured faster
LIGHT_LENGTH = 32768  # of rows of two operands, beyond which what they share is loaded early
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a team is a cluster
CLUSTER_BYTES = 256  # of it
WHOLE_BYTES = 160  # of it, where parts of the row are summed too
IMAGE_CLUSTERS, IMAGE_THREADS = (4, 8), 128
IMAGE_MOST, IMAGE_PIECES = 40, 52  # elements of an image, or of one of 2 bytes in pieces, in its threads
IMAGE_LENGTH = 16384  # at least: 256 rows of 10240 elements 6.3 us where one block takes 5.1
IMAGE_LONG = 64  # elements in each thread of 16 blocks
PIXELS_LENGTH, PIXELS_BYTES = 8192, 80


def clusters(shape: Shape, device: Machine) -> list[Schedule]:
    """Rows too long for the registers of a block, in those of several: from sm_90 on, and on the host.

    256 threads a block with 64 elements each: 0.90 to 0.99 of a copy from 65536 columns on where rows have
    two operands, 0.86 to 0.92 with one (rings 0.79 to 0.86); 512 threads where that is not enough.
    Exponentials, which are as many again, in 128 threads where that is enough: 0.91 at 65536 columns, in 256
    threads 0.80; 262144 columns in 256 threads 0.86, in a ring 0.74.
    """
    if not device.clusters:
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


def _held(shape: Shape, threads: int, cluster: int, early: bool = False) -> Schedule:
    """A row in the registers of so many blocks of so many threads; `early`: what rows share too."""
    team, vectors = threads * cluster, -(-shape.length // shape.vector)
    items, late = -(-vectors // team), bool(shape.shared) and not early
    return Schedule("registers", shape.vector, team, 1, items, 0, late=late, cluster=cluster)


def light_rows(shape: Shape, device: Machine) -> list[Schedule]:
    """One sum over long rows: 64 bytes of the row in each of at most 256 threads in 8 blocks or 16, and what
    rows share loaded before anything is waited for.

    us, beside what was chosen before: bf16 32768 133 (136, a copy in shared memory), 65536 134 (136,
    64 elements a thread); f32 16384 259 (267, in one block), 32768 262 (265), 65536 262 (268), 131072, with
    twice the elements, 261 (270). With a second operand bf16 65536 265 (268), f32 131072, with twice the
    threads, 531 (547); 32768 as before. 16 blocks of 2-byte elements: 140 and 142 where 8 take 134 and 138.
    Moments of 4-byte elements in 128 threads with 32 elements: 32768 columns 272 us (278), 16384 as before.
    """
    able = device.clusters and shape.shared and shape.whole_words and shape.rewalked
    if not able or shape.held or shape.functions or shape.parts:
        return []
    if is_deep(shape):
        return _early(shape, 32, 128, (8,)) if _plain_moments(shape) and shape.of_floats else []
    if shape.shared > shape.walked:
        return []  # weights wider than the row leave no room
    if shape.streams > 1:
        wide = _early(shape, 16, 512, (16,)) if shape.of_floats else []
        return [*_early(shape, 16, 256, (8, 16)), *wide] if shape.length > LIGHT_LENGTH else []
    if not shape.of_floats:
        return _early(shape, 32, 256, (8,))
    return [*_early(shape, 16, 256, (8, 16)), *_early(shape, 32, 256, (16,))]


def full_rings(shape: Shape, device: Machine) -> list[Schedule]:
    """One sum over rows of 4-byte elements that fill the registers of 16 blocks of 512 threads: as they come
    through a ring, which a row leaves when it is in registers. 262144 columns: 550 us, one-shot 560; with a
    second operand, and one place, 1103, one-shot 1285. Without weights one-shot 526, so 547."""
    able = device.clusters and shape.of_floats and shape.whole_words
    if not able or shape.streams > 2 or shape.held or shape.functions or shape.parts or is_deep(shape):
        return []
    plain = _held(shape, 512, CLUSTERS[-1], early=True)
    made = ring(shape, 512, CLUSTERS[-1], stages=2 // shape.streams) if shape.shared else plain
    return [made] if 16 < made.items * made.vector <= 32 else []


def _plain_moments(shape: Shape) -> bool:
    """Whether there are moments of rows of one operand, which share weights that are no wider."""
    return shape.moments and shape.streams == 1 and 0 < shape.shared <= 2 * shape.walked


def _early(shape: Shape, elements: int, most: int, clusters_of: tuple[int, ...]) -> list[Schedule]:
    """The fewest blocks of 128 threads or more, and of `most` at most, with so many elements each."""
    vectors, items = -(-shape.length // shape.vector), at_least_one(elements // shape.vector)
    for cluster in clusters_of:
        threads = warps(-(-vectors // cluster), items)
        if 128 <= threads <= most:
            return [_held(shape, threads, cluster, early=True)]
    return []


def whole_rows(shape: Shape, device: Machine) -> list[Schedule]:
    """Rows that are summed in parts too, of which there are few: small blocks, with as much in each thread as
    goes. 256 rows of 160 KB (images of 64 x 64, gradients beside them) 25.3 us in 8 x 128 threads with 40
    elements each, in 4 x 256 27.5, with 24 elements in 8 x 256 31.
    """
    if not device.clusters:
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(WHOLE_BYTES // at_least_one(register_bytes(shape.vector, shape)))
    out = []
    for clusters_of, most in ((CLUSTERS[:-1], 160), (CLUSTERS[:-1], 256), (CLUSTERS, 512)):
        for cluster in clusters_of:
            threads = warps(-(-vectors // cluster), items)
            if threads <= most:
                out.append(_held(shape, threads, cluster))
                break
    return out


def image_rows(shape: Shape, device: Machine) -> list[Schedule]:
    """The statistics of images, with params for parts of a row or rows in pieces: four or eight blocks of 128
    threads, however many rows there are, so that a group's bits do not depend on the batch.

    bf16, 16384 elements: 32 rows 4.3 us where one block takes 4.8, 64 rows 4.8 and 5.1, 2048 rows 36.8 and
    39.1; 64 rows of 25088 in pieces 6.15 and 6.9; of 40960 32 rows 5.5, in 4 x 256 threads 6.0, 256 rows 13.0
    and 13.7; 512 rows of 50176 in pieces 39.3, in 4 x 160 threads 41.2. Elements of 4 bytes, in 16 blocks
    with 64 of them a thread: 64 rows of 131072 20.7 us (with 32 of them 21.9).
    """
    if not device.clusters or not shape.moments:
        return []
    if shape.in_pieces and shape.shared:
        return _pixels(shape)
    if not (shape.parts or shape.in_pieces) or shape.length < IMAGE_LENGTH:
        return []
    most = IMAGE_PIECES if shape.in_pieces and shape.walked <= 2 else IMAGE_MOST
    found = _fewest(shape, IMAGE_CLUSTERS, IMAGE_THREADS, most)
    return found if found or shape.in_pieces else _long_images(shape)


def _long_images(shape: Shape) -> list[Schedule]:
    """Images for 16 blocks: elements of 4 bytes in registers, 64 a thread; those of 2 bytes are read again
    from the ring in every pass. us: 64 rows of 262144 elements of 2 bytes 24.0, in registers 29.4. Longer
    ones are spread."""
    cluster = CLUSTERS[-1]
    if shape.of_floats:
        return _fewest(shape, (cluster,), IMAGE_THREADS, IMAGE_LONG)
    if not shape.whole_words or shape.functions:
        return []
    made = ring(shape, 256, cluster, reload=True, late=True, stages=2)
    return [replace(made, blocks=2)] if 32 < made.items * made.vector <= IMAGE_LONG else []


def _pixels(shape: Shape) -> list[Schedule]:
    """Groups of channels that come last: pieces with gains of their own, 80 bytes of the row in a thread.

    256 rows of 256 pieces of 40: 7.0 us with 40 elements of 2 bytes in 2 x 128 threads, in one block of 320
    7.1 (statistics, then results: 14.6); with 20 of 4 bytes in 4 x 128 9.7, in 2 x 320 10.5."""
    if shape.length < PIXELS_LENGTH:
        return []
    return _fewest(shape, CLUSTERS, IMAGE_THREADS, PIXELS_BYTES // shape.walked)


def _fewest(shape: Shape, clusters_of: tuple[int, ...], threads: int, most: int) -> list[Schedule]:
    """The fewest blocks of so many threads that hold a row with no more than `most` elements in each."""
    found = (_held(shape, threads, cluster) for cluster in clusters_of)
    return [made for made in found if made.items * made.vector <= most][:1]


def skewed(shape: Shape, device: Machine) -> list[Schedule]:
    """Clusters whose exchange of a row is on its way while the row before it is finished, with as few blocks
    as have room for six slices each: moments of 131072 columns 141 us where a ring takes 146; one sum over
    131072 136, in registers 140. 16 blocks exchange moments of few warps, with 64 elements a thread: 262144
    columns 280 us, with 32 312, in a ring 378. Elements of 4 bytes are 16 a thread: 131072 columns 276 us,
    with 32 281, in a ring 290."""
    cluster = power_of_two(-(-shape.length * shape.walked * SKEWED_STAGES // SKEWED_RING))
    if not may_skew(shape, device) or cluster not in CLUSTERS:
        return []
    vectors = -(-shape.length // (shape.vector * cluster))
    long, usual = (warps(vectors, at_least_one(elements // shape.vector)) for elements in (64, 32))
    usual = warps(vectors, at_least_one(16 // shape.vector)) if shape.of_floats else usual
    few = [(long, False)] if shape.moments and cluster == CLUSTERS[-1] and not shape.of_floats else []
    ways = (*few, *((usual, late) for late in lates(shape)))
    return [skewed_ring(shape, threads, cluster, late) for threads, late in ways]


def may_skew(shape: Shape, device: Machine) -> bool:
    """Whether rows may come as bulk copies into a ring whose exchange runs ahead."""
    able = shape.skews and shape.whole_words and not shape.narrow_moments
    return able and shape.walked > 0 and device.clusters


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
    if it loads the params for each row: 0.88 against 0.82 at 32768. Moments of 2-byte elements in 1024
    threads whose ring has one row, which leaves its place as soon as it is in registers: 140 us, with 512
    144."""
    if not shape.exchanges or not shape.walked:
        return []
    elements = HELD_BYTES // shape.walked
    full = _plain_moments(shape) and shape.walked == 2 and 1024 * 24 < shape.length <= 1024 * 32
    one = [ring(shape, 1024, 1, late=True, stages=1)] if full else []
    return one + [
        ring(shape, threads, 1, late=late)
        for threads in (512, 1024)
        if shape.length <= threads * elements
        for late in lates(shape)
    ]


def long_rings(shape: Shape, device: Machine) -> list[Schedule]:
    """In clusters. What an exchange costs depends on how many warps take part: moments reach 0.85 of a copy
    at 131072 columns with 64 elements in each of 8 x 256 threads, 0.73 with 32 in 8 x 512, 0.61 in 16 x 256.
    """
    if not shape.exchanges or not shape.walked or not device.clusters:
        return []
    vectors = -(-shape.length // shape.vector)
    items = at_least_one(HELD_BYTES // (shape.vector * shape.walked))
    out = []
    # values that are kept from one pass to the next leave no room for the row: 0.75 at 262144 f32, kept 0.70
    wide = (512, items, bool(shape.held))
    again = (256, 2 * items, True)  # moments of 262144 f32 560 us, kept in registers 574
    plain = _plain_moments(shape) and shape.of_floats and shape.whole_words
    first = [again, wide] if plain else [wide, again]
    for threads, each, reload in ((256, items, False), *first, (512, 2 * items, True)):
        cluster = power_of_two(-(-vectors // (threads * each)))
        if cluster in CLUSTERS:
            stages = 2 if reload and plain else 0
            out.append(ring(shape, threads, cluster, reload, stages=stages))
    return out


def pairs(shape: Shape, device: Machine, elements: int = 16) -> list[Schedule]:
    """Two blocks a row with 16 elements a thread, or as many as are given: more of them find place on a
    multiprocessor than of one that has a row alone (two sums over rows of 5120 columns: 0.87 of a triad
    against 0.75)."""
    if not device.clusters or shape.narrow_moments or not shape.exchanges:
        return []
    vectors = -(-shape.length // shape.vector)
    threads = warps(-(-vectors // 2), at_least_one(elements // shape.vector))
    if threads < 128:
        return []
    return [ring(shape, threads, 2)]
