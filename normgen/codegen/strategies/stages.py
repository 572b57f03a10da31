"""A program, cut at its reductions into kernels that follow one another.

A sum whose value every element needs again, over axes that no kernel can keep together, becomes a kernel of
its own: the *statistics* of its groups. It leaves temporaries, small tensors that what follows reads like
any operand. What remains without such sums is the last kernel, which *applies* the statistics.

    mu = mean[B, ...](x); y = x - mu      t1[C] = mean[B, ...](x), mu = t1;      then y = x - t1

Sums over different axes of the same values are cut at the axes that they share, and the small rest is summed
later:

    sum[C, ...](w dy), sum[B, ...](dy)    t1[B, C] = sum[...](dy);      then sum[C](w t1), sum[B](t1)

So are sums over axes on both sides of a kept one in memory (`by_columns`), which makes every access a whole
line: x[B, ..., G, C] summed over [..., C] is summed over [...] first. A mean with its centred squares is cut
by Chan's rule.

Statistics may be planned otherwise than the families would (`planners`), so that blocks fold them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import chain, count, product

from normgen.codegen.strategies.nesting import chan, check_ties, is_partner, opened, outer
from normgen.codegen.strategies.registry import Planner, family_of, plan_kernel
from normgen.codegen.strategies.temporaries import Workspace, frontier, loads_of, reading, settled
from normgen.ir.expr import load
from normgen.ir.nodes import Axes, Expr, Load, Reduce, children, reductions, walk
from normgen.ir.program import Program, Result, Tensor, made_of_cotangents
from normgen.ir.ties import computed_ties
from normgen.kernel.family import Plan
from normgen.kernel.group import Group, Misfit, first_plan


@dataclass(frozen=True, slots=True)
class PlannedStrategy:
    """Kernel plans in launch order, and the tensors that they hand on. `name`: of the cut that made them."""

    plans: tuple[Plan, ...]
    temporaries: tuple[Tensor, ...] = ()
    name: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        """Of each kernel, what its blocks do that those of a plain one do not."""
        return tuple(family_of(plan).way(plan) for plan in self.plans)


@dataclass(frozen=True, slots=True)
class _Cut:
    """What one statistics kernel computes: values to keep, and what stands for the old nodes from then on."""

    space: Axes
    temporaries: tuple[Result, ...]
    table: dict[Expr, Expr]
    sums: frozenset[Reduce]


def groups_of(program: Program, name: str) -> list[Group]:
    """The results of a program by the axes that their values range over."""
    spaces: dict[Axes, list[Result]] = {}
    for result in program.results:
        space = result.tensor.axes.union(*(n.axes for n in walk(result.expr)))
        spaces.setdefault(space, []).append(result)
    return [
        Group(name if len(spaces) == 1 else f"{name}_{k}", program, space, tuple(results))
        for k, (space, results) in enumerate(spaces.items(), 1)
    ]


def plan_each(groups: list[Group], plans: list[Plan], named: Callable[[Group], str]) -> list[Result]:
    """Adds the plans of the groups that a kernel covers as they are; the results of the others are left."""
    left: list[Result] = []
    for group in groups:
        try:
            plans.append(plan_kernel(replace(group, name=named(group))))
        except Misfit:
            if not reductions(*group.roots):
                raise
            left += group.results
    return left


def split(
    program: Program, name: str, by_columns: bool = False, planners: tuple[Planner, ...] = (plan_kernel,)
) -> PlannedStrategy:
    """The kernels of a centred program, cut wherever a reduction's value is needed by what it ran over.

    `planners`: of the kernels that only reduce, in order of preference. Raises `Misfit` where some part fits
    none, or no family.
    """
    return _Splitter(program, name, by_columns, planners).run()


class _Splitter:
    def __init__(self, program: Program, name: str, by_columns: bool, planners: tuple[Planner, ...]) -> None:
        self.program, self.name, self.by_columns, self.planners = program, name, by_columns, planners
        self.workspace = Workspace(program)
        self.plans: list[Plan] = []
        self.made: list[Tensor] = []
        self.steps = count(1)

    def run(self) -> PlannedStrategy:
        self._store_compared()
        states = frozenset(r.tensor.name for r in self.program.results if r.tensor.role == "state")
        others = [r.expr for r in self.program.results if r.tensor.role != "state"]
        if states & {n.tensor for n in walk(*others) if isinstance(n, Load)}:
            # what reads a state must have done so before it is updated
            self._finish(states)
        self._finish()
        return PlannedStrategy(tuple(self.plans), tuple(self.made))

    def _store_compared(self) -> None:
        """Kernels for the values that are compared with their own extremes: all that follow read the same
        bits."""
        program = self.program
        compared = dict.fromkeys(value for value, _ in computed_ties(*(r.expr for r in program.results)))
        if not compared:
            return
        made = self.workspace.temporaries(program, compared)
        self.workspace.taken |= {r.tensor.name for r in made}
        self.program = replace(program, results=made)
        self._finish()
        self.made += [r.tensor for r in made]
        self.program = reading(replace(program, operands=self.program.operands), made, loads_of(made))

    def _finish(self, late: frozenset[str] = frozenset()) -> None:
        """Kernels for all results but those that are written late, which are rewritten along."""
        forced = False
        while pending := [r for r in self.program.results if r.tensor.name not in late]:
            waiting = [r for r in self.program.results if r.tensor.name in late]
            cut = self._cut(pending, waiting, forced)
            if cut is None:
                left = self._apply(pending)
                self.program = replace(self.program, results=(*left, *waiting))
                forced = bool(left)
                continue
            check_ties(cut.sums, [r.expr for r in self.program.results])
            done = self._statistics(cut, pending)
            results = tuple(r for r in self.program.results if r not in done)
            self.program = reading(replace(self.program, results=results), cut.temporaries, cut.table)
            self.made += [r.tensor for r in cut.temporaries]
            forced = False

    # ------------------------------------------------------------------------------------------ kernels

    def _apply(self, pending: list[Result]) -> list[Result]:
        """Plans of the groups that need no cut; those that fit nothing are left, to be cut by force."""
        groups = groups_of(replace(self.program, results=tuple(pending)), f"{self.name}_apply")
        return plan_each(groups, self.plans, lambda group: self._free(group.name))

    def _free(self, name: str) -> str:
        """The name, or one with a number behind it, that no kernel has yet: results may be applied in several
        turns."""
        taken = {plan.name for plan in self.plans}
        numbered = (f"{name}_{k}" for k in count(2))
        return next(each for each in chain((name,), numbered) if each not in taken)

    def _statistics(self, cut: _Cut, pending: list[Result]) -> list[Result]:
        """Plans the kernel of a cut, with the results that it can write; says which those are."""
        kept = cut.space - next(iter(cut.sums)).over
        done = [
            r
            for r in pending
            if _is_as_wide(r, kept) and (found := reductions(r.expr)) and set(found) <= cut.sums
        ]
        number = next(self.steps)
        label = f"{self.name}_statistics" + (f"_{number}" if number > 1 else "")
        results = (*cut.temporaries, *done)
        program = replace(self.program, results=results)
        group = Group(label, program, cut.space, results)
        self.plans.append(first_plan(self.planners, group))
        return done

    # ------------------------------------------------------------------------------------------ cuts

    def _cut(self, pending: list[Result], waiting: list[Result], forced: bool) -> _Cut | None:
        """The next reductions to compute on their own, or None where the rest needs no cut."""
        roots = [r.expr for r in (*pending, *waiting)]
        later = {r.expr for r in waiting} | {r.expr for r in pending if not _is_as_wide(r, r.expr.axes)}
        first = (n for n in reductions(*roots) if not reductions(n.arg))
        values = [r.expr for r in pending]
        seed = next((n for n in first if forced or is_needed_within(n, values)), None)
        if seed is None:
            return None
        space = _space(seed)
        if seed.window:
            return self._keep(space, frozenset({seed}), roots, later)
        gradients = made_of_cotangents(self.program.operands, *roots)
        chosen, every, common = _with_alike(seed, roots, gradients)
        base = self._base(common, space)
        if all(n.over == base for n in chosen):
            return self._keep_most(space, chosen, roots, later)
        return self._nest(space, base, every, gradients)

    def _keep_most(self, space: Axes, chosen: set[Reduce], roots: list[Expr], later: set[Expr]) -> _Cut:
        """A cut of as many levels of reductions as some kernel covers: a mean with its squares, or one; all
        of them where only temporaries are reduced, which are small enough for a block per group."""
        over = next(iter(chosen)).over
        alike = [n for n in reductions(*roots) if _space(n) == space and n.over == over and not n.window]
        deep: set[Reduce] = set()
        full = {t.name for t in self.program.operands if t.axes == space and t.role != "temporary"}
        if not any(isinstance(n, Load) and n.tensor in full for n in walk(*alike)):
            for node in alike:
                if set(reductions(node.arg)) <= deep:
                    deep.add(node)
        partners = chosen | {n for n in alike if is_partner(n, chosen)}
        reason = ""
        candidates = dict.fromkeys(map(frozenset, (deep or partners, partners, chosen)))
        for planner, sums in product(self.planners, candidates):
            cut = self._keep(space, sums, roots, later)
            try:
                planner(self._trial(cut))
            except Misfit as misfit:
                reason = str(misfit)
            else:
                return cut
        raise Misfit(reason)

    def _trial(self, cut: _Cut) -> Group:
        program = replace(self.program, results=cut.temporaries)
        return Group(self.name, program, cut.space, cut.temporaries)

    def _base(self, common: Axes, space: Axes) -> Axes:
        """The axes to sum over first: with `by_columns` not those that lie inside a kept one in memory."""
        order = self.workspace.order(space)
        kept = [k for k, axis in enumerate(order) if axis not in common]
        trailing = frozenset(order[kept[-1] + 1 :]) if kept else frozenset()
        return common - trailing if self.by_columns and common - trailing and trailing else common

    def _keep(self, space: Axes, sums: frozenset[Reduce], roots: list[Expr], later: set[Expr]) -> _Cut:
        """The largest values that are the same for a whole group: one temporary each."""
        kept = space - next(iter(sums)).over
        values = settled(roots, sums)
        left = [root for root in roots if root not in values or root.axes != kept or root in later]
        made = self.workspace.temporaries(self.program, frontier(left, values))
        return _Cut(space, made, loads_of(made), sums)

    def _nest(self, space: Axes, base: Axes, chosen: list[Reduce], gradients: Collection[Expr]) -> _Cut:
        """Sums over the base axes as temporaries, and the sums over more axes in their terms."""
        made: dict[Expr, Result] = {}
        names = self.workspace.names(self.program)

        def kept(value: Expr) -> Expr:
            if value not in made:
                made[value] = self.workspace.temporary(next(names), value)
            return load(made[value].tensor.name, value.axes)

        table: dict[Expr, Expr] = {}
        for node in chosen:
            table[node] = (
                chan(node, base, kept, table)
                if is_partner(node, set(chosen))
                else outer(node, base, kept, table, gradients)
            )
        sums = frozenset(n for r in made.values() for n in reductions(r.expr))
        return _Cut(space, tuple(made.values()), table, sums)


def _with_alike(
    seed: Reduce, roots: Iterable[Expr], gradients: Collection[Expr]
) -> tuple[set[Reduce], list[Reduce], Axes]:
    """The sums to compute along with one, these and all that can be made of them, and the axes of all."""
    space = _space(seed)
    sums = [n for n in reductions(*roots) if not n.window and _space(n) == space and n.over & seed.over]
    chosen = {n for n in sums if not reductions(n.arg)}
    further = {n for n in set(sums) - chosen if not is_partner(n, chosen)}
    common = frozenset.intersection(*(n.over for n in sums))
    if not common or any(opened(n, common, gradients) is None for n in further):
        further, common = set(), frozenset.intersection(*(n.over for n in chosen))
    if not common:
        chosen, common = {n for n in chosen if n.over == seed.over}, seed.over
    return chosen, [n for n in sums if n in chosen | further or is_partner(n, chosen)], common


def _is_as_wide(result: Result, kept: Axes) -> bool:
    """Whether the kernel that reduces to these axes may write a result: not what has the same value along
    further ones."""
    return result.expr.axes == result.tensor.axes == kept


def _space(node: Reduce) -> Axes:
    return node.arg.axes | node.over | {axis for axis, _, _ in node.window}


def is_needed_within(node: Reduce, roots: Iterable[Expr]) -> bool:
    """Whether a value that varies over the reduced axes, or another reduction, is made of this one."""
    above: set[Expr] = {node}
    for each in walk(*roots):
        if each is node or not any(child in above for child in children(each)):
            continue
        above.add(each)
        if isinstance(each, Reduce) or each.axes & node.over or node.window:
            return True
    return False
