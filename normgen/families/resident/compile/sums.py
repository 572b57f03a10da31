"""A split of sums over rows, what applies them and what adds them up -> one kernel that keeps what it reads.

The strategy `resident` of a backward. A split has sums over the rows of a segment, of values of each element
of a row; what is made of these, for each element or for groups of neighbours; a result of every element that
is computed from that and from the very operands that were summed; and sums over segments, the gradients of
gains. In one kernel the rows of a segment are dealt out to blocks. Each adds up its slice and keeps it, and
leaves for the others what is linear in its sums: these themselves, or their sums over neighbours. All add up
what the members left, and apply it to what they have. What a slice adds to a sum over segments is linear in
its sums too, given what is known of all of them: each block leaves that, and a kernel of its own adds it up.

    t1 = sum[...](dy), t2 = sum[C](w * t1)     a slice's share of t2 is made of its own t1
    dw = sum[B](rstd * (t3 - mean * t1))       so is what it adds to dw, once the mean is known

Where all rows are one segment, in bands (`resident.py`), gradients of gains are made of what members left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.families.resident.compile.moments import has_bands
from normgen.ir.expr import ONE, Const, Expr, Load, Reduce, add, load, mul, rewrite, walk
from normgen.ir.program import Result, Tensor
from normgen.kernel.accumulators import Column, above
from normgen.kernel.group import Misfit
from normgen.kernel.kept import leaf_of
from normgen.kernel.linear import degree, factors_of
from normgen.kernel.plan import KernelPlan, Operand, operand_of

Order = tuple[str, ...]
Definitions = Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True)
class ResidentSumsPlan:
    """One kernel of the resident family whose statistics are sums, with the one that adds up its partials.

    `statistics` has the sums of each element of a row over the rows of a segment; a leaf stands for each in
    what follows. `folds`: what members leave for one another, values of each element of a row without the
    axes `folded`. `made`: what is computed from those of all members, once for each of these elements.
    `ends`: results that are computed from the same, where there is but one segment.
    `factors`: values of each element of a row by the tensor that stands for them in the results of `whole`,
    which are computed from these and from what blocks hold. `shares`: what a slice adds to each of the
    columns of `whole`. `needs`: for each operand, sum and made value the results that are computed from it.
    """

    whole: KernelPlan
    statistics: KernelPlan
    folds: tuple[Expr, ...]
    folded: Order
    made: tuple[Result, ...]
    ends: tuple[Result, ...]
    factors: tuple[tuple[str, Expr], ...]
    shares: tuple[Expr, ...]
    needs: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.whole.name

    @property
    def banded(self) -> bool:
        """Whether blocks have bands of a row: of the only segment."""
        return not self.whole.segment

    @property
    def kept(self) -> tuple[Operand, ...]:
        """The operands that blocks hold on chip: all that have a value for each element of each row."""
        walk = set(self.whole.kept) - set(self.whole.segment)
        return tuple(o for o in self.whole.operands if set(o.kept) & walk)

    @property
    def sums(self) -> tuple[Expr, ...]:
        """What stands for the sums over rows."""
        return tuple(leaf_of(c.reduce) for c in self.statistics.columns)


def plan_resident_sums(
    name: str, plans: tuple[object, ...], temporaries: tuple[Tensor, ...]
) -> ResidentSumsPlan:
    """One kernel of a split's; raises `Misfit` for other splits."""
    return _Planner(name, plans, temporaries).plan()


