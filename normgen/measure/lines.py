"""What tuning has found, as lines of a table of measured choices (`launching.table`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgen.launching.knobs import Knobs, full, schedule_of, short
from normgen.launching.support import Support
from normgen.launching.table import Line
from normgen.measure.trials import Outcome
from normgen.package.kernels import Kernel
from normgen.runtime.planning.choose import Candidate
from normgen.runtime.planning.registry import family_of


class OtherBits(Exception):
    """A line that a table cannot take: it has one for the same rows that adds them up in another order."""


def lines(outcome: Outcome, norm: str, device: str) -> list[tuple[Candidate, Line]]:
    """The kernels that are fastest, each with its line, as far as their families have tables. Those that run
    by default have one too: else a line of another number of rows would be taken for this one.

    `norm` and `device` are names, for people who read the line."""
    case, found = outcome.case, []
    sizes = ", ".join(f"{axis} = {length}" for axis, length in case.sizes.items())
    for each in outcome.taken.kernels:
        kept = family_of(each.kernel).measured_as(each.kernel, each.call)
        if kept is not None:
            about = f"{each.kernel.name} of {norm}: {sizes} in {case.dtype} on {device}"
            found.append((each, Line(kept[0], about, ((kept[1], short(each.schedule)),))))
    return found


def with_line(table: Sequence[Line], kernel: Kernel, line: Line) -> list[Line]:
    """A table in which a line of one count takes the place of what was there for its shape and count.

    Schedules of other counts stay where they can still be read. `OtherBits` where they give other bits: all
    that a line has must agree, so that a row has the same bits in any batch."""
    known = next((each for each in table if each.key == line.key), None)
    if known is None:
        return [*table, line]
    ((count, knobs),) = line.measured
    others = {n: each for n, each in known.measured if n != count and _bits(kernel, each) is not None}
    for number, each in others.items():
        if _bits(kernel, each) != _bits(kernel, knobs):
            raise OtherBits(f"line {line.key} has a schedule for {number} that gives other bits")
    measured = tuple(sorted((others | {count: knobs}).items()))
    return [known._replace(measured=measured) if each is known else each for each in table]


def _bits(kernel: Kernel, knobs: Mapping[str, Any]) -> Knobs | None:
    """What decides the bits of a schedule that is written so; None where it is none."""
    family = family_of(kernel)
    schedule = schedule_of(family.schedule, full(family.schedule, knobs))
    return None if isinstance(schedule, Support) else family.bits(schedule)
