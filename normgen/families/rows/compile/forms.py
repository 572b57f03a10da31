"""The forms of the kernels of the rows family, and which of them a kernel has, by what is reduced in its rows
and over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normgen.kernel.access import Access
from normgen.kernel.levels import is_missed
from normgen.kernel.plan import KernelPlan


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the kernels of this family; its template has its name."""

    name: str
    admits: Callable[[KernelPlan], bool]  # whether a plan has it
    own: tuple[str, ...] = ("blocks",)  # its last parameters, after the number of rows
    one_shot: bool = False  # a thread has all that it reads of its rows at once, packed
    launches: bool = False  # blocks may share a row, by a launch for each level
    slices: bool = False  # a block has a slice of a row, which lies in one part of it as a rule
    holds: bool = False  # what costs much is kept for later passes, unless accumulators take the registers
    late: bool = False  # what rows share is loaded after what they do not, where that helps
    finishes: bool = False  # it may store what is accumulated as the results that this is
    stored: bool = False  # accumulators of each element of a row lie in memory
    combines: bool = False  # accumulators of one value are exchanged as what rows sum is
    spare: bool = False  # there is room between the operands in shared memory
    # whether an operand that differs between rows passes through shared memory, if so many passes read it
    staged: Callable[[KernelPlan, Access, int], bool] = lambda plan, access, passes: False
    # whether parts of operands that all rows share are held from before the first row on
    holds_parts: Callable[[KernelPlan], bool] = lambda plan: False
    # whether lines that it reads are tagged to stay in the cache
    tags: Callable[[KernelPlan], bool] = lambda plan: False


def _usual(plan: KernelPlan) -> bool:
    """Whether a thread group has each row, in one piece, of which nothing is kept."""
    return not (plan.folded or plan.part or plan.pieces or plan.splits)


def _splits(plan: KernelPlan) -> bool:
    """Whether nothing is exchanged in a row that a thread group would have."""
    return plan.splits and not (plan.folded or plan.part or plan.pieces)


def _exchanges_once(plan: KernelPlan) -> bool:
    """Whether a row has one exchange, and nothing of it but its scalars is outside a pipeline, or stays with
    a thread."""
    if len(plan.paired_levels) != 1 or plan.segment or any(c.terms for c in plan.columns):
        return False
    whole = all(not o.inner or o.inner == plan.inner for o in plan.operands)
    return whole and plan.paired_levels[0].exponentials is None


def _word_alignable(plan: KernelPlan) -> bool:
    """Whether a row's results may be computed by other threads than its sums are: nothing but those is
    between them, and every result and accumulator has an element for each of the row."""
    if not (plan.columns and _exchanges_once(plan) and plan.paired_levels[0].moments is None):
        return False
    wide = all(c.op == "sum" and c.wide for c in plan.columns)
    return wide and all(set(plan.inner) <= r.tensor.axes for r in plan.results)


def _row_tiles(plan: KernelPlan) -> bool:
    """Whether blocks may move several rows together: nothing is accumulated over them, and some operand has
    elements of each."""
    rows = {*plan.kept, *plan.inner}
    return not plan.columns and any(o.tensor.axes == rows for o in plan.operands)


def refills(plan: KernelPlan) -> bool:
    """Whether a pipeline may hold vectors of whatever row: those of sums over rows."""
    return bool(plan.columns) and _exchanges_once(plan)


def tags(plan: KernelPlan) -> bool:
    """Whether it is known where rows of earlier blocks are: in one piece each, numbered by one axis."""
    return len(plan.kept) == 1 and not plan.segment and not plan.pieces


def cooperates(plan: KernelPlan) -> bool:
    """Whether blocks that need not run together may share a row: there is one exchange, and what is
    accumulated leaves with the row."""
    once = len(plan.paired_levels) == 1 and plan.paired_levels[0].exponentials is None
    leaves = (bool(plan.part) and not plan.adds_pieces) or not plan.columns
    return once and leaves and not plan.segment and not plan.channel


