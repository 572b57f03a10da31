"""What a rank has of each value of a program, where axes are spread over ranks.

A spread axis is cut: each rank has a run of its elements, and with them a *shard* of every tensor that has
the axis. Other tensors are *whole*, the same on every rank. A reduction over a spread axis gives a rank its
own *part*: of a sum, a maximum or a minimum over all ranks. A part of a sum stays one through whatever is
linear in it; any other user needs the value itself, for which ranks must exchange their parts.

    y = x rsqrt(mean[D](x^2)), D spread    sum[D](x^2) is a part, and needed: x is multiplied by its root
    dw = sum[...](dy x rstd), ... spread   is a part, and may stay one: dw is the sum over ranks

The rule is that of sharding in compilers for clusters: an all-reduce moves down past linear users.

Two axes may be cut as one: a rank has a run of the channels of all groups, say, which begins and ends within
groups. Then a shard is what varies along both of them. What varies along one alone is whole, and a reduction
of shards over one of them is a part for each element along the other.

    rstd from sum[C](x^2), (G C) spread    a part for each of G, of which ranks may have no elements at all
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from normgen.ir.nodes import Add, Axes, Expr, Mul, Reduce, children, walk

Kind = Literal["shard", "whole", "sum", "max", "min"]
PARTS: tuple[Kind, ...] = ("sum", "max", "min")
_BY_OPERATION: Mapping[str, Kind] = {part: part for part in PARTS}


class Unspreadable(Exception):
    """A program whose values no rank could compute from its shards. `axis`: along which; `node`: where."""

    def __init__(self, reason: str, axis: str, node: Expr) -> None:
        super().__init__(reason)
        self.reason, self.axis, self.node = reason, axis, node


@dataclass(frozen=True, slots=True)
class CutAxes:
    """The axes that are cut among ranks: `alone`, or two of them as one dimension, outer and inner."""

    alone: Axes
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def axes(self) -> Axes:
        """All of them."""
        return self.alone | self.paired

    @property
    def paired(self) -> Axes:
        """Those of pairs."""
        return frozenset(axis for pair in self.pairs for axis in pair)

    def among(self, axes: Axes) -> list[Axes]:
        """What is cut of a value with these axes, each by itself."""
        alone = [frozenset({axis}) for axis in sorted(self.alone & axes)]
        return [*alone, *(frozenset(pair) for pair in self.pairs if axes.issuperset(pair))]

    def is_shard(self, axes: Axes) -> bool:
        """Whether ranks have shards of a tensor with these axes."""
        return bool(self.among(axes))

    def over_ranks(self, node: Reduce) -> bool:
        """Whether a reduction is one of shards, over what is cut."""
        return any(cut & node.over for cut in self.among(node.arg.axes))


@dataclass(frozen=True, slots=True)
class Kinds:
    """What a rank has of the values below some roots.

    `needed`: the parts that some user needs whole. `linear`: of each sum that is made of parts, the operands
    that may stay parts.
    """

    of: Mapping[Expr, Kind]
    needed: tuple[Expr, ...]
    linear: Mapping[Expr, tuple[Expr, ...]]

    def is_part(self, node: Expr) -> bool:
        """Whether a rank has no more than its own part of a value."""
        return self.of[node] in PARTS


def kinds(roots: Iterable[Expr], cut: CutAxes | Axes, gradients: Collection[Expr] = ()) -> Kinds:
    """What a rank has where these axes are spread, all of them over the same ranks.

    `gradients`: the values that are linear in some cotangent. Of several sums that are multiplied, the one
    among these may stay a part, and the others are needed.

    Raises `Unspreadable` where a window runs along such an axis, or a value varies over two of them.
    """
    cut = cut if isinstance(cut, CutAxes) else CutAxes(cut)
    found: dict[Expr, Kind] = {}
    needed: dict[Expr, None] = {}
    linear: dict[Expr, tuple[Expr, ...]] = {}
    for node in walk(*roots):
        _refuse(node, cut)
        below = children(node)
        if isinstance(node, Reduce) and node.over & cut.axes and found[node.arg] == "shard":
            found[node] = _BY_OPERATION[node.op]
            continue
        parts = [child for child in below if found[child] in PARTS]
        # (A product of a part for each group and a value for each channel in groups is a shard.)
        may_stay = parts and not cut.is_shard(node.axes)
        staying = _staying(node, parts, found, gradients) if may_stay else ()
        if staying:
            found[node], linear[node] = "sum", staying
        else:
            found[node] = "shard" if cut.is_shard(node.axes) else "whole"
        needed |= dict.fromkeys(child for child in parts if child not in staying)
    return Kinds(found, tuple(needed), linear)


def _refuse(node: Expr, cut: CutAxes) -> None:
    if isinstance(node, Reduce):
        for axis, _, _ in node.window:
            if axis in cut.axes:
                raise Unspreadable(f"has windows along {axis}, which is sharded", axis, node)
    several = cut.among(node.axes)
    if len(several) > 1:
        both = sorted(frozenset().union(*several))
        names = " and ".join(both)
        raise Unspreadable(
            f"has a value that varies over {names}, which are sharded over the same ranks", both[0], node
        )


def _staying(
    node: Expr, parts: list[Expr], found: Mapping[Expr, Kind], gradients: Collection[Expr]
) -> tuple[Expr, ...]:
    """The operands that may stay parts so that the node is itself a part of a sum; () where it is none."""
    sums = [part for part in parts if found[part] == "sum"]
    match node:
        case Add(terms=terms):
            return tuple(sums) if len(sums) == len(terms) else ()
        case Mul(factors=pairs):
            if len(parts) > 1:
                sums = [part for part in sums if part in gradients]
            alone = len(sums) == 1 and dict(pairs)[sums[0]] == 1
            return tuple(sums) if alone and all(found[base] != "shard" for base, _ in pairs) else ()
        case Reduce(op="sum", window=()):
            return tuple(sums)
    return ()
