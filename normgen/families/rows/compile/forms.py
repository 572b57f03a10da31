"""Which forms a kernel of the rows family has, by what is reduced in its rows and over them."""

from __future__ import annotations

from normgen.kernel.plan import KernelPlan


def form_names(plan: KernelPlan) -> list[str]:
    """The forms of the row kernel, in the order of its record; not those that go before or after it."""
    if plan.shared:
        return ["split"]
    if plan.folded:
        return ["ring"]
    spread = ["spread"] if spreads(plan) else []
    if plan.part or plan.pieces:
        return ["registers", *spread]
    if plan.splits:
        return ["batch", "ring" if plan.columns else "registers", "split"]
    whole = ["ring"] if plan.columns else ["registers", "ring"] if plan.levels else ["registers"]
    whole += ["slab"] if slabs(plan) else []
    found = whole + spread + (["skewed"] if skews(plan) else []) + (["slanted"] if slants(plan) else [])
    return found + (["stream"] if plan.inner else [])


def skews(plan: KernelPlan) -> bool:
    """Whether the results of a row can be computed while what is exchanged of the next one is on its way:
    there is one exchange, and nothing of a row but its scalars is outside the ring, or with a thread."""
    if len(plan.paired_levels) != 1 or plan.segment or any(c.terms for c in plan.columns):
        return False
    whole = all(not o.inner or o.inner == plan.inner for o in plan.operands)
    return whole and plan.paired_levels[0].exponentials is None


def slants(plan: KernelPlan) -> bool:
    """Whether a row's results may be computed by other threads than its sums are: nothing but those is
    between them, and every result and accumulator has an element for each of the row."""
    if not (plan.columns and skews(plan) and plan.paired_levels[0].moments is None):
        return False
    wide = all(c.op == "sum" and c.wide for c in plan.columns)
    return wide and all(set(plan.inner) <= r.tensor.axes for r in plan.results)


def slabs(plan: KernelPlan) -> bool:
    """Whether blocks may move several rows together: nothing is accumulated over them, and some operand has
    elements of each."""
    rows = {*plan.kept, *plan.inner}
    return not plan.columns and any(o.tensor.axes == rows for o in plan.operands)


def rolls(plan: KernelPlan) -> bool:
    """Whether a ring may hold vectors of whatever row: those of sums over rows."""
    return bool(plan.columns) and skews(plan)


def marks(plan: KernelPlan) -> bool:
    """Whether it is known where rows of earlier blocks are: in one piece each, numbered by one axis."""
    return len(plan.kept) == 1 and not plan.segment and not plan.pieces


def spreads(plan: KernelPlan) -> bool:
    """Whether blocks that need not run together may share a row: there is one exchange, and what is
    accumulated leaves with the row."""
    once = len(plan.paired_levels) == 1 and plan.paired_levels[0].exponentials is None
    leaves = (bool(plan.part) and not plan.adds_pieces) or not plan.columns
    return once and leaves and not plan.segment


def given(plan: KernelPlan) -> int:
    """How many values blocks that share a row exchange, 0 where none do."""
    if not spreads(plan):
        return 0
    (level,) = plan.paired_levels
    return 3 if level.moments else len(level.sums)
