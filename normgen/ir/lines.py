"""A program line by line, as it is shown: which values get a name of their own, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from normgen.ir.formula import covered, shown_parts
from normgen.ir.nodes import Expr, Mul, Reduce, children, walk
from normgen.ir.program import Program, Tensor
from normgen.ir.work import spend

LARGEST_REPEATED = 60  # nodes of a value that is written out wherever it is used


class Line(NamedTuple):
    """A line of a program that says what something is: `kind` is let, result or update."""

    kind: str
    name: str
    expr: Expr
    names: Mapping[Expr, str]  # of the values that it may call by a name
    tensor: Tensor | None = None
    kept: bool = False


def lines_of(program: Program) -> Iterator[Line]:
    """What a program computes, line by line: each uses names of lines before it."""
    roots = [r.expr for r in program.results] + [u.expr for u in program.updates]
    results = {r.expr: r for r in reversed(program.results)}
    shared = _shared(program, roots)
    names: dict[Expr, str] = {}
    said = set()
    for node in walk(*roots, into=shown_parts):
        result = results.get(node)
        if node in shared:
            yield Line("let", shared[node], node, dict(names))
            names[node] = shared[node]
        elif result is not None:
            yield Line("result", result.tensor.name, node, dict(names), result.tensor, result.kept)
            said.add(result.tensor.name)
            if children(node):
                names[node] = result.tensor.name
    for result in program.results:
        if result.tensor.name not in said:
            yield Line("result", result.tensor.name, result.expr, dict(names), result.tensor, result.kept)
    for update in program.updates:
        yield Line("update", update.state, update.expr, dict(names))


def _shared(program: Program, roots: list[Expr]) -> dict[Expr, str]:
    """Names of values that have one by the user, or are used twice and long or have a reduction in them."""
    results = {r.expr for r in program.results}
    given: dict[Expr, str] = {}
    for binding in program.bindings:
        if children(binding.expr):
            given.setdefault(binding.expr, binding.name)
    nodes = list(walk(*roots, into=shown_parts))
    uses = _uses(roots, [node for node in nodes if node in results or node in given])
    names: dict[Expr, str] = {}
    count = 0
    size: dict[Expr, int] = {}  # of the text, in nodes
    reduces: dict[Expr, bool] = {}  # whether there is a reduction in the text
    for node in nodes:
        parts = shown_parts(node)
        size[node] = 1 + sum(size[part] for part in parts)
        reduces[node] = isinstance(node, Reduce) or any(reduces[part] for part in parts)
        named = node in results
        if not named and parts and node in given:
            names[node] = given[node]
        elif not named and uses.get(node, 0) > 1 and (size[node] > LARGEST_REPEATED or reduces[node]):
            names[node], count = f"s{count}", count + 1
        elif not named:
            continue
        size[node], reduces[node] = 1, False
    return names


def _uses(roots: list[Expr], named: list[Expr]) -> Counter[Expr]:
    """How often each value stands in the text, where products that are `named` stand in their place."""
    products = [node for node in named if isinstance(node, Mul)]

    def parts(node: Expr) -> tuple[Expr, ...]:
        if isinstance(node, Mul) and products:
            spend(len(products) // 8)
            return tuple(base for base, _ in covered(node.factors, products))
        return shown_parts(node)

    return Counter(part for node in walk(*roots, into=parts) for part in parts(node))