def finishes(plan: KernelPlan) -> bool:
    """Whether every accumulator is a result as it stands, with an element for each of the row: where there is
    one partial of it, the kernel of the rows may store the result in place of that."""
    if plan.segment or plan.part or plan.folded or plan.pieces:
        return False
    sums = [c.reduce for c in plan.columns if c.wide and c.op != "moments" and not is_missed(c.reduce)]
    made = [r.expr for r in plan.finals if r.tensor.role != "state" and r.tensor.axes == {*plan.inner}]
    same = bool(sums) and {*sums} == {*made}
    return same and len(made) == len(plan.finals) == len(plan.columns) == len(sums)


def exchanged(plan: KernelPlan) -> int:
    """How many values blocks that share a row exchange, 0 where none do."""
    if not cooperates(plan):
        return 0
    (level,) = plan.paired_levels
    return 3 if level.moments else len(level.sums)


def left(plan: KernelPlan) -> tuple[int, ...]:
    """How many values each of the blocks that share a row by launches leaves of each level."""
    levels = plan.paired_levels
    return tuple(4 if each.moments else 2 if each.exponentials else len(each.sums) for each in levels)


def launches(plan: KernelPlan) -> int:
    """How many launches a row takes that blocks share; 0 where threads keep something of the passes of levels
    for the results, so that they may not."""
    return 0 if any(c.terms for c in plan.columns) else len(plan.paired_levels) + 1


# (what all pieces of a row share is little, and what some rows share does not lie beside the one before)
REGISTERS = Form(
    "registers",
    lambda plan: bool(plan.part or plan.pieces or not plan.columns),
    own=(),
    one_shot=True,
    holds=True,
    late=True,
    tags=lambda plan: True,
)
PIPELINE = Form(
    "pipeline",
    lambda plan: not (plan.part or plan.pieces) and bool(plan.columns or plan.levels),
    holds=True,
    late=True,
    spare=True,
    finishes=True,
    staged=lambda plan, access, passes: True,
    holds_parts=lambda plan: not plan.levels,
    tags=lambda plan: not plan.columns,
)
ROW_TILE = Form(
    "row_tile",
    lambda plan: _usual(plan) and _row_tiles(plan),
    own=(),
    one_shot=True,
    holds=True,
    late=True,
    staged=lambda plan, access, passes: access.once,
)
COOPERATIVE = Form(
    "cooperative",
    cooperates,
    own=("words", "published"),
    one_shot=True,
    slices=True,
    holds=True,
    late=True,
    staged=lambda plan, access, passes: not plan.pieces or bool({*plan.pieces} & {*access.operand.kept}),
)
WORD_ALIGNED = Form(
    "word_aligned",
    lambda plan: _usual(plan) and _word_alignable(plan),
    spare=True,
    finishes=True,
    staged=lambda plan, access, passes: True,
)
BATCH = Form("batch", _splits, staged=lambda plan, access, passes: True, holds_parts=lambda plan: True)
# In the order of a record.
FORMS = (
    # a thread has several rows under way together
    BATCH,
    # one-shot; a thread group holds its row in registers
    REGISTERS,
    # persistent blocks, column sums in registers, rows arriving in a pipeline in shared memory
    PIPELINE,
    # one-shot; a block moves several short rows that begin anywhere together, by words
    ROW_TILE,
    # many blocks share a row, each with a slice in registers, and exchange through memory
    COOPERATIVE,
    # a pipeline of rows that begin anywhere, whose results go by words of memory
    WORD_ALIGNED,
    # any length of row; one pass over it per level, from memory or from a copy in shared memory
    Form(
        "multipass",
        lambda plan: _splits(plan) or (_usual(plan) and bool(plan.inner)),
        launches=True,
        finishes=True,
        stored=True,
        combines=True,
        staged=lambda plan, access, passes: passes > 1,
    ),
)
