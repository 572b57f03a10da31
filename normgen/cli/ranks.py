"""`explain --shard`: what ranks compute and exchange if axes of a norm are sharded."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from normgen.counting import counted
from normgen.runtime.ranks.peer_memory import RULE

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.codegen.ranks import Spread
    from normgen.ir.program import Program, Tensor
    from normgen.package.spread import PairRecord

_WITHIN = (
    "Shards that cut through groups always exchange between kernels, because a rank runs separate kernels "
    "for each block."
)
_HAVE = {
    "shard": "a shard",
    "whole": "whole: the same bits on every rank",
    "part": "a part: its value is the sum over ranks",
}


def explained(made: Compilation, axes: Sequence[str], directions: Sequence[str]) -> str:
    """The stages of these directions. Raises `SpecError` for axes that cannot be sharded."""
    from normgen.codegen.ranks import rank_compilation

    program = made.definition.program
    on_rank = rank_compilation(made.definition, axes, 1)  # which shows how it is on any number
    lines = [f"{program.name} with {' and '.join(axes)} sharded"]
    exchanges = 0
    for blocks in (False, True) if on_rank.runs.pairs else (False,):
        if on_rank.runs.pairs:
            lines += ["", *textwrap.wrap(_runs_text(on_rank.runs.pairs, blocks), 80)]
        for name, each in made.programs:
            if name in directions:
                spread = on_rank.program(name, [r.tensor.name for r in each.results], (), blocks)
                lines += ["", *_direction(name, each, spread)]
                exchanges += len(spread.rounds)
    if exchanges:
        lines += ["", *textwrap.wrap(RULE, 80)]
    if on_rank.runs.pairs:
        lines += ["", *textwrap.wrap(_WITHIN, 80)]
    return "\n".join(lines) + "\n"


def _runs_text(pairs: Sequence[PairRecord], blocks: bool) -> str:
    names, groups = (" and ".join(each) for each in ([p.name for p in pairs], [p.outer for p in pairs]))
    if blocks:
        return (
            f"Any other shards of {names}: each rank splits its shard into up to 3 blocks and sends the "
            f"statistics of every group that it has elements of."
        )
    alike = ", the same number on each rank" if any(pair.groups is not None for pair in pairs) else ""
    return f"Shards of whole groups{alike}: these are shards of {groups}."


def _direction(name: str, program: Program, spread: Spread) -> Iterator[str]:
    reads = ", ".join(t.name for t in program.operands)
    results = ", ".join(r.tensor.name for r in program.results)
    yield f"{name}({reads}) -> {results}: {_exchanged(len(spread.rounds))}"
    for number, (each, told) in enumerate(zip(spread.rounds, spread.told, strict=True), 1):
        yield f"  round {number}: each rank sends {told_text(told)}"
        yield from _formulas(each)
    if spread.merge.results or spread.merge.updates:
        yield "  merge: every rank computes the same values from what all ranks sent"
        yield from _formulas(spread.merge)
    if spread.apply.results or spread.apply.updates:
        yield "  apply: each rank computes its own results"
        yield from _formulas(spread.apply)
    for result, placement in spread.placements.items():
        yield f"  {result.replace('update:', 'the new ')} is {_HAVE[placement]}"


def _exchanged(rounds: int) -> str:
    return f"{counted(rounds, 'exchange') if rounds else 'no exchange'} between ranks"


def told_text(told: Sequence[Tensor]) -> str:
    """How much a rank sends: `3 floats per ...`."""
    numbers: dict[tuple[str, ...], int] = {}
    for tensor in told:
        numbers[tensor.order] = numbers.get(tensor.order, 0) + 1
    return " and ".join(
        counted(number, "float") + (f" per {' x '.join(order)}" if order else "")
        for order, number in numbers.items()
    )


def _formulas(program: Program) -> Iterator[str]:
    from normgen.ir.show import show_results

    return (f"    {line}" for line in show_results(program).splitlines())
