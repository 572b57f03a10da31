"""Program -> the ways to run it: in one kernel for each group of results, or cut, late or at all reductions.

Which of them is fastest depends on sizes, so that a pass keeps them all and chooses at a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from normgen.codegen.strategies.fewest import fewest
from normgen.codegen.strategies.registry import Planner, join, plan_kernel, plan_otherwise
from normgen.codegen.strategies.stages import PlannedStrategy, groups_of, is_needed_within, split
from normgen.codegen.strategies.temporaries import Workspace
from normgen.diagnostics import Diagnostic, Label, SpecError
from normgen.ir.centre import centre
from normgen.ir.expr import load
from normgen.ir.nodes import Axes, Expr, Load, Reduce, made_of, reductions, walk
from normgen.ir.program import Definition, Program, Result
from normgen.kernel.group import Misfit, first_plan

_Cut = Callable[[Program, str], PlannedStrategy]
# Plans of rows that only thread groups that hold them can have, and of statistics of neighbours.
_plan_whole, _plan_folded = partial(plan_otherwise, "whole"), partial(plan_otherwise, "folded")


def strategies(program: Program, definition: Definition, name: str) -> tuple[PlannedStrategy, ...]:
    """Every way to run a program; raises `SpecError` (code `unsupported`) where there is none."""
    program = centre(_with_updates(program))
    found, _ = _planned(program, name)
    if not found:
        raise _unsupported(program, definition)
    return tuple(found)


def _planned(program: Program, name: str) -> tuple[list[PlannedStrategy], dict[str, str]]:
    """The ways to run a program, and why others are none.

    Where no kernel that makes the new value of a state can write it, one that follows all others does.
    """
    found, reasons = ([], {}) if _reads_elsewhere(program) else _ways(program, name)
    if not found and any(map(_is_state, program.results)):
        return _deferred(program, name)
    return found, reasons


def _ways(program: Program, name: str) -> tuple[list[PlannedStrategy], dict[str, str]]:
    """The ways to cut a program, and why others are none."""
    found: list[PlannedStrategy] = []
    reasons: dict[str, str] = {}
    long = _has_long_groups(program)
    for label, suffix, cut, applies in _CUTS:
        if not applies(any(s.name == "fused" for s in found), long):
            continue
        try:
            planned = cut(program, name + suffix)
        except Misfit as misfit:
            reasons[label] = str(misfit)
            continue
        if all((planned.temporaries, planned.ways) != (s.temporaries, s.ways) for s in found):
            found.append(replace(planned, name=label))
    return found, reasons


def _deferred(program: Program, name: str) -> tuple[list[PlannedStrategy], dict[str, str]]:
    """The ways to cut a program whose new values of states are results like others: temporaries, from which
    kernels that follow all others update the states."""
    states = tuple(filter(_is_state, program.results))
    values = Workspace(program).temporaries(program, (r.expr for r in states))
    others = tuple(r for r in program.results if not _is_state(r))
    found, reasons = _ways(replace(program, results=(*others, *values)), name)
    tensors = tuple(t.tensor for t in values)
    updates = (replace(r, expr=load(t.name, t.axes)) for r, t in zip(states, tensors, strict=True))
    last = replace(program, operands=(*program.operands, *tensors), bindings=(), results=tuple(updates))
    try:
        plans = tuple(map(plan_kernel, groups_of(last, f"{name}_update")))
    except Misfit:
        return [], {"fused": "its new value has its axes in another order"}
    return [replace(s, plans=s.plans + plans, temporaries=s.temporaries + tensors) for s in found], reasons


def _reads_elsewhere(program: Program) -> bool:
    """Whether the new value of some state needs another, or its own in more than one place: whatever writes
    it could write before that is read."""
    updated = {r.tensor.name for r in filter(_is_state, program.results)}
    return any(
        {n.tensor for n in walk(r.expr) if isinstance(n, Load)} & updated - {r.tensor.name}
        or made_of(updated, r.expr).intersection(reductions(r.expr))
        for r in filter(_is_state, program.results)
    )


def _is_state(result: Result) -> bool:
    return result.tensor.role == "state"


def _uncut(planners: tuple[Planner, ...], program: Program, name: str) -> PlannedStrategy:
    """A kernel for each group of results, by the first of these that plans it."""
    plans = tuple(first_plan(planners, group) for group in groups_of(program, name))
    if len(plans) > 1 and any(map(_is_state, program.results)):
        # (another kernel might read a state after its update)
        raise Misfit(f"`{program.name}` updates states")
    return PlannedStrategy(plans)


def _folded(program: Program, name: str) -> PlannedStrategy:
    """A split with some kernel of statistics whose blocks merge those of neighbors."""
    planned = split(program, name, planners=(_plan_folded, plan_kernel))
    if "folded" not in planned.ways:
        raise Misfit(f"`{program.name}` has no folded statistics")
    return planned


def _resident(program: Program, name: str) -> PlannedStrategy:
    """One kernel in place of a split's, whose blocks keep what they read while they meet. It has no form for
    segments that find no place on the chip."""
    return first_plan((partial(_joined, False), partial(_joined, True)), program, name)


def _joined(by_columns: bool, program: Program, name: str) -> PlannedStrategy:
    planned = split(program, name, by_columns, (_plan_folded, plan_kernel))
    return PlannedStrategy((join(name, planned.plans, planned.temporaries),))


def _if_cut(fused: bool, long: bool) -> bool:
    return long or not fused


# Ways to cut a program: the name of the strategy, what it adds to the names of kernels, the cut, and whether
# it is tried where the program is fused already and where its groups are long.
_CUTS: tuple[tuple[str, str, _Cut, Callable[[bool, bool], bool]], ...] = (
    # not at all
    ("fused", "", partial(_uncut, (plan_kernel,)), lambda fused, long: True),
    # as late as possible
    ("fewest", "", fewest, lambda fused, long: not fused),
    # at the first reductions, and with those along strided axes apart
    ("split", "", split, _if_cut),
    ("columns", "_columns", partial(split, by_columns=True), _if_cut),
    # blocks merge what they accumulate of neighbours: one kernel less than by columns
    ("folded", "_folded", _folded, _if_cut),
    ("resident", "_resident", _resident, _if_cut),
    # some kernels hold whole rows, and sum parts of them besides, or have them in pieces. They have no form
    # for rows that no thread group can hold: a call takes them where they fit
    ("whole", "", partial(_uncut, (plan_kernel, _plan_whole)), lambda fused, long: not fused),
)


# Whose reason tells most where there are no kernels: those that take most apart.
_TELLING = ("split", "fewest", "fused")


def _with_updates(program: Program) -> Program:
    """The program with its updates as results that are written to the arrays of the states."""
    states = {t.name: t for t in program.operands if t.role == "state"}
    updates = tuple(
        Result(states[u.state], u.expr, False)
        for u in program.updates
        if not (isinstance(u.expr, Load) and u.expr.tensor == u.state)
    )
    return replace(program, results=(*program.results, *updates), updates=())


def _has_long_groups(program: Program) -> bool:
    """Whether long groups are reduced and then normalised: more than one block should then work on each."""
    roots = [r.expr for r in program.results]
    return any(_is_long(node) and is_needed_within(node, roots) for node in reductions(*roots))


def _is_long(node: Reduce) -> bool:
    """Whether groups of several axes, or of all further ones, are reduced: images, not tokens. They may be
    few and long."""
    return len(node.over) > 1 or "..." in node.over


def _unsupported(program: Program, definition: Definition) -> SpecError:
    """The error at the statement that makes the first result without kernels, with what to write instead."""
    each = (replace(program, results=(result,)) for result in program.results)
    failing = next((alone for alone in each if not _planned(alone, program.name)[0]), program)
    _, reasons = _planned(failing, program.name)
    reason = next(reasons[k] for k in _TELLING if k in reasons)
    tensor, space = failing.results[0].tensor, _space(failing.results[0].expr)
    ordered = any(space <= t.axes for t in (*program.operands, tensor))
    own = next((u.span for u in definition.program.updates if u.state == tensor.name), tensor.span)
    made = definition.program.bindings
    spans = [b.span for b in made if space <= _space(b.expr) and (not ordered or b.name in definition.of)]
    span = next((s for s in ((own, *spans) if ordered else (*spans, own)) if s is not None), None)
    message = f"no kernel yet for `{tensor.name}`: {reason}"
    labels = () if span is None else (Label(span),)
    fault = Diagnostic("unsupported", message, labels, (_CURES[ordered], _WORKS))
    return SpecError([fault], definition.source)


def _space(value: Expr) -> Axes:
    return frozenset[str]().union(*(node.axes for node in walk(value)))


# By whether some tensor has all axes of the value.
_CURES = {
    False: "compute products of matrices before the call, and declare the result as an input",
    True: "declare all tensors with their axes in one order; transpose the others before the call",
}
_WORKS = "formulas, derivatives and the reference need no kernels; `normgen explain SPEC` shows them"
