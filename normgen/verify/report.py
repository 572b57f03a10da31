"""The result of a check: the comparisons that passed, failed or were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normgen.counting import counted
from normgen.diagnostics import Source
from normgen.errors import ToolchainMissing
from normgen.verify.events import FAILED, NO_GPU, OK, SKIPPED, Row
from normgen.verify.refused import checked_definition
from normgen.verify.run import Options, run

SHOWN = 20  # failures that the text of a report lists
NOTHING_RAN = "only the formulas were checked: no kernel ran, since neither a C++ compiler nor a GPU is found"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `normgen.check`. `spec`: the name of the norm. `rows`: one `Row` per comparison, in the
    order in which they were made."""

    spec: str
    rows: tuple[Row, ...]

    @property
    def passed(self) -> tuple[Row, ...]:
        """The comparisons within their bounds."""
        return self._with(OK)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The comparisons beyond their bounds, and errors; the `note` of each explains it."""
        return self._with(FAILED)

    @property
    def skipped(self) -> tuple[Row, ...]:
        """The comparisons that could not run; the `note` of each says why. Without a GPU, that is one."""
        return self._with(SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def worst(self) -> Row | None:
        """The comparison with the largest error relative to its bound; None if there was none. Its `worst`
        is that ratio."""
        compared = [row for row in self.rows if row.dtypes and row.status != SKIPPED]
        return max(compared, key=lambda row: row.worst, default=None)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        failed = [f"failed: {case_text(row)}: {row.note}" for row in self.failed]
        more = [f"and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
        gaps = [row for row in self.skipped if row.missing != NO_GPU]
        skipped = [f"skipped: {case_text(row)}: {row.note}" for row in gaps]
        return "\n".join([self._verdict(), *failed[:SHOWN], *more, *skipped])

    def _verdict(self) -> str:
        if not self.ok:
            return f"{self.spec}: {len(self.failed)} of {len(self.failed) + len(self.passed)} checks failed"
        return f"{self.spec}: {counted(len(self.passed), 'check')} passed"

    def _with(self, status: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == status)


def made_report(source: Source, options: Options) -> Report:
    """Check a spec from end to end. Raises `Refused`, `SpecError`, and `ToolchainMissing` if nothing could
    run its kernels."""
    name = checked_definition(source, options).program.name
    report = Report(name, tuple(event for event in run(source, options) if isinstance(event, Row)))
    if nothing_ran(report.rows):
        raise ToolchainMissing(NOTHING_RAN)
    return report


class CheckFailed(AssertionError):
    """A check failed. The message lists the failures; `report` has all results."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def case_text(row: Row) -> str:
    """Which comparison a row is about."""
    parts = (row.stage, row.attrs, row.direction, row.result, row.shape, row.dtypes, row.executor)
    return ", ".join(part for part in parts if part)


def nothing_ran(rows: Sequence[Row]) -> bool:
    """Whether there was neither a compiler nor a GPU to run kernels with."""
    return {"host", "cuda"} <= {row.executor for row in rows if row.missing}
