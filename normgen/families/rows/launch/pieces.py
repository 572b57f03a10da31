"""Candidates for rows in pieces that are added up besides: threads of a block that have whole pieces, side by
side, so that each has the same places of a piece in all its vectors."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from normgen.families.rows.launch.clusters import CLUSTERS, HELD_BYTES
from normgen.families.rows.launch.schedule import Schedule, Shape, at_least_one
from normgen.launching.machine import Machine

# Threads of a block, the most: of small ones two find place on a multiprocessor.
_SMALL, _LARGE = 384, 1024


def added_pieces(shape: Shape, device: Machine) -> list[Schedule]:
    """A row in few blocks of few threads, then in few of many."""
    items = at_least_one(HELD_BYTES // (shape.vector * at_least_one(shape.walked)))
    ways = [_held(shape, cluster, items) for cluster in _blocks(device)]
    small = [s for s in ways if s.threads <= _SMALL]
    return [*small, *(s for s in ways if _SMALL < s.threads <= _LARGE)]


def any_added_pieces(shape: Shape, device: Machine) -> Iterator[Schedule]:
    """All of them."""
    for cluster in _blocks(device):
        for items in range(1, HELD_BYTES // shape.vector + 1):
            made = _held(shape, cluster, items)
            if made.items == items and made.threads <= _LARGE:
                yield made


def _blocks(device: Machine) -> tuple[int, ...]:
    return (1, *CLUSTERS) if device.clusters else (1,)


def _held(shape: Shape, cluster: int, items: int) -> Schedule:
    """A row in so many blocks, whose threads have so many vectors each, or fewer."""
    vectors, whole = -(-shape.length // shape.vector), lcm(32, shape.piece)
    threads = -(-vectors // (cluster * items * whole)) * whole
    team = threads * cluster
    late = bool(shape.shared)
    return Schedule("registers", shape.vector, team, 1, -(-vectors // team), 0, late=late, cluster=cluster)
