"""`explain --shard`: what ranks compute and exchange where axes of a norm are spread over them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from normgen.counting import counted
from normgen.runtime.ranks.words import RULE

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.codegen.ranks import Spread
    from normgen.ir.program import Program, Tensor

_HAVE = {
    "shard": "a shard",
    "whole": "whole, the same bits on all ranks",
    "part": "a part: the sum over ranks is its value",
}


def explained(made: Compilation, axes: Sequence[str], directions: Sequence[str]) -> str:
    """The stages of these directions. Raises `SpecError` for axes that cannot be spread."""
    from normgen.codegen.ranks import local_definition, spread_program

    program = made.definition.program
    _, spread_axes = local_definition(made.definition, axes, 1)  # which shows how it is on any number
    lines = [f"{program.name} with {' and '.join(axes)} spread over ranks"]
    exchanges = 0
    for name, each in made.programs:
        if name in directions:
            spread = spread_program(made.definition, each, spread_axes)
            lines += ["", *_direction(name, each, spread)]
            exchanges += len(spread.rounds)
    if exchanges:
        lines += ["", *textwrap.wrap(f"on GPUs PyTorch's processes exchange by {RULE}", 80)]
    return "\n".join(lines) + "\n"


def _direction(name: str, program: Program, spread: Spread) -> Iterator[str]:
    reads = ", ".join(t.name for t in program.operands)
    results = ", ".join(r.tensor.name for r in program.results)
    yield f"{name}({reads}) -> {results}: {_exchanged(len(spread.rounds))}"
    for number, (each, told) in enumerate(zip(spread.rounds, spread.told, strict=True), 1):
        yield f"  round {number}: each rank tells {told_text(told)}"
        yield from _formulas(each)
    if spread.merge.results or spread.merge.updates:
        yield "  merge: each rank computes the same, of what all have told"
        yield from _formulas(spread.merge)
    if spread.apply.results or spread.apply.updates:
        yield "  apply: each rank computes its own"
        yield from _formulas(spread.apply)
    for result, placement in spread.placements.items():
        yield f"  {result.replace('update:', 'the new ')} is {_HAVE[placement]}"


def _exchanged(rounds: int) -> str:
    return f"{counted(rounds, 'exchange')} between ranks" if rounds else "nothing is exchanged"


def told_text(told: Sequence[Tensor]) -> str:
    """How much a rank tells: `3 floats per ...`."""
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
