"""What a rank has of each value of a program, where axes are spread over ranks.

A spread axis is cut: each rank has a run of its elements, and with them a *shard* of every tensor that has
the axis. Other tensors are *whole*, the same on every rank. A reduction over a spread axis gives a rank its
own *part*: of a sum, a maximum or a minimum over all ranks. A part of a sum stays one through whatever is
linear in it; any other user needs the value itself, for which ranks must exchange their parts.

    y = x rsqrt(mean[D](x^2)), D spread    sum[D](x^2) is a part, and needed: x is multiplied by its root
    dw = sum[...](dy x rstd), ... spread   is a part, and may stay one: dw is the sum over ranks

The rule is that of sharding in compilers for clusters: an all-reduce moves down past linear users.
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


def kinds(roots: Iterable[Expr], axes: Axes, gradients: Collection[Expr] = ()) -> Kinds:
    """What a rank has where these axes are spread, all of them over the same ranks.

    `gradients`: the values that are linear in some cotangent. Of several sums that are multiplied, the one
    among these may stay a part, and the others are needed.

    Raises `Unspreadable` where a window runs along such an axis, or a value varies over two of them.
    """
    found: dict[Expr, Kind] = {}
    needed: dict[Expr, None] = {}
    linear: dict[Expr, tuple[Expr, ...]] = {}
    for node in walk(*roots):
        _refuse(node, axes)
        below = children(node)
        if isinstance(node, Reduce) and node.over & axes and found[node.arg] == "shard":
            found[node] = _BY_OPERATION[node.op]
            continue
        parts = [child for child in below if found[child] in PARTS]
        staying = _staying(node, parts, found, gradients) if parts else ()
        if staying:
            found[node], linear[node] = "sum", staying
        else:
            found[node] = "shard" if node.axes & axes else "whole"
        needed |= dict.fromkeys(child for child in parts if child not in staying)
    return Kinds(found, tuple(needed), linear)


def _refuse(node: Expr, axes: Axes) -> None:
    if isinstance(node, Reduce):
        for axis, _, _ in node.window:
            if axis in axes:
                raise Unspreadable(f"has windows along {axis}, which is spread over ranks", axis, node)
    both = sorted(node.axes & axes)
    if len(both) > 1:
        names = " and ".join(both)
        raise Unspreadable(f"has a value that varies over {names}, which the same ranks share", both[0], node)


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
