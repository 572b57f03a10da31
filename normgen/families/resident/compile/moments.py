"""A split of statistics and what applies them -> one kernel whose blocks keep what they read on chip.

The strategy `resident` makes one kernel of two that a split has: the moments of a segment, and what is
computed from these and the very operand that they are of. The rows of a segment are dealt out to blocks;
each reads its slice once and keeps it, meets the others of its segment in memory, where they leave moments,
and applies what all of them found to what it has. (Elsewhere: a persistent reduction over several blocks,
or a grid synchronisation for each sample; no block waits for one that may not run, so that no launch need
be cooperative.)

    t1[B, G] = mean[..., C](x), t2 = ...;  then y = (x - t1) * t2      x is read once, t1 and t2 stay on chip

Where all rows are one segment, it is dealt out in bands of neighbouring elements of a row besides, each with
blocks of its own: what one block would have to hand the others is no more than a band then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normgen.ir.program import Tensor
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan, Operand, as_stored

Order = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """One kernel of the resident family, of two plans over the same rows.

    `statistics` has the moments of each element of a row, or of neighbours, over the rows of a segment, and
    the `temporaries` made of them; `apply` reads these, and what is `kept`.
    """

    name: str
    statistics: KernelPlan
    apply: KernelPlan
    temporaries: tuple[Tensor, ...]

    @property
    def kept(self) -> Operand:
        """The operand that blocks hold on chip."""
        return self.statistics.operands[0]

    @property
    def banded(self) -> bool:
        """Whether blocks have bands of a row: of the only segment."""
        return not self.statistics.segment

    @property
    def whole(self) -> KernelPlan:
        """Both as one plan, whose operands, results and accumulators are those of the kernel."""
        first = self.statistics
        return replace(
            self.apply,
            name=self.name,
            columns=first.columns,
            finals=first.finals,
            final_operands=first.final_operands,
            segment=first.segment,
        )


def plan_resident(name: str, plans: tuple[object, ...], temporaries: tuple[Tensor, ...]) -> ResidentPlan:
    """One kernel of a split's two; raises `Misfit` for other splits."""
    match plans:
        case (KernelPlan() as statistics, KernelPlan() as apply):
            apply = as_stored(apply)
        case _:
            raise Misfit(f"`{name}` is not one kernel of statistics and one that applies them")
    if not (_is_statistics(statistics) and _is_application(apply, statistics)):
        raise Misfit(f"`{name}` has no operand that blocks could keep between two kernels")
    read = {o.tensor.name for o in apply.operands}
    made = tuple(t for t in temporaries if t.name in {r.tensor.name for r in statistics.finals})
    if made != temporaries or not read >= {t.name for t in made}:
        raise Misfit(f"`{name}` hands on more than statistics")
    if not (statistics.segment or has_bands(statistics, apply)):
        raise Misfit(f"`{name}` has one segment, whose rows have no bands")
    return ResidentPlan(name, statistics, apply, made)


def has_bands(*plans: KernelPlan) -> bool:
    """Whether neighbouring elements of a row can be taken for a row: no value is of some axes of it."""
    tensors = [o.tensor for p in plans for o in (*p.operands, *p.final_operands)]
    tensors += [r.tensor for p in plans for r in (*p.results, *p.finals)]
    return not any(p.folded for p in plans) and all(
        t.axes.isdisjoint(p.inner) or t.axes >= set(p.inner) for p in plans for t in tensors
    )


def _is_statistics(plan: KernelPlan) -> bool:
    """Whether it has one set of moments of one operand for each segment, and nothing of single rows. States
    belong to an only segment."""
    if plan.levels or plan.results or plan.shared or plan.pieces or len(plan.columns) != 1:
        return False
    (column,) = plan.columns
    apart = column.kept == plan.segment and not column.part and column.row is None
    states = bool(plan.segment) and any(r.tensor.role == "state" for r in plan.finals)
    return column.op == "moments" and column.wide and apart and not states and len(plan.operands) == 1


def _is_application(plan: KernelPlan, statistics: KernelPlan) -> bool:
    """Whether its rows need nothing of their own but what the statistics are of."""
    same = (plan.kept, plan.inner) == (statistics.kept, statistics.inner)
    if not same or plan.levels or plan.columns or plan.pieces or not plan.results:
        return False
    (own,) = statistics.operands
    walk = set(plan.kept) - set(statistics.segment)
    walking = [o for o in plan.operands if set(o.kept) & walk]
    whole = set(plan.kept + plan.inner)
    return walking == [own] and own.tensor.axes == whole and all(r.tensor.axes == whole for r in plan.results)