class _Planner:
    def __init__(self, name: str, plans: tuple[object, ...], temporaries: tuple[Tensor, ...]) -> None:
        self.name, self.temporaries = name, {t.name: t for t in temporaries}
        self.statistics, self.apply, self.others = self._parts(plans)
        self.inner = self.statistics.inner
        self.walk = frozenset(self.statistics.kept) - set(self.statistics.segment)
        self.sums = tuple(leaf_of(c.reduce) for c in self.statistics.columns)

    def _misfit(self, why: str) -> Misfit:
        return Misfit(f"`{self.name}` {why}")

    def _parts(self, plans: tuple[object, ...]) -> tuple[KernelPlan, KernelPlan, list[KernelPlan]]:
        """The plan of sums over rows, the one that applies them, and the rest, whatever families they are
        of."""
        parts = [p.parts if isinstance(p, ColumnsPlan) else p for p in plans]
        of_rows = [p for p in parts if isinstance(p, KernelPlan)]
        if not parts or of_rows != parts or not _is_statistics(of_rows[0], self.temporaries):
            raise self._misfit("has no sums over rows that blocks could keep")
        first, *rest = of_rows
        whole = set(first.kept + first.inner)
        applying = [p for p in rest if p.results and all(r.tensor.axes == whole for r in p.results)]
        if len(applying) != 1 or not _is_application(applying[0], first):
            raise self._misfit("has no operands that blocks could keep between two kernels")
        return first, applying[0], [p for p in rest if p is not applying[0]]

    # ------------------------------------------------------------------------------------------ the plan

    def plan(self) -> ResidentSumsPlan:
        statistics, apply = self.statistics, self.apply
        written = [r for p in self.others for r in (*p.results, *p.finals)]
        middle = [r for r in written if r.tensor.name in self.temporaries]
        results = tuple(r for r in written if r not in middle)
        first = self._of_sums(statistics.finals)
        folds, folded, made = self._met(first, middle)
        late = {_load(r) for r in made}
        ends = self._ends(first)
        columns = tuple(self._column(r, late) for r in results)
        shares = tuple(self._share(c, first, late) for c in columns)
        factors, applied = self._factored(frozenset(late))
        finals = [n for r in results for n in above([r.expr], frozenset(c.reduce for c in columns))]
        used = self._operands([*(c.value for c in statistics.columns), *folds, *shares, *factors.values(),
                               *(r.expr for r in (*made, *ends, *applied))])  # fmt: skip
        operands = tuple(o for o in used if o.tensor.name not in {*self.temporaries, *factors})
        whole = replace(
            apply,
            name=self.name,
            operands=operands,
            final_operands=self._operands(n for n in finals if isinstance(n, Load)),
            results=applied,
            columns=columns,
            finals=(*ends, *results),
            segment=statistics.segment,
        )
        made_of = {_load(r): r.expr for r in (*statistics.finals, *middle)}
        made_of |= {leaf: c.value for leaf, c in zip(self.sums, statistics.columns, strict=True)}
        needs = _needs((*apply.results, *ends, *results), made_of | dict(first))
        plan = ResidentSumsPlan(
            whole, statistics, folds, folded, made, ends, tuple(factors.items()), shares, needs
        )
        if {o.tensor.name for o in plan.kept} != {o.tensor.name for o in self._held()}:
            raise self._misfit("applies more than what was summed")
        if plan.banded and not (has_bands(statistics, apply) and folds == self.sums and not results):
            raise self._misfit("has one segment, whose rows have no bands")
        return plan

    def _held(self) -> list[Operand]:
        return [o for o in self.statistics.operands if set(o.kept) & self.walk]

    def _of_sums(self, finals: tuple[Result, ...]) -> Definitions:
        """What sums over rows are handed on as, in terms of their leaves."""
        leaves: dict[Expr, Expr] = {
            c.reduce: leaf for c, leaf in zip(self.statistics.columns, self.sums, strict=True)
        }
        return {_load(r): rewrite(r.expr, leaves) for r in finals}

    def _ends(self, first: Definitions) -> tuple[Result, ...]:
        """Results of sums over the only segment."""
        found = [r for r in self.statistics.finals if r.tensor.name not in self.temporaries]
        return tuple(replace(r, expr=first[_load(r)]) for r in found)

    def _met(
        self, first: Definitions, middle: list[Result]
    ) -> tuple[tuple[Expr, ...], Order, tuple[Result, ...]]:
        """What members leave, without which axes, and what is made of that."""
        known = dict(first)
        later = []
        for r in middle:
            known[_load(r)] = rewrite(r.expr, known)
            later.append(replace(r, expr=known[_load(r)]))
        found = dict.fromkeys(n for n in walk(*(r.expr for r in later)) if isinstance(n, Reduce))
        folds: tuple[Expr, ...] = tuple(found) or self.sums
        over = {n.over for n in found}
        folded = tuple(a for a in self.inner if any(a in axes for axes in over))
        atoms = frozenset(self.sums)
        linear = all(n.op == "sum" and not n.window and degree(n.arg, atoms) == 1 for n in found)
        if len(over) > 1 or not linear or self.inner[len(self.inner) - len(folded) :] != folded:
            raise self._misfit("folds its sums in more than one way")
        direct = set(above([r.expr for r in later], frozenset(found))) & atoms
        if found and direct:
            raise self._misfit("makes values of groups from those of single elements")
        read = {n for r in (*self.apply.results, *(r for p in self.others for r in (*p.results, *p.finals)))
                for n in walk(r.expr) if r not in middle}  # fmt: skip
        made = later or [replace(r, expr=first[_load(r)]) for r in self.statistics.finals if _load(r) in read]
        width = set(self.statistics.segment) | set(self.inner[: len(self.inner) - len(folded)])
        if not made or any(r.tensor.axes != width for r in made):
            raise self._misfit("hands on more than what its groups have")
        return folds, folded, tuple(made)

    def _column(self, result: Result, late: set[Expr]) -> Column:
        """The accumulator of a result that is a sum over all segments."""
        found = [n for n in above([result.expr], frozenset()) if isinstance(n, Reduce)]
        outer = [n for n in found if not any(n is not m and n in walk(m) for m in found)]
        if len(outer) != 1:
            raise self._misfit(f"has no one sum for `{result.tensor.name}`")
        (node,) = outer
        if node.op != "sum" or node.window or node.over != set(self.statistics.segment):
            raise self._misfit(f"sums other axes for `{result.tensor.name}`")
        if node.axes != set(self.inner) or result.tensor.role == "state":
            raise self._misfit(f"has no sum of each element for `{result.tensor.name}`")
        return Column(node, (), True)

    def _share(self, column: Column, first: Definitions, late: set[Expr]) -> Expr:
        """What a slice adds to a sum over segments: with its own sums in place of as many values that were
        handed on as make it linear in those."""
        read = [n for n in first if n in set(walk(column.value))]
        own = [n for n in read if n not in late]
        either = [n for n in read if n in late]
        for count in range(len(either), -1, -1):
            for some in combinations(either, count):
                share = rewrite(column.value, {n: first[n] for n in (*own, *some)})
                if degree(share, frozenset(self.sums)) == 1:
                    return share
        raise self._misfit("sums what is not linear in the sums of rows")

    def _factored(self, late: frozenset[Expr]) -> tuple[dict[str, Expr], tuple[Result, ...]]:
        """The results as sums of values of what is held, times values of each element of a row."""
        names: dict[Expr, Expr] = {}
        applied = []
        for result in self.apply.results:
            terms = []
            for c, v in factors_of(result.expr, self.walk, late, exact=False):
                if isinstance(c, Const):
                    terms.append(mul(c, v))
                    continue
                if c not in names:
                    names[c] = load(f"%factor_{len(names) + 1}", frozenset(self.inner))
                terms.append(names[c] if v is ONE else mul(names[c], v))
            left = {n for t in terms for n in walk(t)}
            if not terms or left & late:
                raise self._misfit(f"has no factors of what is held in `{result.tensor.name}`")
            applied.append(replace(result, expr=add(*terms)))
        return {n.tensor: c for c, n in names.items() if isinstance(n, Load)}, tuple(applied)

    def _operands(self, values: Iterable[Expr]) -> tuple[Operand, ...]:
        """The tensors that values are computed from, as the kernel sees them."""
        read = {n.tensor for n in walk(*values) if isinstance(n, Load)}
        plans = (self.statistics, self.apply, *self.others)
        tensors = {o.tensor.name: o.tensor for p in plans for o in (*p.operands, *p.final_operands)}
        found = [t for t in tensors.values() if t.name in read]
        space = set(self.statistics.kept + self.inner)
        if any(not t.axes <= space or (t.axes & self.walk and t.axes != space) for t in found):
            raise self._misfit("reads what has other axes than its rows")
        return tuple(operand_of(t, self.statistics.kept, self.inner) for t in found)


