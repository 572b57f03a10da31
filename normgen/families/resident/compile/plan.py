"""A split of statistics and what applies them -> one kernel whose blocks keep on chip what they read.

The strategy `resident` makes one kernel of several that a split has: statistics over the rows of a segment,
results of every element that are computed from these and from the very operands that they are of, and sums
over segments. The rows of a segment are dealt out to blocks. Each reads its slice once and keeps it, meets
the others of its segment in memory, where all leave what they found, and applies what all of them found to
what it has. (Elsewhere: a persistent reduction over several blocks, or a grid synchronisation for each
sample; no block waits for one that may not run, so that no launch need be cooperative.)

Statistics are the moments of one operand, which blocks merge:

    t1[B, G] = mean[..., C](x), t2 = ...;  then y = (x - t1) * t2      x is read once, t1 and t2 stay on chip

Or they are sums, as a backward has. Each block then leaves what is linear in the sums of its slice: these
themselves, or their sums over neighbours. What a slice adds to a sum over segments, the gradient of a gain,
is linear in its sums too, given what is known of all of them: a kernel of its own adds that up.

    t1 = sum[...](dy), t2 = sum[C](w * t1)     a slice's share of t2 is made of its own t1
    dw = sum[B](rstd * (t3 - mean * t1))       so is what it adds to dw, once the mean is known

Where all rows are one segment, it is dealt out in bands of neighbouring elements of a row besides, each with
blocks of its own: what one block would have to hand the others is no more than a band then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from normgen.families.columns.compile.plan import ColumnsPlan
from normgen.ir.expr import ONE, Const, Expr, Load, Reduce, add, load, mul, rewrite, walk
from normgen.ir.program import Result, Tensor, made_of_cotangents
from normgen.kernel.accumulators import Column, above, needed_for
from normgen.kernel.group import Misfit, Order
from normgen.kernel.kept import leaf_of
from normgen.kernel.linear import degree, factors_of
from normgen.kernel.plan import KernelPlan, Operand, as_stored, operand_of

Definitions = Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """One kernel of the resident family, and the one that adds up what blocks leave of sums over segments.

    Where statistics are sums, a leaf stands for each of them in the expressions.
    """

    whole: KernelPlan  # both kernels as one plan; of moments their accumulator and all that is made of it
    statistics: KernelPlan  # what is reduced over the rows of a segment, for each element of a row
    folded: Order  # innermost axes of a row, over which blocks merge what they leave for one another
    left: tuple[Expr, ...]  # what each block leaves for the others, of sums
    made: tuple[Result, ...]  # values that each block makes of what all have left
    ends: tuple[Result, ...]  # results that are made of the same, which one block of each segment stores
    factors: tuple[tuple[str, Expr], ...]  # of what blocks hold, by the tensor that stands for them
    shares: tuple[Expr, ...]  # what a slice adds to each sum over segments
    needs: Mapping[str, tuple[str, ...]]  # results that are computed from an operand, sum or made value

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.whole.name

    @property
    def moments(self) -> bool:
        """Whether statistics are the moments of one operand; else they are sums."""
        return self.statistics.columns[0].moments is not None

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
        return () if self.moments else tuple(leaf_of(c.reduce) for c in self.statistics.columns)


def plan_resident(name: str, plans: tuple[object, ...], temporaries: tuple[Tensor, ...]) -> ResidentPlan:
    """One kernel of a split's; raises `Misfit` for other splits."""
    return _Planner(name, plans, temporaries).plan()


