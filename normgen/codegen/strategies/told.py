"""The local programs of a direction as one kernel, whose rows tell other ranks of themselves.

Where ranks exchange once, a kernel that has a row whole can do it in the middle: it tells the peers what it
has of the row, waits for what they have, and goes on with what it holds.

    a root mean square, D spread over two ranks
      t1 = sum[D](x^2);  s = t1 of rank 0 + t1 of rank 1;  y[..., D] = x * rsqrt(s / size_D + eps) * w
"""

from __future__ import annotations

from collections.abc import Mapping

from normgen.codegen.strategies.local import Locals, free_name
from normgen.codegen.strategies.ranks import Spread
from normgen.codegen.strategies.registry import plan_otherwise
from normgen.codegen.strategies.stages import PlannedStrategy, groups_of
from normgen.ir.expr import call, in_order, load, reductions, rewrite, scalar, told
from normgen.ir.nodes import Expr
from normgen.ir.program import Program, Result, Tensor
from normgen.kernel.group import Misfit

MOST_RANKS = 8  # of which each has a line of its own in the kernel


def told_program(made: Spread, ranks: int) -> tuple[Program, str]:
    """The program that one rank of so many runs, and the operand that says how it reaches the others. Raises
    `Misfit` where they exchange not once, or leave more than shards and what is whole."""
    uncut = made.uncut
    if len(made.rounds) != 1 or uncut.updates or ranks > MOST_RANKS:
        raise Misfit(f"`{uncut.name}` exchanges not once, or updates states")
    if "part" in made.placements.values():
        raise Misfit(f"`{uncut.name}` leaves parts of sums")
    channel = Tensor(free_name(uncut, "peers"), "input", (), "f32", None, None, "", None)
    tables = [_told_by(rank, made, load(channel.name, frozenset())) for rank in range(ranks)]
    done: dict[Expr, Expr] = {}
    results = []
    for result in uncut.results:
        for node in reductions(result.expr):
            if made.names.rank in node.over and node not in done:
                of_each = [rewrite(node.arg, {**done, **table}) for table in tables]
                done[node] = _combined(node.op, of_each)
        results.append(Result(result.tensor, rewrite(result.expr, done), result.kept))
    return Locals(uncut, made.names).of("told", results, more=[channel]), channel.name


def told_strategy(program: Program) -> PlannedStrategy:
    """The one kernel of such a program; raises `Misfit` where there is none."""
    groups = groups_of(program, program.name)
    if len(groups) > 1:
        raise Misfit(f"`{program.name}` is more than one kernel")
    return PlannedStrategy((plan_otherwise("told", groups[0]),), (), "told")


def number_of(count: str, rank: int) -> str:
    """The number that is the length of a spread axis on a rank. `count`: the tensor of all of them."""
    return f"{count}_{rank}"


def _told_by(rank: int, made: Spread, channel: Expr) -> Mapping[Expr, Expr]:
    """What stands for what all ranks have told, of one of them."""
    temporaries = [r for r in made.rounds[0].results if r.tensor.role == "temporary"]
    values = tuple(r.expr for r in temporaries)
    names, every = made.names, made.names.rank
    table: dict[Expr, Expr] = {
        load(r.tensor.name, r.tensor.axes | {every}): told(channel, values, which, rank)
        for which, r in enumerate(temporaries)
    }
    counts = (names.count(axis) for axis in names.axes)
    return table | {load(each, frozenset({every})): scalar(number_of(each, rank)) for each in counts}


def _combined(op: str, values: list[Expr]) -> Expr:
    """Values of ranks, combined in their order."""
    if op == "sum":
        return in_order(values)
    found = values[0]
    for each in values[1:]:
        found = call(op, found, each)
    return found
