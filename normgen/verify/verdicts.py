"""What the kernels of a case compute in one place, against what is expected: a row for each direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from traceback import extract_tb

from normgen.counting import counted
from normgen.devices.host.executor import HostFault
from normgen.errors import DeviceMissing, DriverError, MachineError, ToolchainMissing
from normgen.verify.draw import Drawn
from normgen.verify.events import FAILED, OK, SKIPPED, Row
from normgen.verify.expected import Expectation, Subject
from normgen.verify.kernels import Outcome, run_case
from normgen.verify.places import Place

MakeRow = Callable[..., Row]  # from a stage, a status and the other fields of a row

# What running a kernel may end in where the kernel is at fault, which is what a check is there to find.
_FOUND = (HostFault, DriverError)


def verdicts(
    row: MakeRow, subject: Subject, expectation: Expectation, drawn: Drawn, place: Place
) -> Iterator[Row]:
    """A row for each direction of a case in one place."""
    case = expectation.case
    directions = ("forward", "backward") if subject.backward is not None else ("forward",)
    for direction in directions:
        about = {
            "direction": direction,
            "shape": case.shape_text + (f", strategy {subject.strategy}" if subject.strategy else ""),
            "dtypes": case.dtype_name,
            "executor": place.name,
            "drawn": drawn.text,
        }
        try:
            outcomes = list(run_case(subject, expectation, place.executor, place.memory, (direction,)))
        except (ToolchainMissing, DeviceMissing):
            raise
        except Exception as fault:  # whatever goes wrong is the row's verdict, and the next case still runs
            yield broken(row, fault, about)
            continue
        yield verdict(row, outcomes, about, drawn.finite)


def broken(row: MakeRow, fault: Exception, about: Mapping[str, str]) -> Row:
    """The row of a direction that ended in an error."""
    internal = not isinstance(fault, _FOUND)
    note = _first_lines(fault, with_place=internal)
    return row("kernels", FAILED, worst=float("inf"), note=note, internal=internal, **about)


def verdict(row: MakeRow, outcomes: list[Outcome], about: Mapping[str, str], finite: bool) -> Row:
    """The row of one direction, of what was compared in it."""
    if not outcomes:
        return row("kernels", SKIPPED, note="no results", **about)
    worst = max(outcomes, key=lambda o: (not o.comparison.ok, o.comparison.worst))
    notes = [] if finite else ["the float64 results are not finite either"]
    unbounded = sum(o.comparison.unbounded for o in outcomes)
    if unbounded:
        notes.append(f"no finite bound for {counted(unbounded, 'element')}")
    if not worst.comparison.ok:
        c = worst.comparison
        notes.append(f"{worst.result}{list(c.where)} is {c.got!r}, not {c.wanted!r} within {c.bound:.3g}")
    return row(
        "kernels",
        OK if worst.comparison.ok else FAILED,
        result=worst.result,
        worst=worst.comparison.worst,
        note="; ".join(notes),
        **about,
    )


def _first_lines(fault: Exception, with_place: bool) -> str:
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    said = f"{type(fault).__name__}: {' / '.join(lines[:3])}"
    if not with_place or isinstance(fault, MachineError):
        return said
    last = extract_tb(fault.__traceback__)[-1]
    return f"{said} ({Path(last.filename).name}, line {last.lineno})"
