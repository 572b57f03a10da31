"""Candidates for rows too long for the registers of one block, in those of several: clusters, and blocks that
exchange through memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import lcm
from typing import NamedTuple

from normgen.families.rows.launch.fitting import CLUSTER_BYTES, HELD_BYTES
from normgen.families.rows.launch.pipelines import CLUSTERS, held, pipeline, plain_moments
from normgen.families.rows.launch.schedule import (
    RowSchedule,
    RowShape,
    at_least_one,
    register_bytes,
    warps,
)
from normgen.launching.machine import WARP

LIGHT_LENGTH = 32768  # of rows of two operands, beyond which what they share is loaded early
CLUSTER_ELEMENTS = 64  # of a row in one thread's registers, where a thread group is a cluster
WHOLE_BYTES = 160  # of it, where parts of the row are summed too
IMAGE_CLUSTERS, IMAGE_THREADS = (4, 8), 128
IMAGE_MOST, IMAGE_SEGMENTS = 40, 52  # elements per thread of an image, or of one of 2 bytes in segments
IMAGE_LENGTH = 16384  # at least: shorter ones do better in one block
IMAGE_LONG = 64  # elements per thread of 16 blocks
PIXELS_LENGTH, PIXELS_BYTES = 8192, 80
# Threads of a block that adds up segments, the most: of small ones two find place on a multiprocessor.
SMALL, LARGE = 384, 1024


# The fewest blocks of 128 threads or more: elements of a thread, threads at most, and blocks; by whether rows
# have several operands, and whether their elements have 4 bytes.
_LIGHT = {
    (False, False): ((32, 256, (8,)),),
    (False, True): ((16, 256, (8, 16)), (32, 256, (16,))),
    (True, False): ((16, 256, (8, 16)),),
    (True, True): ((16, 256, (8, 16)), (16, 512, (16,))),
}
_LIGHT_MOMENTS = ((32, 128, (8,)),)


def clusters(shape: RowShape) -> list[RowSchedule]:
    """Clusters that have the row in registers: 256 threads per block with 64 elements each, 512 where that is
    not enough; exponentials, which are as many again, in 128 threads where that is enough."""
    crowded = (shape.held or (shape.functions and shape.deep)) and not shape.whole
    few = ((128, CLUSTER_BYTES), (256, CLUSTER_BYTES))
    usual = ((256, HELD_BYTES), (256, CLUSTER_BYTES), (512, CLUSTER_BYTES))
    each = shape.vector * at_least_one(shape.walked)
    most_items = CLUSTER_ELEMENTS // shape.vector
    return [
        held(shape, threads, cluster)
        for (threads, most), cluster in product(few if crowded else usual, CLUSTERS)
        if shape.vectors <= threads * cluster * min(most_items, most // each)
    ]


def light_rows(shape: RowShape) -> list[RowSchedule]:
    """One sum over long rows, or moments of 4-byte elements: 64 bytes of the row in each of at most 256
    threads in 8 blocks or 16, and what rows share loaded before anything is waited for."""
    able = shape.shared and shape.whole_words and shape.rewalked
    if not able or shape.held or shape.functions or shape.parts:
        return []
    ways: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    if shape.deep:
        ways = _LIGHT_MOMENTS if plain_moments(shape) and shape.of_floats else ()
    # (weights wider than the row leave no room)
    elif shape.shared <= shape.walked and (shape.streams <= 1 or shape.length > LIGHT_LENGTH):
        ways = _LIGHT[shape.streams > 1, shape.of_floats]
    return [
        made
        for elements, most, blocks in ways
        for made in _fewest(shape, blocks, shape.items(elements), 128, most, early=True)
    ]


def _fewest(
    shape: RowShape, blocks: tuple[int, ...], items: int, least: int, most: int, early: bool = False
) -> list[RowSchedule]:
    """A row in the fewest blocks whose threads, with so many vectors each, are as many as allowed."""
    ways = ((warps(-(-shape.vectors // cluster), items), cluster) for cluster in blocks)
    return [held(shape, threads, cluster, early) for threads, cluster in ways if least <= threads <= most][:1]


def full_pipelines(shape: RowShape) -> list[RowSchedule]:
    """One sum over rows of 4-byte elements that fill the registers of 16 blocks of 512 threads: as they come
    through a pipeline, which a row leaves when it is in registers. Without weights in registers alone."""
    able = shape.of_floats and shape.whole_words and shape.streams <= 2
    if not able or shape.held or shape.functions or shape.parts or shape.deep:
        return []
    if shape.shared:
        made = pipeline(shape, 512, CLUSTERS[-1], stages=2 // shape.streams)
    else:
        made = held(shape, 512, CLUSTERS[-1], early=True)
    return [made] if 16 < made.elements <= 32 else []


def whole_rows(shape: RowShape) -> list[RowSchedule]:
    """Rows that are summed in parts too, of which there are few: small blocks, with as much in each thread as
    goes."""
    items = at_least_one(WHOLE_BYTES // at_least_one(register_bytes(shape.vector, shape)))
    ways = ((CLUSTERS[:-1], 160), (CLUSTERS[:-1], 256), (CLUSTERS, 512))
    return [made for blocks, most in ways for made in _fewest(shape, blocks, items, 0, most)]


def image_rows(shape: RowShape) -> list[RowSchedule]:
    """The statistics of images, with params for parts of a row or rows in segments: four or eight blocks of
    128 threads, however many rows there are, so that a group's bits do not depend on the batch."""
    if not shape.moments:
        return []
    if shape.in_pieces and shape.shared:
        # groups of channels that come last: segments with gains of their own
        most = PIXELS_BYTES // shape.walked
        return _images(shape, CLUSTERS, most) if shape.length >= PIXELS_LENGTH else []
    if not (shape.parts or shape.in_pieces) or shape.length < IMAGE_LENGTH:
        return []
    most = IMAGE_SEGMENTS if shape.in_pieces and shape.walked <= 2 else IMAGE_MOST
    found = _images(shape, IMAGE_CLUSTERS, most)
    return found if found or shape.in_pieces else _long_images(shape)


