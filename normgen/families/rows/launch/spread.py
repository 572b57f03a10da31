"""Candidates for rows too long for a cluster, which many blocks share and meet in memory."""

from __future__ import annotations

from typing import NamedTuple

from normgen.families.rows.launch.schedule import Schedule, Shape, at_least_one
from normgen.launching.machine import Machine

SPREAD_MEMBERS = 256  # at most: each block reads the parts of all
SPREAD_ROWS = 2  # whose blocks must find place together: one that waits leaves room for another's loads
SPREAD_LENGTH = 131072  # at least
TOKEN_LENGTH = 262144  # at least, where clusters would do
IMAGE_MEMBERS = 5  # at least, where clusters would do: fewer leave multiprocessors idle where images are few


class Block(NamedTuple):
    """What a block of a spread row has: threads, bytes of the row in the registers of each and in shared
    memory beside them, and how many blocks a multiprocessor has.
    """

    threads: int
    held: int
    placed: int
    blocks: int


# Of bytes of a row a multiprocessor has 256 KB in two blocks, three quarters of it in shared memory; rows in
# pieces do better in smaller blocks.
_USUAL = Block(512, 64, 192, 2)
_PIECES, _PIECES_OF_TWO = Block(256, 128, 272, 3), Block(512, 128, 160, 2)
_HELD = Block(256, 256, 0, 2)
_WEIGHTED = Block(512, 32, 192, 2)  # moments of rows that share weights: half a row there spills 200 bytes


def spread_rows(shape: Shape, device: Machine) -> list[Schedule]:
    """As much of a row in each block as a multiprocessor has room for, so that few have to meet and many rows
    are under way.

    us, beside two passes over memory: 64 groups of 1048576 elements of 4 bytes 148 (204), 32 of them 79
    (109); with 256 threads, 64 KB in their registers and none in shared memory 171 and 95. Backward 256 and
    128 (313, 168), of 2 bytes 145 and 77 (166, 93). 256 channels in pieces, 802816 elements: of 2 bytes 226
    (307), as groups are 251, of 4 bytes 437 (586); backward 359 and 695 (477, 928). 64 channels of 3211264:
    of 2 bytes 253 (307), of 4 485 (596); backward of 2 bytes 421 (475). 64 groups in pieces of 16 channels of
    4 bytes, with gains of their own, 184 (207), in smaller blocks 638; of 2 bytes 118 (113).
    """
    if not _may_spread(shape) or shape.length < SPREAD_LENGTH:
        return []
    block = _USUAL
    if shape.in_pieces and shape.streams == 1 and not shape.shared:
        block = _PIECES
    elif shape.in_pieces and not shape.of_floats:
        block = _PIECES_OF_TWO
    elif shape.moments and shape.shared and not shape.in_pieces:
        block = _WEIGHTED
    return [_in_blocks(shape, block)]


def spread_images(shape: Shape, device: Machine) -> list[Schedule]:
    """Images that some cluster of 16 blocks would hold, from 640 KB on.

    us, beside clusters: 64 groups of 524288 elements of 2 bytes 45.2 (52.7), 32 of them 25.3 (28.7), of
    602112 56.0 (72.4), 256 of 393216 118 (173), 64 of 1048576 79.4 (98.7) and 32 of them 45.5 (50.7);
    64 of 524288 of 4 bytes 78.0 (84.7), 256 of 262144 142 (152). With a sigmoid, 64 of 524288, 57 (88).
    Backward 256 of 262144 122 (194). Without gains 256 rows of 524288 143 (181).
    """
    image = shape.parts or (shape.moments and not shape.shared)
    found = spread_rows(shape, device) if image and not shape.in_pieces else []
    return [made for made in found if made.members >= IMAGE_MEMBERS]


def spread_floats(shape: Shape, device: Machine) -> list[Schedule]:
    """Tokens of a megabyte that share weights: 1024 rows of 262144 elements of 4 bytes 536 us, in clusters
    549; with a second operand 1079 (1113). Moments do better in clusters, 564 us (595), and so do elements
    of 2 bytes, 275 (280).
    """
    token = shape.shared and not (shape.parts or shape.picked or shape.in_pieces)
    light = shape.of_floats and not shape.functions and not shape.moments
    return spread_rows(shape, device) if token and light and shape.length >= TOKEN_LENGTH else []


def any_spread(shape: Shape) -> list[Schedule]:
    """Blocks of every kind, and larger registers without shared memory."""
    blocks = (_USUAL, _PIECES, _PIECES_OF_TWO, _HELD, _WEIGHTED)
    return [_in_blocks(shape, block) for block in blocks] if _may_spread(shape) else []


def _may_spread(shape: Shape) -> bool:
    """Whether the kernel has the form, and blocks that wait for one another save it a pass over memory."""
    return shape.spreads and shape.rewalked > 0 and shape.whole_words


def _in_blocks(shape: Shape, block: Block) -> Schedule:
    each = shape.vector * shape.walked
    held, places = at_least_one(block.held // each), block.placed // each
    return spread(shape, block.threads, held, places, block.blocks)


def spread(shape: Shape, threads: int, held: int, places: int = 0, blocks: int = 0) -> Schedule:
    """A row in as many blocks of so many threads as have room for it, with so many vectors in the registers
    of each thread and in places beside them."""
    items = held + places
    members = -(-shape.length // (shape.vector * threads * items))
    return Schedule(
        "spread", shape.vector, members * threads, 1, items, blocks, members=members, places=places
    )
