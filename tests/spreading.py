"""Norms whose axes are spread, on ranks that are simulated: their programs in float64, and their arrays cut."""

from __future__ import annotations

import numpy as np

from normgen.ir.reference import evaluate

IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}
# Lengths of a spread axis on each rank: none, one and several elements; of eight, half have one.
CUTS = {2: lambda n: [n - n // 3, n // 3], 3: lambda n: [n - n // 3 - 1, 0, n // 3 + 1]}
CUTS[8] = lambda n: [max(0, min(1 + (k == 0) * max(0, n - 8), n - k)) for k in range(8)]


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
    hold = [{**g, **{names.count(a): np.array(n, float) for a, n in axes.items()}} for g in given]
    done = [{} for _ in given]

    def local(program, rank):
        own = extents[rank]
        named = {**numbers, **{names.length(axis): float(n) for axis, n in own.items()}}
        if any(own[axis] == 0 for result in program.results for axis in spread_axes(result)):
            return {r.tensor.name: nothing(r.tensor, own) for r in program.results}
        return evaluate(program, hold[rank], {**own, names.rank: count}, named, dtype=dtype)

    def spread_axes(result):
        from normgen.ir.nodes import walk

        return {a for node in walk(result.expr) for a in node.axes} & names.axes

    def nothing(tensor, own):
        fill = IDENTITY[spread.parts.get(tensor.name, "sum")]
        return np.full([own[axis] for axis in tensor.order], fill)

    for program in spread.rounds:
        told = [local(program, rank) for rank in range(count)]
        for result in program.results:
            name = result.tensor.name
            if result.tensor.role == "temporary":
                gathered = np.stack([t[name] for t in told])
                for h in hold:
                    h[name] = gathered
            else:
                for d, t in zip(done, told, strict=True):
                    d[name] = t[name]
    for rank in range(count):
        for program in (spread.merge, spread.apply):
            made = local(program, rank)
            hold[rank] |= made
            done[rank] |= made
    return done


def joined(name, placement, order, parts, axes):
    """The global value of what ranks have of a result; whole results must have the same bits on all ranks."""
    if placement == "shard":
        (axis,) = set(axes).intersection(order)
        return np.concatenate(parts, axis=order.index(axis))
    if placement == "whole":
        assert all(np.array_equal(parts[0], each, equal_nan=True) for each in parts), name
        return parts[0]
    return sum(np.asarray(each, np.float64) for each in parts)
