"""The statements by which blocks add up the pieces of their rows, and leave what they found.

A thread has a value for each element of a vector, the same elements of a piece in all its vectors. It puts
them into shared memory, where those of all threads of the block lie as pieces again; these are added up.
"""

from __future__ import annotations

from collections.abc import Mapping

from normgen.codegen.access import ColumnText
from normgen.codegen.plan import KernelPlan
from normgen.codegen.text import lengths_of


def declared(plan: KernelPlan, arrays: Mapping[str, str]) -> list[str]:
    """Their shared memory. `arrays`: what threads have, and when that is wanted."""
    span = lengths_of(plan.part)
    return [
        f"using Places = PiecePlaces<Layout, TEAM, THREADS, VEC, {span}>;",
        *(
            f"__shared__ __align__(16) float {name}_places[{_factor(wanted)} ? THREADS * VEC : 1];"
            for name, wanted in arrays.items()
        ),
    ]


def put(name: str, wanted: str) -> str:
    """The statement that puts what a thread has where its block adds it up."""
    return f"if constexpr ({wanted}) Places::put({name}_places, {name});"


def left(columns: list[ColumnText], arrays: Mapping[str, str], apart: Mapping[str, str]) -> list[str]:
    """The statements that add up what threads have put, and leave of each accumulator what a block has.
    `apart`: by accumulator, what it is made of where it is made of several such sums."""
    own = {c.name: f"Places::total({c.name}_places, place)" for c in columns}
    return [
        f"if constexpr ({' || '.join(dict.fromkeys(c.flag for c in columns))}) {{",
        "    __syncthreads();  // every thread has put what it has",
        *(f"    if constexpr ({wanted}) Places::add({name}_places);" for name, wanted in arrays.items()),
        "    __syncthreads();  // every share of them is added up",
        *(
            f"    if constexpr ({c.flag}) Places::leave({c.partial}, rows, row, lane, "
            f"[&](int place) {{ return {apart.get(c.name, own[c.name])}; }});"
            for c in columns
        ),
        "}",
    ]


def _factor(condition: str) -> str:
    return f"({condition})" if " " in condition else condition
