"""What a kernel computes in one pass over a row and keeps for later ones: what costs much, what is rounded.

`roots`: of each pass, the values that it computes.
"""

from __future__ import annotations

from normgen.ir.expr import Expr, Load, Round, load, rewrite, walk
from normgen.kernel.phases import is_function
from normgen.kernel.rates import Rates
from normgen.kernel.share import evaluated


def costly(rates: Rates, roots: list[list[Expr]], always: list[bool]) -> set[Expr]:
    """Calls that more than one pass makes, the first of them in any case."""
    passes = [set(filter(is_function, walk(*rates.hoist_all(found)))) for found in roots]
    first: dict[Expr, int] = {}
    for k, calls in enumerate(passes):
        for n in calls:
            first.setdefault(n, k)
    return {n for n, k in first.items() if always[k] and any(n in later for later in passes[k + 1 :])}


def rounded(rates: Rates, roots: list[list[Expr]]) -> set[Expr]:
    """Roundings of which several passes use the value, where the later ones then need nothing that it was
    made of: packed, it takes the place of that.
    """
    passes = [rates.hoist_all(found) for found in roots]
    found: set[Expr] = set()
    for k, first in enumerate(passes):
        for n in evaluated(*first):
            if not isinstance(n, Round) or rates.per_row(n) or n in found:
                continue
            later = [root for roots in passes[k + 1 :] for root in roots]
            rest = evaluated(*(rewrite(root, {n: leaf_of(n)}) for root in later))
            below = {m for m in evaluated(n) if isinstance(m, Load) and not rates.per_row(m)}
            if n in evaluated(*later) and not below & set(rest):
                found.add(n)
    return found


def leaf_of(node: Expr) -> Load:
    """What stands for a value that is kept from an earlier pass, or summed in parts."""
    leaf = load(f"%{node.key}", node.axes)
    assert isinstance(leaf, Load)
    return leaf
