"""What tuning has found, as lines of a table of measured choices (`launching.table`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgen.launching.knobs import full, schedule_of, short
from normgen.launching.support import Support
from normgen.launching.table import Line
from normgen.measure.trials import Outcome
from normgen.package.kernels import Kernel
from normgen.runtime.planning.choose import Candidate
from normgen.runtime.planning.registry import family_of


def lines(outcome: Outcome, norm: str, device: str) -> list[tuple[Candidate, Line]]:
    """The kernels that are fastest, each with its line, as far as their families have tables. Those that run
    by default have one too: else a line of nearly as many rows might be taken for this one.

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
    Schedules of other counts stay where they can still be read."""
    known = next((each for each in table if each.key == line.key), None)
    if known is None:
        return [*table, line]
    others = {count: each for count, each in known.measured if _is_one(kernel, each)}
    measured = tuple(sorted((others | dict(line.measured)).items()))
    return [known._replace(measured=measured) if each is known else each for each in table]


def _is_one(kernel: Kernel, knobs: Mapping[str, Any]) -> bool:
    """Whether what is written so is a schedule."""
    kind = family_of(kernel).schedule
    return not isinstance(schedule_of(kind, full(kind, knobs)), Support)
