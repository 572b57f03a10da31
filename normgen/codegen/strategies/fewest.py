"""A program, cut as late as possible into as few kernels as will do.

`stages` cuts a program at its first reductions, so that many blocks may share a group. Where groups are many,
what counts is how often memory is read: a kernel here takes on every level of reductions that it can.

    s = mean[D](x^2);  m = max[..., D](abs(x * rsqrt(s)))     one kernel
    q = x * rsqrt(s) / m                                      another
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from normgen.codegen.strategies.nesting import check_ties
from normgen.codegen.strategies.registry import plan_kernel
from normgen.codegen.strategies.stages import PlannedStrategy, groups_of, plan_each
from normgen.codegen.strategies.temporaries import Workspace, frontier, loads_of, reading, settled
from normgen.ir.nodes import Axes, Reduce, reductions
from normgen.ir.program import Program, Tensor
from normgen.kernel.family import Plan
from normgen.kernel.group import Group, Misfit


def fewest(program: Program, name: str) -> PlannedStrategy:
    """The kernels of a centred program without states; raises `Misfit` where some part fits no family."""
    if any(r.tensor.role == "state" for r in program.results):
        raise Misfit(f"`{program.name}` updates states")
    workspace = Workspace(program)
    plans: list[Plan] = []
    made: list[Tensor] = []
    while program.results:
        left = plan_each(groups_of(program, name), plans, lambda group: f"{name}_{len(plans) + 1}")
        program = replace(program, results=tuple(left))
        if left:
            first = replace(groups_of(program, name)[0], name=name)
            further, temporaries, program = _cut(first, workspace, len(plans))
            plans.extend(further)
            made.extend(temporaries)
    return PlannedStrategy(tuple(plans), tuple(made))


def _cut(group: Group, workspace: Workspace, planned: int) -> tuple[list[Plan], list[Tensor], Program]:
    """The plans of as many levels of reductions as fit a kernel for each of the spaces that they range over,
    what these hand on, and the program that is left. `planned`: how many kernels come before.
    """
    program, results = group.program, group.results
    reason = f"`{program.name}` has no reduction that a first kernel can compute"
    for sums in _cuts(group):
        values = settled([r.expr for r in results], sums)
        done = tuple(r for r in results if r.expr in values and r.tensor.axes == r.expr.axes)
        roots = [r.expr for r in results if r not in done]
        temporaries = workspace.temporaries(program, frontier(roots, values))
        written = (*temporaries, *done)
        try:
            check_ties(sums, roots)
            groups = groups_of(replace(program, results=written), group.name)
            named = (f"{group.name}_{k}" for k in count(planned + 1))
            made = [plan_kernel(replace(g, name=next(named))) for g in groups]
        except Misfit as misfit:
            reason = str(misfit)
        else:
            left = replace(program, results=tuple(r for r in program.results if r not in done))
            return made, [t.tensor for t in temporaries], reading(left, temporaries, loads_of(temporaries))
    raise Misfit(reason)


def _cuts(group: Group) -> list[frozenset[Reduce]]:
    """The reductions to make together: those that elements of the results share, which are computed once and
    leave a kernel to each of the other levels; then those up to each level of dependency, the most first."""
    wanted = frozenset[str]().union(*(r.tensor.axes for r in group.results))
    depth: dict[Reduce, int] = {}
    span: dict[Reduce, Axes] = {}
    for node in reductions(*group.roots):
        below = reductions(node.arg)
        depth[node] = 1 + max((depth[n] for n in below), default=0)
        span[node] = (node.arg.axes | node.over).union(*(span[n] for n in below))
    shared = frozenset(n for n in depth if not wanted <= span[n])
    deepest = max(depth.values(), default=0)
    levels = [frozenset(n for n, d in depth.items() if d <= k) for k in range(deepest, 0, -1)]
    return list(dict.fromkeys([shared, *levels] if shared else levels))