class _Planner:
    """A split's plan of statistics, the one that applies them, and the rest, of rows or of columns."""

    def __init__(self, name: str, plans: tuple[object, ...], temporaries: tuple[Tensor, ...]) -> None:
        self.name, self.temporaries = name, {t.name for t in temporaries}
        parts = [p.parts if isinstance(p, ColumnsPlan) else p for p in plans]
        of_rows = [p for p in parts if isinstance(p, KernelPlan)]
        if not parts or of_rows != parts or not _is_statistics(of_rows[0], self.temporaries):
            raise self._misfit("has no statistics of rows that blocks could keep")
        self.statistics, *rest = of_rows
        self.inner, self.space = self.statistics.inner, {*self.statistics.kept, *self.statistics.inner}
        self.walk = frozenset(self.statistics.kept) - set(self.statistics.segment)
        applying = [p for p in rest if p.results and all(r.tensor.axes == self.space for r in p.results)]
        if len(applying) != 1 or not _is_application(applying[0], self.statistics):
            raise self._misfit("has no operands that blocks could keep between two kernels")
        self.apply, self.others = applying[0], [p for p in rest if p is not applying[0]]
        self.middle, self.results = self._by_others()

    def _by_others(self) -> tuple[list[Result], list[Result]]:
        """What the rest writes: temporaries, and results."""
        written = [r for p in self.others for r in (*p.results, *p.finals)]
        middle = [r for r in written if r.tensor.name in self.temporaries]
        return middle, [r for r in written if r not in middle]

    def _misfit(self, why: str) -> Misfit:
        return Misfit(f"`{self.name}` {why}")

    def plan(self) -> ResidentPlan:
        plan = self._of_moments() if self.statistics.columns[0].moments else self._of_sums()
        held = {o.tensor.name for o in self.statistics.operands if set(o.kept) & self.walk}
        if {o.tensor.name for o in plan.kept} != held:
            raise self._misfit("applies more than what its statistics are of")
        alone = plan.left == plan.sums and not plan.shares
        if plan.banded and not (alone and _has_bands(self.statistics, self.apply)):
            raise self._misfit("has one segment, whose rows have no bands")
        return plan

    # ------------------------------------------------------------------------------------------- moments

    def _of_moments(self) -> ResidentPlan:
        first, apply = self.statistics, as_stored(self.apply)
        made = tuple(r for r in first.finals if r.tensor.name in self.temporaries)
        names, read = {r.tensor.name for r in made}, {o.tensor.name for o in apply.operands}
        if self.others or names != self.temporaries or not names <= read:
            raise self._misfit("hands on more than statistics")
        whole = replace(
            first, name=self.name, operands=apply.operands, results=apply.results, bindings=apply.bindings
        )
        ends = tuple(r for r in first.finals if r not in made)
        needs = _needs((*whole.results, *whole.finals), {})
        return ResidentPlan(whole, first, first.folded, (), made, ends, (), (), needs)

    # ---------------------------------------------------------------------------------------------- sums

    def _of_sums(self) -> ResidentPlan:
        statistics, apply = self.statistics, self.apply
        sums: dict[Expr, Expr] = {c.reduce: leaf_of(c.reduce) for c in statistics.columns}
        first = {_load(r): rewrite(r.expr, sums) for r in statistics.finals}  # by what it is handed on as
        atoms = frozenset(sums.values())
        left, folded, made = self._met(first, atoms)
        late = frozenset(map(_load, made))
        finals = [replace(r, expr=first[_load(r)]) for r in statistics.finals]
        ends = tuple(r for r in finals if r.tensor.name not in self.temporaries)
        columns = tuple(map(self._column, self.results))
        shares = tuple(self._share(c, first, late, atoms) for c in columns)
        factors, applied = self._factored(late)
        accumulated = frozenset(c.reduce for c in columns)
        loads = [n for r in self.results for n in above([r.expr], accumulated) if isinstance(n, Load)]
        values = [c.value for c in statistics.columns] + [r.expr for r in (*made, *ends, *applied)]
        used = self._operands([*values, *left, *shares, *factors.values()])
        whole = replace(
            apply,
            name=self.name,
            operands=tuple(o for o in used if o.tensor.name not in {*self.temporaries, *factors}),
            final_operands=self._operands(loads),
            results=applied,
            columns=columns,
            finals=(*ends, *self.results),
            segment=statistics.segment,
        )
        made_of = {_load(r): r.expr for r in self.middle} | first
        made_of |= {leaf_of(c.reduce): c.value for c in statistics.columns}
        needs = _needs((*apply.results, *ends, *self.results), made_of)
        return ResidentPlan(
            whole, statistics, folded, left, made, ends, tuple(factors.items()), shares, needs
        )

    def _met(
        self, first: Definitions, atoms: frozenset[Expr]
    ) -> tuple[tuple[Expr, ...], Order, tuple[Result, ...]]:
        """What blocks leave, without which axes, and what is made of that."""
        known, later = dict(first), []
        for r in self.middle:
            known[_load(r)] = rewrite(r.expr, known)
            later.append(replace(r, expr=known[_load(r)]))
        found = dict.fromkeys(n for n in walk(*(r.expr for r in later)) if isinstance(n, Reduce))
        folded = self._folded(found, atoms)
        if found and set(above([r.expr for r in later], frozenset(found))) & atoms:
            raise self._misfit("makes values of groups from those of single elements")
        read = set(walk(*self.apply.roots, *(r.expr for r in self.results)))
        made = later or [replace(r, expr=first[_load(r)]) for r in self.statistics.finals if _load(r) in read]
        width = {*self.statistics.segment, *self.inner[: len(self.inner) - len(folded)]}
        if not made or any(r.tensor.axes != width for r in made):
            raise self._misfit("hands on more than what its groups have")
        return tuple(found) or tuple(leaf_of(c.reduce) for c in self.statistics.columns), folded, tuple(made)

    def _folded(self, sums: Collection[Reduce], atoms: frozenset[Expr]) -> Order:
        """The innermost axes of a row, over which these are."""
        over = {n.over for n in sums}
        folded = tuple(a for a in self.inner if any(a in axes for axes in over))
        linear = all(n.op == "sum" and not n.window and degree(n.arg, atoms) == 1 for n in sums)
        if len(over) > 1 or not linear or self.inner[len(self.inner) - len(folded) :] != folded:
            raise self._misfit("folds its sums in more than one way")
        return folded

    def _column(self, result: Result) -> Column:
        """The accumulator of a result that is a sum over all segments."""
        found = [n for n in above([result.expr], frozenset()) if isinstance(n, Reduce)]
        outer = [n for n in found if not any(n is not m and n in walk(m) for m in found)]
        over, axes = frozenset(self.statistics.segment), frozenset(self.inner)
        plain = all(n.op == "sum" and not n.window and (n.over, n.axes) == (over, axes) for n in outer)
        if len(outer) != 1 or not plain or result.tensor.role == "state":
            raise self._misfit(
                f"does not have exactly one sum per element over segments for `{result.tensor.name}`"
            )
        return Column(outer[0], (), True)

    def _share(
        self, column: Column, first: Definitions, late: frozenset[Expr], atoms: frozenset[Expr]
    ) -> Expr:
        """What a slice adds to a sum over segments: with its own sums in place of as many values that were
        handed on as make it linear in those."""
        below = set(walk(column.value))
        own = [n for n in first if n in below and n not in late]
        either = [n for n in first if n in below and n in late]
        for count in range(len(either), -1, -1):
            for some in combinations(either, count):
                share = rewrite(column.value, {n: first[n] for n in (*own, *some)})
                if degree(share, atoms) == 1:
                    return share
        raise self._misfit("sums what is not linear in the sums of rows")

    def _factored(self, late: frozenset[Expr]) -> tuple[dict[str, Expr], tuple[Result, ...]]:
        """The results as sums of values of what is held, times values of each element of a row."""
        names: dict[Expr, Expr] = {}
        applied = []
        gradients = made_of_cotangents([o.tensor for o in self.apply.operands], *self.apply.roots)
        for result in self.apply.results:
            terms = []
            for c, v in factors_of(result.expr, self.walk, late, gradients):
                if isinstance(c, Const):
                    terms.append(mul(c, v))
                    continue
                if c not in names:
                    names[c] = load(f"%factor_{len(names) + 1}", frozenset(self.inner))
                terms.append(names[c] if v is ONE else mul(names[c], v))
            if not terms or set(walk(*terms)) & late:
                raise self._misfit(f"has no factors of what is held in `{result.tensor.name}`")
            applied.append(replace(result, expr=add(*terms)))
        read = {n for n in walk(*names, *(r.expr for r in applied)) if isinstance(n, Load)}
        if any(n.tensor in self.temporaries and n not in late for n in read):
            raise self._misfit("applies sums of single elements, which no block has whole")
        return {n.tensor: c for c, n in names.items() if isinstance(n, Load)}, tuple(applied)

    def _operands(self, values: Iterable[Expr]) -> tuple[Operand, ...]:
        """The tensors that values are computed from, as the kernel sees them."""
        read = {n.tensor for n in walk(*values) if isinstance(n, Load)}
        plans = (self.statistics, self.apply, *self.others)
        tensors = {o.tensor.name: o.tensor for p in plans for o in (*p.operands, *p.final_operands)}
        found = [t for t in tensors.values() if t.name in read]
        if any(not t.axes <= self.space or (t.axes & self.walk and t.axes != self.space) for t in found):
            raise self._misfit("reads what has other axes than its rows")
        return tuple(operand_of(t, self.statistics.kept, self.inner) for t in found)


