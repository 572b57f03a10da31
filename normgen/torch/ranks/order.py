"""The order of exchanges in graphs of compilers, which keep operators in no other order than their data.

Inductor orders operators by the sizes of what they make, which differ between ranks, and so would exchange
what one rank tells of one norm for what another tells of another. So in a graph each exchange takes a tensor
that the exchange before it makes.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx import has_side_effect
from torch.utils.checkpoint import CheckpointPolicy

from normgen.torch import private

# Of an exchange the place among those of its group in a graph, from 1; 0 outside of graphs.
PLACE: ContextVar[int] = ContextVar("PLACE", default=0)


class _Line:
    """What is known of the exchanges of a graph while it is made."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None  # made by the last one
        self.counts: Counter[str] = Counter()  # of each group


_LINES: Any = WeakKeyDictionary()  # by what makes a graph


def stand_in_line(operator: Any, library: torch.library.Library, group: Any) -> None:
    """Have an operator that exchanges take its turn where a graph is made of it. `group`: tells the name of
    the group that it is given."""
    head, _, rest = str(operator._schema).partition("(")
    parameters, _, returned = rest.rpartition(") -> ")
    space, _, name = f"{head}_in_line".partition("::")
    results = returned.removeprefix("(").removesuffix(")")
    library.define(
        f"{name}(Tensor? after, int place, {parameters}) -> ({results}, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    in_line = getattr(getattr(torch.ops, space), name).default

    def compute(after: torch.Tensor | None, place: int, *given: Any) -> Any:
        token = PLACE.set(place)
        try:
            made = operator(*given)
        finally:
            PLACE.reset(token)
        like = next(each for each in given if isinstance(each, torch.Tensor))
        return (*(made if isinstance(made, tuple) else (made,)), like.new_empty(0))

    def trace(mode: Any, _: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        line = _LINES.setdefault(mode.tracer, _Line())
        key = group(*given)
        line.counts[key] += 1
        with mode:
            *made, line.last = in_line(line.last, line.counts[key], *given, **(named or {}))
        _keep(mode.tracer.graph, in_line)
        return made[0] if len(made) == 1 else tuple(made)

    library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{space}::{name}", compute, lib=library)
    private.in_graphs(head, trace, library)
    has_side_effect(in_line)


class _Meta(dict[str, Any]):
    """What passes over a graph note of an exchange. It is made once, where the program has it: what is
    checkpointed is not computed again, and a backward has no exchange of the forward."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "partitioner_tag":
            value = str(value).replace("is_", "must_be_in_")
        if key == "recompute":
            value = CheckpointPolicy.MUST_SAVE
        super().__setitem__(key, value)


def _keep(graph: torch.fx.Graph, operator: Any) -> None:
    """Keep the last call of an operator as it is, whether what it makes is used or not."""
    call = next(node for node in reversed(graph.nodes) if node.target is operator)
    for node in (call, *call.users):
        meta, node.meta = node.meta, _Meta()
        for key, value in meta.items():
            node.meta[key] = value
