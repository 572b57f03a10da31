"""Comparisons of values with the largest or least of them, which a maximum's gradient makes: some value is
equal to it only where both are found in the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from normgen.ir.nodes import Call, Expr, Load, Reduce, walk


def tie_of(node: Expr) -> tuple[Expr, Reduce] | None:
    """Of a comparison of values with the largest or least of them, those values and that."""
    if isinstance(node, Call) and node.op in ("eq", "ne"):
        for value, extreme in (node.args, node.args[::-1]):
            if isinstance(extreme, Reduce) and extreme.op != "sum" and extreme.arg is value:
                return value, extreme
    return None


def computed_ties(*roots: Expr) -> Iterator[tuple[Expr, Reduce]]:
    """The ties below the roots whose values are computed: what finds these again may round otherwise."""
    ties = (tie for node in walk(*roots) if (tie := tie_of(node)) is not None)
    return ((value, extreme) for value, extreme in ties if not is_stored(value))


def is_stored(value: Expr) -> bool:
    """Whether every kernel finds the same bits: what is in memory, or its magnitude."""
    match value:
        case Load():
            return True
        case Call(op="abs", args=(inside,)):
            return is_stored(inside)
    return False