def _load(result: Result) -> Expr:
    """How a temporary is read."""
    return load(result.tensor.name, result.tensor.axes)


def _is_statistics(plan: KernelPlan, temporaries: set[str]) -> bool:
    """Whether it has nothing but moments of one operand, or sums, over the rows of each segment, for each
    element of a row. Only of an only segment may moments make states, and sums results."""
    columns = plan.columns
    if plan.levels or plan.results or plan.pieces or not columns:
        return False
    if not all(c.wide and c.kept == plan.segment and not c.part and c.row is None for c in columns):
        return False
    states = any(r.tensor.role == "state" for r in plan.finals)
    if columns[0].moments:
        whole = [o.tensor.axes == {*plan.kept, *plan.inner} for o in plan.operands] == [True]
        return len(columns) == 1 and whole and not (plan.segment and states)
    handed_on = {r.tensor.name for r in plan.finals} <= temporaries
    return _are_plain_sums(plan) and not states and (handed_on or not plan.segment)


def _are_plain_sums(plan: KernelPlan) -> bool:
    space = {*plan.segment, *plan.inner}
    return all(c.op == "sum" and c.reduce.axes == space and not (c.folded or c.terms) for c in plan.columns)


def _is_application(plan: KernelPlan, statistics: KernelPlan) -> bool:
    """Whether it computes each element of the same rows by itself."""
    same = (plan.kept, plan.inner) == (statistics.kept, statistics.inner)
    return same and not (plan.levels or plan.columns or plan.pieces or plan.finals)


def _has_bands(*plans: KernelPlan) -> bool:
    """Whether neighbouring elements of a row can be taken for a row: no value is of some axes of it."""
    tensors = [o.tensor for p in plans for o in (*p.operands, *p.final_operands)]
    tensors += [r.tensor for p in plans for r in (*p.results, *p.finals)]
    return not any(p.folded for p in plans) and all(
        t.axes.isdisjoint(p.inner) or t.axes >= set(p.inner) for p in plans for t in tensors
    )


def _needs(results: tuple[Result, ...], made_of: Definitions) -> dict[str, tuple[str, ...]]:
    """For everything that has a name the results that are computed from it, by way of `made_of` too."""
    read: dict[str, set[str]] = {}
    for result in results:
        reached: set[Load] = set()
        stack = [result.expr]
        while stack:
            loads = {n for n in walk(stack.pop()) if isinstance(n, Load)} - reached
            reached |= loads
            stack += [made_of[n] for n in loads if n in made_of]
        read[result.tensor.name] = {n.tensor for n in reached}
    return needed_for(read)