def _long_images(shape: RowShape) -> list[RowSchedule]:
    """Images for 16 blocks: elements of 4 bytes in registers, 64 per thread; those of 2 bytes are read again
    from the pipeline in every pass. Longer ones are split over blocks."""
    cluster = CLUSTERS[-1]
    if shape.of_floats:
        return _images(shape, (cluster,), IMAGE_LONG)
    if not shape.whole_words or shape.functions:
        return []
    made = pipeline(shape, 256, cluster, reload=True, late=True, stages=2)
    return [replace(made, blocks=2)] if 32 < made.elements <= IMAGE_LONG else []


def _images(shape: RowShape, clusters_of: tuple[int, ...], most: int) -> list[RowSchedule]:
    """The fewest blocks that hold a row with no more than `most` elements in each thread."""
    found = (held(shape, IMAGE_THREADS, cluster) for cluster in clusters_of)
    return [made for made in found if made.elements <= most][:1]


# ------------------------------------------------------------------------------------------------ segments


def added_segments(shape: RowShape) -> list[RowSchedule]:
    """Rows in segments that are added up besides, in few blocks of few threads, then in few of many. Blocks
    have whole segments, side by side, so that each thread has the same places of one in all its vectors."""
    items = at_least_one(HELD_BYTES // (shape.vector * at_least_one(shape.walked)))
    ways = [_added(shape, cluster, items) for cluster in (1, *CLUSTERS)]
    small = [s for s in ways if s.threads <= SMALL]
    return [*small, *(s for s in ways if SMALL < s.threads <= LARGE)]


def any_added_segments(shape: RowShape) -> Iterator[RowSchedule]:
    """All of them."""
    for cluster, items in product((1, *CLUSTERS), range(1, HELD_BYTES // shape.vector + 1)):
        made = _added(shape, cluster, items)
        if made.items == items and made.threads <= LARGE:
            yield made


def _added(shape: RowShape, cluster: int, items: int) -> RowSchedule:
    """A row in so many blocks, whose threads have so many vectors each, or fewer."""
    whole = lcm(WARP, shape.piece)
    return held(shape, -(-shape.vectors // (cluster * items * whole)) * whole, cluster)


# ------------------------------------------------------------------------------------------------ cooperative

COOPERATIVE_LENGTH = 131072  # elements of a row that blocks share and exchange through memory, at least
TOKEN_LENGTH = 262144  # at least, where clusters would do
IMAGE_MEMBERS = 5  # at least, where clusters would do: fewer leave multiprocessors idle where images are few


class Block(NamedTuple):
    """What a block of a row split over blocks has."""

    threads: int
    held: int  # bytes of the row in the registers of each thread
    placed: int  # bytes of it in shared memory beside them, per thread
    blocks: int  # per multiprocessor
    when: Callable[[RowShape], bool] = lambda shape: False  # rows that take it by themselves


# The first is for all rows without another. Of bytes of a row a multiprocessor has 256 KB in two blocks, of
# which three quarters are in shared memory; rows in segments do better in smaller blocks, and moments of rows
# that share weights need registers.
BLOCKS = (
    Block(512, 64, 192, 2),
    Block(256, 128, 272, 3, lambda shape: shape.in_pieces and shape.streams == 1 and not shape.shared),
    Block(512, 128, 160, 2, lambda shape: shape.in_pieces and not shape.of_floats),
    Block(256, 256, 0, 2),
    Block(512, 32, 192, 2, lambda shape: shape.moments and shape.shared > 0 and not shape.in_pieces),
)


def cooperative_rows(shape: RowShape) -> list[RowSchedule]:
    """As much of a row in each block as a multiprocessor has room for, so that few have to meet and many rows
    are under way: one pass over memory in place of two."""
    block = next((block for block in BLOCKS if block.when(shape)), BLOCKS[0])
    return any_cooperative(shape, (block,)) if shape.length >= COOPERATIVE_LENGTH else []


def cooperative_images(shape: RowShape) -> list[RowSchedule]:
    """Images that some cluster of 16 blocks would hold, but for short ones."""
    image = shape.parts or (shape.moments and not shape.shared)
    found = cooperative_rows(shape) if image and not shape.in_pieces else []
    return [made for made in found if made.members >= IMAGE_MEMBERS]


def cooperative_floats(shape: RowShape) -> list[RowSchedule]:
    """Tokens of a megabyte that share weights; moments and elements of 2 bytes do better in clusters."""
    token = shape.shared and not (shape.parts or shape.picked or shape.in_pieces)
    light = shape.of_floats and not shape.functions and not shape.moments
    return cooperative_rows(shape) if token and light and shape.length >= TOKEN_LENGTH else []


def any_cooperative(shape: RowShape, blocks: Iterable[Block] = BLOCKS) -> list[RowSchedule]:
    """Blocks of every kind, where the kernel has the form, and blocks that wait for one another save a pass
    over memory."""
    if not (shape.cooperates and shape.rewalked and shape.whole_words):
        return []
    each = shape.vector * shape.walked
    return [
        cooperative(shape, threads, at_least_one(held // each), placed // each, resident)
        for threads, held, placed, resident, _ in blocks
    ]


def cooperative(
    shape: RowShape, threads: int, in_registers: int, places: int = 0, blocks: int = 0
) -> RowSchedule:
    """A row in as many blocks of so many threads as have room for it, with so many vectors in the registers
    of each thread and in places beside them."""
    items = in_registers + places
    members = -(-shape.length // (shape.vector * threads * items))
    return RowSchedule(
        "cooperative", shape.vector, members * threads, 1, items, blocks, members=members, places=places
    )
