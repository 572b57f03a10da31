"""What calls ask for and leave out, in turn: by the number of a group of cases.

It is the same for a whole group, since it decides what the kernels are. Gradients that are not wanted are the
exception: a group's longest batch has them, so that none is without all of its gradients.
"""

from __future__ import annotations

from dataclasses import replace

from normgen.ir.expr import Expr, Load, walk
from normgen.ir.program import Definition
from normgen.verify.cases import Case
from normgen.verify.memory import ODD_OUTER, ODD_ROWS, PACKED, PADDED, ROUNDED

_TURNS = (PADDED, ROUNDED, ODD_OUTER, ODD_ROWS)


def in_turn(definition: Definition, case: Case, turn: int, longest: bool) -> Case:
    """The case with everything but its operands' offset as this turn has it; `longest`: of its group's
    batches."""
    absent = (*left_out(definition, turn), *absent_cotangents(definition, turn))
    return replace(
        case,
        pitch=_TURNS[turn // 3 % len(_TURNS)] if turn % 3 == 1 else PACKED,
        given_out=turn % 2 == 1,
        out_offset=(turn // 2) % 4,
        in_place=turn % 5 == 0,
        accumulate=turn % 4 == 3 or turn % 8 == 4,
        absent=absent,
        wrt=differentiated_by(definition, absent, turn) if longest else None,
        save=turn % 6 != 5,
        seed=turn,
        group=turn,
    )


def left_out(definition: Definition, turn: int) -> tuple[str, ...]:
    """Params with a default, and states that nothing but their own update reads: some, in turn."""
    program = definition.program
    needed = _loads(*(r.expr for r in program.results))
    for update in program.updates:
        needed |= _loads(update.expr) - {update.state}
    found = [t.name for t in program.operands if t.role == "param" and t.default is not None]
    chosen = [name for i, name in enumerate(found) if (turn + i) % 5 == 3]
    states = [t.name for t in program.operands if t.role == "state" and t.name not in needed]
    return (*chosen, *(name for i, name in enumerate(states) if (turn + i) % 4 == 2))


def absent_cotangents(definition: Definition, turn: int) -> tuple[str, ...]:
    """Of several cotangents, each fourth turn leaves out one, which is zero then."""
    of = definition.of
    return (f"d{of[turn // 4 % len(of)]}",) if len(of) > 1 and turn % 4 == 1 else ()


def differentiated_by(definition: Definition, absent: tuple[str, ...], turn: int) -> tuple[str, ...] | None:
    """Two of seven turns: one of all that there is to differentiate by, or all others."""
    sources = tuple(name for name in definition.wrt if name not in absent)
    if len(sources) < 2 or turn % 7 not in (2, 5):
        return None
    one = sources[turn // 7 % len(sources)]
    return (one,) if turn % 7 == 2 else tuple(name for name in sources if name != one)


def _loads(*exprs: Expr) -> set[str]:
    return {node.tensor for node in walk(*exprs) if isinstance(node, Load)}