def _load(result: Result) -> Expr:
    """How a temporary is read."""
    return load(result.tensor.name, result.tensor.axes)


def _is_statistics(plan: KernelPlan, temporaries: Mapping[str, Tensor]) -> bool:
    """Whether it has nothing but sums over the rows of each segment, of each element of a row. What is made
    of them belongs to segments, but where there is only one."""
    if plan.levels or plan.results or plan.shared or plan.pieces or not plan.columns:
        return False
    plain = all(
        c.op == "sum" and c.wide and c.kept == plan.segment and not (c.part or c.folded or c.terms)
        and c.row is None and c.reduce.axes == set(plan.segment + plan.inner)
        for c in plan.columns
    )  # fmt: skip
    apart = all(r.tensor.name in temporaries for r in plan.finals)
    states = any(r.tensor.role == "state" for r in plan.finals)
    return plain and not states and (apart or not plan.segment)


def _is_application(plan: KernelPlan, statistics: KernelPlan) -> bool:
    """Whether it computes each element of the same rows by itself."""
    same = (plan.kept, plan.inner) == (statistics.kept, statistics.inner)
    return same and not (plan.levels or plan.columns or plan.pieces or plan.finals)


def _needs(results: tuple[Result, ...], made_of: Definitions) -> dict[str, tuple[str, ...]]:
    """For everything that has a name the results that are computed from it, by way of temporaries too."""
    out: dict[str, list[str]] = {}
    for result in results:
        reached: set[Expr] = set()
        stack = [result.expr]
        while stack:
            loads = {n for n in walk(stack.pop()) if isinstance(n, Load)} - reached
            reached |= loads
            stack += [made_of[n] for n in loads if n in made_of]
        for n in reached:
            assert isinstance(n, Load)
            out.setdefault(n.tensor, []).append(result.tensor.name)
    return {name: tuple(found) for name, found in out.items()}
