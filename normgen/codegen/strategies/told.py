"""The local programs of a direction as one kernel, whose rows tell other ranks of themselves.

Where ranks exchange once, a kernel that has a row whole can do it in the middle: it tells the peers what it
has of the row, waits for what they have, and goes on with what it holds.

    a root mean square, D spread over two ranks
      t1 = sum[D](x^2);  s = t1 of rank 0 + t1 of rank 1;  y[..., D] = x * rsqrt(s / size_D + eps) * w

What is accumulated over rows besides, such as the gradient by w, is for the kernels of a program behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from normgen.codegen.strategies.local import Locals, free_name
from normgen.codegen.strategies.ranks import Spread
from normgen.codegen.strategies.registry import plan_otherwise
from normgen.codegen.strategies.stages import PlannedStrategy, groups_of
from normgen.ir.expr import call, in_order, load, reductions, rewrite, scalar, told
from normgen.ir.nodes import Expr
from normgen.ir.program import Program, Result, Tensor
from normgen.ir.reads import tensors_read
from normgen.kernel.group import Misfit

MOST_RANKS = 8  # of which each has a line of its own in the kernel


@dataclass(frozen=True, slots=True)
class ToldProgram:
    """`rows`: the program of the kernel that tells rows; `channel`: its operand that says how a rank reaches
    the others; `rest`: that of what is accumulated over rows, if there is any, which reads `handed` results
    of the other."""

    rows: Program
    channel: str
    rest: Program | None
    handed: tuple[str, ...]


def told_program(made: Spread, ranks: int) -> ToldProgram:
    """What one rank of so many runs. Raises `Misfit` where they exchange not once, or update states."""
    uncut = made.uncut
    if len(made.rounds) != 1 or uncut.updates or ranks > MOST_RANKS:
        raise Misfit(f"`{uncut.name}` does not exchange exactly once, or updates states")
    temporaries = [r for r in made.rounds[0].results if r.tensor.role == "temporary"]
    if len(temporaries) < len(made.rounds[0].results):
        raise Misfit(f"`{uncut.name}` leaves partial sums next to what it exchanges")
    numbers = temporaries[0].tensor.axes
    over = [r for r in uncut.results if any(n.over & numbers for n in reductions(r.expr))]
    rest, handed = _rest(made, {r.tensor.name for r in over}) if over else (None, [])
    within = [*(r for r in uncut.results if r not in over), *handed]
    if not within or any(made.placements.get(r.tensor.name) == "part" for r in within):
        raise Misfit(f"`{uncut.name}` has no result per row, or partial sums")
    channel = Tensor(free_name(uncut, "peers"), "input", (), "f32", None, None, "", None)
    tables = [_told_by(rank, made, temporaries, load(channel.name, frozenset())) for rank in range(ranks)]
    results = _of_what_is_told(within, made.names.rank, tables)
    rows = Locals(uncut, made.names).of("told", results, more=[channel])
    return ToldProgram(rows, channel.name, rest, tuple(r.tensor.name for r in handed))


def _of_what_is_told(
    results: Sequence[Result], every: str, tables: Sequence[Mapping[Expr, Expr]]
) -> list[Result]:
    """The results, where reductions over ranks combine what each has told. `tables`: what stands for that."""
    done: dict[Expr, Expr] = {}
    for node in reductions(*(result.expr for result in results)):
        if every in node.over:
            done[node] = _combined(node.op, [rewrite(node.arg, {**done, **table}) for table in tables])
    return [replace(result, expr=rewrite(result.expr, done)) for result in results]


def _rest(made: Spread, names: Collection[str]) -> tuple[Program, list[Result]]:
    """The program of results that are accumulated over rows, and what it reads of rows that have been told,
    as results."""
    results = tuple(r for r in made.apply.results if r.tensor.name in names)
    read = tensors_read([r.expr for r in results])
    rest = replace(
        made.apply,
        name=f"{made.apply.name}_rest",
        results=results,
        operands=tuple(t for t in made.apply.operands if t.name in read),
    )
    told = {r.tensor.name: r for r in made.rounds[0].results}
    kept = [Result(replace(told[n].tensor, name=o), told[n].expr, False) for o, n in made.own.items()]
    every = [r for r in (*made.merge.results, *kept) if r.tensor.name in read]
    return rest, [replace(r, tensor=replace(r.tensor, role="output")) for r in every]


def told_strategy(program: Program) -> PlannedStrategy:
    """The one kernel of such a program; raises `Misfit` where there is none."""
    groups = groups_of(program, program.name)
    if len(groups) > 1:
        raise Misfit(f"`{program.name}` needs more than one kernel")
    return PlannedStrategy((plan_otherwise("told", groups[0]),), (), "told")


def number_of(count: str, rank: int) -> str:
    """The number that is the length of a spread axis on a rank. `count`: the tensor of all of them."""
    return f"{count}_{rank}"


def _told_by(rank: int, made: Spread, temporaries: Sequence[Result], channel: Expr) -> Mapping[Expr, Expr]:
    """What stands for what all ranks have told, of one of them."""
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
