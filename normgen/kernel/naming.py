"""Statements that name values: what several others are made of, and what has a name in the spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from normgen.ir.expr import Const, Expr, Extent, children, walk
from normgen.ir.nodes import is_condition
from normgen.kernel.printer import Printer


def named_values(
    roots: Iterable[Expr],
    printer: Printer,
    name: Callable[[Expr, int], str],
    comment: Callable[[Expr], str] = lambda node: "",
    again: Collection[Expr] = (),
) -> dict[Expr, str]:
    """The statement of each value that gets a name, operands first. The printer knows the names from then on.

    `name`: of a value that so many others and roots are made of; empty where it gets none. `again`: values
    that may get another name than they have.
    """
    roots, known = list(roots), set(printer.names)
    found = list(walk(*roots, into=lambda node: () if node in known else children(node)))
    uses = Counter(roots)
    uses.update(child for node in found if node not in known for child in set(children(node)))
    out: dict[Expr, str] = {}
    for node in found:
        if isinstance(node, Const | Extent) or is_condition(node) or (node in known and node not in again):
            continue
        if called := name(node, uses[node]):
            out[node] = f"const float {called} = {printer.text(node)};{comment(node)}"
            printer.names[node] = called
    return out
