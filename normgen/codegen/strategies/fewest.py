"""A program, cut as late as possible into as few kernels as will do.

`stages` cuts a program at its first reductions, so that many blocks may share a group. Where groups are many,
what counts is how often memory is read: a kernel here takes on every level of reductions that it can.

    s = mean[D](x^2);  m = max[..., D](abs(x * rsqrt(s)))     one kernel
    q = x * rsqrt(s) / m                                      another
"""

from __future__ import annotations

from dataclasses import replace

from normgen.codegen.strategies.nesting import check_ties
from normgen.codegen.strategies.registry import plan_kernel
from normgen.codegen.strategies.stages import PlannedStrategy, groups_of, plan_each
from normgen.codegen.strategies.temporaries import Workspace, frontier, loads_of, reading, settled
from normgen.ir.nodes import Reduce, reductions
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
        groups = groups_of(program, name)
        left = plan_each(groups, plans, lambda group: f"{name}_{len(plans) + 1}")
        program = replace(program, results=tuple(left))
        if left:
            label = f"{name}_{len(plans) + 1}"
            group = groups_of(program, label)[0]
            plan, temporaries, program = _cut(replace(group, name=label, program=program), workspace)
            plans.append(plan)
            made += temporaries
    return PlannedStrategy(tuple(plans), tuple(made))


def _cut(group: Group, workspace: Workspace) -> tuple[Plan, list[Tensor], Program]:
    """The plan of as many levels of reductions as fit one kernel, what it hands on, and the program that is
    left.
    """
    program, results = group.program, group.results
    reason = Misfit(f"`{program.name}` has nothing to begin with")
    for sums in _levels(group):
        values = settled([r.expr for r in results], sums)
        done = tuple(r for r in results if r.expr in values and r.tensor.axes == r.expr.axes)
        roots = [r.expr for r in results if r not in done]
        temporaries = workspace.temporaries(program, frontier(roots, values))
        written = (*temporaries, *done)
        try:
            check_ties(sums, roots)
            plan = plan_kernel(Group(group.name, replace(program, results=written), group.space, written))
        except Misfit as misfit:
            reason = misfit
        else:
            left = replace(program, results=tuple(r for r in program.results if r not in done))
            return plan, [t.tensor for t in temporaries], reading(left, temporaries, loads_of(temporaries))
    raise reason


def _levels(group: Group) -> list[frozenset[Reduce]]:
    """The reductions up to each level of dependency, the most first."""
    depth: dict[Reduce, int] = {}
    for node in reductions(*group.roots):
        depth[node] = 1 + max((depth[n] for n in reductions(node.arg)), default=0)
    deepest = max(depth.values(), default=0)
    return [frozenset(n for n, d in depth.items() if d <= k) for k in range(deepest, 0, -1)]
