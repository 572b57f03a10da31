"""Tables: columns of text, and that of a check: the worst case of each kind, and every failure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from normgen.cli.console import colored

if TYPE_CHECKING:
    from normgen.verify.events import Row

_STYLES = {"failed": "red", "skipped": "yellow", "ok": "green"}


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under their headings. An empty column is left out; those in `right` align right."""
    columns = [
        [heading, *cells]
        for heading, cells in zip(headings, zip(*rows, strict=True), strict=True)
        if any(cells)
    ]
    padded = [_pad(column, column[0] in right) for column in columns]
    for number, line in enumerate(zip(*padded, strict=True)):
        text = "  ".join(line).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 and colored(sys.stdout) else text)


def _pad(column: Sequence[str], right: bool) -> list[str]:
    width = max(map(len, column))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in column]


def print_check(rows: Sequence[Row], verbose: bool) -> None:
    """Print the rows, grouped unless `verbose`, then what is to be known beside them, then the verdict."""
    headings = ("STAGE", "ATTRS", "DIRECTION", "WHERE", "DTYPES", "CASES", "WORST", "VERDICT", "WORST AT")
    print_columns(headings, [_cells(group) for group in _groups(rows, verbose)], ("CASES", "WORST"))
    click.echo()
    for text in _remarks(rows):
        click.echo(text)
    click.echo(_verdict(rows))


def _groups(rows: Sequence[Row], verbose: bool) -> list[list[Row]]:
    groups: dict[object, list[Row]] = {}
    for number, row in enumerate(rows):
        alike = (row.stage, row.attrs, row.direction, row.executor, row.status)
        groups.setdefault(number if verbose else alike, []).append(row)
    return list(groups.values())


def _cells(group: Sequence[Row]) -> tuple[str, ...]:
    worst = max(group, key=lambda row: row.worst)
    dtypes = {row.dtypes for row in group}
    measured = bool(worst.dtypes)
    return (
        worst.stage,
        worst.attrs,
        worst.direction,
        worst.executor,
        worst.dtypes if len(dtypes) == 1 else f"{len(dtypes)} mixtures",
        str(len(group)) if measured else "",
        f"{worst.worst:.3f}" if measured else "",
        worst.status,
        ", ".join(filter(None, (worst.result, worst.shape, worst.dtypes if len(dtypes) > 1 else ""))),
    )


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Failures first, then what was left out, then notes, then what was drawn; each text once."""
    from normgen.verify.report import case_text

    failed = [f"failed: {case_text(row)}: {row.note}" for row in rows if row.status == "failed"]
    skipped = [f"skipped: {case_text(row)}: {row.note}" for row in rows if row.status == "skipped"]
    notes = [f"note: {row.stage}: {row.note}" for row in rows if row.ok and row.note]
    drawn = [f"drawn: {row.drawn}" for row in rows if row.drawn]
    return list(dict.fromkeys([*failed, *skipped, *notes, *drawn]))


def _verdict(rows: Sequence[Row]) -> str:
    count = {status: sum(row.status == status for row in rows) for status in ("ok", "failed", "skipped")}
    status = "failed" if count["failed"] else "skipped" if count["skipped"] else "ok"
    word = {"failed": "FAILED", "skipped": "passed, with gaps", "ok": "passed"}[status]
    head = click.style(word, fg=_STYLES[status], bold=True) if colored(sys.stdout) else word
    return f"{head}: {count['ok']} checks passed, {count['failed']} failed, {count['skipped']} skipped"
