"""The statements that add up parts of rows, and leave what was found.

Parts of a row that is contiguous are runs of its elements: a thread has a value for each of its vectors, and
lanes side by side add them up. Of a row in pieces, which are added up themselves, a thread has a value for
each element of a vector, the same elements of a piece in all its vectors. It puts them into shared memory,
where those of all threads of the block lie as pieces again.
"""

from __future__ import annotations

from collections.abc import Mapping

from normgen.ir.expr import Expr
from normgen.kernel.access import ColumnText
from normgen.kernel.plan import KernelPlan
from normgen.kernel.text import lengths_of


class PartsText:
    """Of one form of a kernel. `columns`: its accumulators; `sums`: what the last pass of sums adds up of
    parts of rows, by what it is made of. `late`: whether that is first put together when results are stored.
    """

    def __init__(
        self, plan: KernelPlan, columns: list[ColumnText], sums: Mapping[Expr, str], late: bool
    ) -> None:
        self._plan, self._late = plan, late
        self._columns = [c for c in columns if c.part]
        self._every = list(sums.values())
        self._sums = [  # those that some wanted result is made of
            name
            for value, name in sums.items()
            if any(value is v for c in self._columns for _, v in c.column.terms)
        ]
        # the accumulators that are none of them, nor made of them
        self._own = [c.name for c in self._columns if not c.column.terms]

    @property
    def declared(self) -> list[str]:
        """Statements before the first pass over a row."""
        if not self._plan.adds_pieces:
            return [f"float {name}[ITEMS] = {{}};" for name in self._every]
        return [
            f"using Places = PiecePlaces<Layout, TEAM, THREADS, VEC, {lengths_of(self._plan.part)}>;",
            *(
                f"__shared__ __align__(16) float {name}_places[THREADS * VEC];"
                for name in self._sums + self._own
            ),
            *(f"float {name}[VEC] = {{}};" for name in self._every),
        ]

    @property
    def runs(self) -> list[str]:
        """Those that follow the last pass of sums. Fewer registers cross the exchange then; those of a
        cooperative row follow its stores, which have waited long enough.
        """
        return [] if self._late else self._together(self._sums)

    def left(self, apart: Mapping[str, str]) -> list[str]:
        """Those that leave what is found, at the end. `apart`: by accumulator, what it is made of where that
        is several sums."""
        late = self._together(self._sums) if self._late else []
        if self._columns and self._plan.adds_pieces:
            return [*late, *self._together(self._own), *self._left_of_pieces(apart)]
        inside = lengths_of(self._plan.inside)
        return late + [line for c in self._columns for line in c.left(inside, apart.get(c.name, ""))]

    def _together(self, sums: list[str]) -> list[str]:
        """Those by which threads add up what they have, or put it where their block does."""
        step = "Places::put({0}_places, {0})" if self._plan.adds_pieces else "add_runs<RUN>({0})"
        return [f"{step.format(name)};" for name in sums]

    def _left_of_pieces(self, apart: Mapping[str, str]) -> list[str]:
        found = {c.name: f"Places::total({c.name}_places, place)" for c in self._columns} | dict(apart)
        return [
            "__syncthreads();  // every thread has put what it has",
            *(f"Places::add({name}_places);" for name in self._sums + self._own),
            "__syncthreads();  // every share of them is added up",
            *(
                f"Places::leave({c.partial}, rows, row, lane, [&](int place) {{ return {found[c.name]}; }});"
                for c in self._columns
            ),
        ]
