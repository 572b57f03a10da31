"""Candidates for rows too long for a cluster, which many blocks share and meet in memory."""

from __future__ import annotations

from typing import NamedTuple

from normgen.runtime.launches import Device
from normgen.runtime.schedule import Schedule, Shape, at_least_one

SPREAD_MEMBERS = 256  # at most: each block reads the parts of all
SPREAD_ROWS = 2  # whose blocks must find place together: one that waits leaves room for another's loads
SPREAD_LENGTH = 131072  # at least


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


def spread_rows(shape: Shape, device: Device) -> list[Schedule]:
    """As much of a row in each block as a multiprocessor has room for, so that few have to meet and many rows
    are under way.

    us, beside two passes over memory: 64 groups of 1048576 elements of 4 bytes 148 (204), 32 of them 79
    (109); with 256 threads, 64 KB in their registers and none in shared memory 171 and 95. Backward 256 and
    128 (313, 168), of 2 bytes 145 and 77 (166, 93). 256 channels in pieces, 802816 elements: of 2 bytes 226
    (307), as groups are 251, of 4 bytes 437 (586); backward 359 and 695 (477, 928). 64 channels of 3211264:
    of 2 bytes 253 (307), of 4 485 (596); backward of 2 bytes 421 (475).
    """
    able = shape.spreads and shape.rewalked and shape.whole_words
    if not able or shape.length < SPREAD_LENGTH:
        return []
    block = _USUAL
    if shape.in_pieces and shape.streams == 1:
        block = _PIECES
    elif shape.in_pieces and not shape.of_floats:
        block = _PIECES_OF_TWO
    return [_in_blocks(shape, block)]


def any_spread(shape: Shape) -> list[Schedule]:
    """Blocks of every kind, and larger registers without shared memory."""
    if not shape.spreads or not shape.rewalked or not shape.whole_words:
        return []
    return [_in_blocks(shape, block) for block in (_USUAL, _PIECES, _PIECES_OF_TWO, _HELD)]


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
