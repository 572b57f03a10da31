"""A program, cut as late as possible into as few kernels as will do.

`stages` cuts a program at its first reductions, so that many blocks may share a group. Where groups are many,
what counts is how often memory is read: a kernel here takes on every level of reductions that it can.

    s = mean[D](x^2);  m = max[..., D](abs(x * rsqrt(s)))     one kernel
    q = x * rsqrt(s) / m                                      another
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from normgen.codegen.families import Plan, plan_kernel
from normgen.codegen.group import Group, Misfit
from normgen.codegen.nesting import check_ties
from normgen.codegen.stages import Stages, groups_of
from normgen.ir.expr import load, rewrite
from normgen.ir.nodes import CONDITIONS, Call, Expr, Reduce, children, reductions, walk
from normgen.ir.program import Program, Result, Tensor


def fewest(program: Program, name: str) -> Stages:
    """The kernels of a centred program without states; raises `Misfit` where some part fits no family."""
    if any(r.tensor.role == "state" for r in program.results):
        raise Misfit(f"`{program.name}` updates states")
    plans: list[Plan] = []
    made: list[Tensor] = []
    while program.results:
        program = _without_what_fits(program, name, plans)
        if program.results:
            label = f"{name}_{len(plans) + 1}"
            group = groups_of(program, label)[0]
            plan, temporaries, program = _cut(replace(group, name=label, program=program))
            plans.append(plan)
            made += temporaries
    return Stages(tuple(plans), tuple(made))


def _without_what_fits(program: Program, name: str, plans: list[Plan]) -> Program:
    """The program without the groups of results that a kernel covers as they are: their plans are added."""
    left: list[Result] = []
    for group in groups_of(program, name):
        try:
            plans.append(plan_kernel(replace(group, name=f"{name}_{len(plans) + 1}")))
        except Misfit:
            if not reductions(*(r.expr for r in group.results)):
                raise
            left += group.results
    return replace(program, results=tuple(left))


def _cut(group: Group) -> tuple[Plan, list[Tensor], Program]:
    """The plan of as many levels of reductions as fit one kernel, what it hands on, and the program that is
    left.
    """
    reason = Misfit(f"`{group.program.name}` has nothing to begin with")
    for sums in _levels(group):
        values = _values(group, sums)
        done = tuple(r for r in group.results if r.expr in values and r.tensor.axes == r.expr.axes)
        temporaries = _temporaries(group.program, _needed(group, values, done))
        results = (*temporaries, *done)
        program = replace(group.program, results=results)
        try:
            check_ties(sums, [r.expr for r in group.results if r not in done])
            plan = plan_kernel(Group(group.name, program, group.space, results))
        except Misfit as misfit:
            reason = misfit
        else:
            return plan, [t.tensor for t in temporaries], _reading(group.program, temporaries, done)
    raise reason


def _reading(program: Program, temporaries: tuple[Result, ...], done: tuple[Result, ...]) -> Program:
    """The program without what is done, computed from the temporaries."""
    table: dict[Expr, Expr] = {t.expr: load(t.tensor.name, t.expr.axes) for t in temporaries}
    return replace(
        program,
        operands=(*program.operands, *(t.tensor for t in temporaries)),
        bindings=tuple(replace(b, expr=rewrite(b.expr, table)) for b in program.bindings),
        results=tuple(replace(r, expr=rewrite(r.expr, table)) for r in program.results if r not in done),
    )


def _levels(group: Group) -> list[frozenset[Reduce]]:
    """The reductions up to each level of dependency, the most first."""
    depth: dict[Reduce, int] = {}
    for node in reductions(*(r.expr for r in group.results)):
        depth[node] = 1 + max((depth[n] for n in reductions(node.arg)), default=0)
    deepest = max(depth.values(), default=0)
    return [frozenset(n for n, d in depth.items() if d <= k) for k in range(deepest, 0, -1)]


def _values(group: Group, sums: frozenset[Reduce]) -> set[Expr]:
    """What is made of these reductions and has the axes of one of them."""
    found: set[Expr] = set()
    for node in walk(*(r.expr for r in group.results)):
        below = reductions(node)
        condition = isinstance(node, Call) and node.op in CONDITIONS
        if below and set(below) <= sums and not condition and any(node.axes <= n.axes for n in below):
            found.add(node)
    return found


def _needed(group: Group, values: set[Expr], done: tuple[Result, ...]) -> list[Expr]:
    """The largest of the values that something else is computed from, outside the reductions themselves."""
    written = {r.expr for r in done}
    needed: dict[Expr, None] = {}
    stack = [r.expr for r in reversed(group.results) if r.expr not in written]
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in values:
            needed[node] = None
        elif node not in seen:
            seen.add(node)
            stack.extend(reversed(children(node)))
    return list(needed)


def _temporaries(program: Program, values: list[Expr]) -> tuple[Result, ...]:
    """Tensors with names of their own for values, their axes in the order of the largest tensors."""
    tensors = (*program.operands, *(r.tensor for r in program.results))
    order = dict.fromkeys(a for t in sorted(tensors, key=lambda t: -len(t.axes)) for a in t.order)
    taken = {t.name for t in tensors} | {b.name for b in program.bindings} | {a.name for a in program.attrs}
    fresh = (f"t{k}" for k in count(1) if f"t{k}" not in taken)

    def tensor(value: Expr) -> Tensor:
        dims = tuple((axis,) for axis in order if axis in value.axes)
        return Tensor(next(fresh), "temporary", dims, "f32", None, None, "", None)

    return tuple(Result(tensor(value), value, False) for value in values)
