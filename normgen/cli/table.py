"""Tables: columns of text, as wide as the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from normgen.cli.console import colored
from normgen.cli.wrap import width, wrapped

GAP = "  "
NARROWEST_CELL = 20  # a last column that would be narrower is not wrapped


def print_columns(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under their headings. Empty columns are omitted; those in `right` align right."""
    for number, line in enumerate(columns_of(headings, rows, right)):
        click.echo(click.style(line, bold=True) if number == 0 and colored(sys.stdout) else line)


def columns_of(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> list[str]:
    """The lines of a table: the headings, then the rows. If a row is wider than the terminal, the cell in its
    last column is wrapped."""
    columns = [
        [heading, *cells]
        for heading, cells in zip(headings, zip(*rows, strict=True), strict=True)
        if any(cells)
    ]
    *before, last = [_pad(column, column[0] in right) for column in columns]
    taken = sum(len(column[0]) + len(GAP) for column in before)
    lines = []
    for *cells, cell in zip(*before, last, strict=True):
        first, *more = _lines_of(cell.rstrip(), width() - taken)
        lines += [GAP.join([*cells, first]).rstrip(), *(" " * taken + each for each in more)]
    return lines


def _lines_of(cell: str, columns: int) -> list[str]:
    if columns < NARROWEST_CELL:
        return [cell]
    return wrapped(cell, columns, further=0).splitlines() or [""]


def _pad(column: Sequence[str], right: bool) -> list[str]:
    widest = max(map(len, column))
    return [cell.rjust(widest) if right else cell.ljust(widest) for cell in column]
