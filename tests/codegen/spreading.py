"""Norms whose axes are spread, on simulated ranks: their programs in float64, and arrays cut for them."""

from __future__ import annotations

import numpy as np

from normgen.ir.nodes import walk
from normgen.ir.reference import evaluate

IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}


def cut(length, ranks):
    """The lengths of a run on each rank: the first is larger, one in the middle is empty."""
    if ranks == 2:
        return [length - length // 3, length // 3]
    shares = [2.0, *[1.0] * (ranks - 1)]
    shares[ranks // 2] = 0.0
    ends = np.round(length * np.cumsum(shares) / sum(shares)).astype(int)
    return np.diff(ends, prepend=0).tolist()


def pieces(array, order, cuts):
    """An array, cut along the spread axes that it has: a piece per rank. `cuts`: of each axis, its lengths on
    the ranks."""
    for axis in set(cuts).intersection(order):
        return np.split(array, np.cumsum(cuts[axis])[:-1], axis=order.index(axis))
    return [array] * len(next(iter(cuts.values())))


def run(spread, given, extents, scalars=None, dtype=np.float64):
    """The results on each rank. `given`, `extents`: of each rank, its arrays and the lengths of axes."""
    names, count = spread.names, len(given)
    axes = {axis: [own[axis] for own in extents] for axis in names.axes}
    numbers = {**(scalars or {}), **{names.size(a): float(sum(n)) for a, n in axes.items()}}
    counts = {names.count(a): np.array(n, float) for a, n in axes.items()}
    hold = [{**arrays, **counts} for arrays in given]
    done = [{} for _ in given]

    def local(program, rank):
        own = extents[rank]
        if any(own[axis] == 0 for axis in concerned(program, names.axes)):
            made = {r.tensor.name: nothing(spread, r.tensor, own) for r in program.results}
            return made | {f"update:{u.state}": hold[rank][u.state] for u in program.updates}
        named = {**numbers, **{names.length(axis): float(n) for axis, n in own.items()}}
        return evaluate(program, hold[rank], {**own, names.rank: count}, named, dtype=dtype)

    for program, told in zip(spread.rounds, spread.told, strict=True):
        made = [local(program, rank) for rank in range(count)]
        gathered = {t.name: np.stack([each[t.name] for each in made]) for t in told}
        for rank in range(count):
            done[rank] |= made[rank]
            hold[rank] |= {own: made[rank][name] for own, name in spread.own.items() if name in made[rank]}
            hold[rank] |= gathered
    for rank in range(count):
        for program in (spread.merge, spread.apply):
            done[rank] |= local(program, rank)
            hold[rank] |= done[rank] if program is spread.merge else {}
    return done


def concerned(program, axes):
    """The spread axes along which a program reads elements."""
    roots = [*(r.expr for r in program.results), *(u.expr for u in program.updates)]
    return {axis for node in walk(*roots) for axis in node.axes} & axes


def nothing(spread, tensor, own):
    """What a rank has of a result that is made of no elements."""
    return np.full([own[axis] for axis in tensor.order], IDENTITY[spread.parts.get(tensor.name, "sum")])


def joined(name, placement, order, parts, axes):
    """The global value of what ranks have of a result; whole results must have the same bits on all ranks."""
    if placement == "shard":
        (axis,) = set(axes).intersection(order)
        return np.concatenate(parts, axis=order.index(axis))
    if placement == "whole":
        assert all(np.array_equal(parts[0], each, equal_nan=True) for each in parts), name
        return parts[0]
    return sum(np.asarray(each, np.float64) for each in parts)
