"""Results of one run of `run.py` as a file: a header of what they were measured with, and a row per figure.

The header is `device, versions, kernels, commit, absent`; `kernels` is a digest of normgen's own files, of
which commits may have the same. A row is `op,
direction, shape, dtype, layout, provider`, which name it, and `us, spread, bytes, copy_us, rho, host_us,
method, error`; `wrong` where the error is more than rounding, `fault` in place of figures where there are
none, `plan` where it is normgen's. Of two rows of one name the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SCHEMA = 2
NAME = "results.json"
LINE = ("op", "direction", "shape", "dtype", "layout")


class OtherRun(Exception):
    """Results of two runs do not belong into one file; the message says what differs."""


def line_of(row: Row) -> tuple[Any, ...]:
    """What a row is about, whoever provides it."""
    return tuple(tuple(row[k]) if k == "shape" else row[k] for k in LINE)


def key_of(row: Row) -> tuple[Any, ...]:
    """The name of a row."""
    return (*line_of(row), row["provider"])


def _place(row: Row) -> tuple[Any, ...]:
    """Where a row stands: lines of one op, direction and layout together, by their width."""
    shape = tuple(row["shape"])
    return row["op"], row["direction"], row["layout"], row["dtype"], shape[-1], shape, row["provider"]


def merge(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All rows, in order."""
    rows = {key_of(row): row for row in (*old, *new)}
    return sorted(rows.values(), key=_place)


def read(folder: Path) -> tuple[Row, list[Row]]:
    """The header and the rows of a folder; nothing of either where there is no file."""
    file = folder / NAME
    if not file.exists():
        return {}, []
    content = json.loads(file.read_text())
    rows = content.pop("rows")
    return content, rows


def start(folder: Path, header: Row) -> None:
    """Begin a run: the folder's file has its header, and no rows."""
    _write(folder, header, [])


def add(folder: Path, header: Row, rows: Iterable[Row]) -> None:
    """Add rows to the file of a run, whole or not at all. OtherRun where the file is of another."""
    known, before = read(folder)
    expect_same_run(folder, known, header)
    _write(folder, header, merge(before, rows))


def expect_same_run(folder: Path, known: Row, header: Row) -> None:
    """OtherRun where a file has another header: of another device, of other packages or kernels."""
    for key in known.keys() | header.keys():
        if key not in ("schema", "commit") and known.get(key) != header.get(key):
            told = f"{folder / NAME} is of another run: its {key} is {known.get(key)}, not {header.get(key)}"
            raise OtherRun(told)


def _write(folder: Path, header: Row, rows: Iterable[Row]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({**header, "schema": SCHEMA})[:-1]
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{NAME}.part"
    partial.write_text(f'{head}, "rows": [\n{lines}\n]}}\n')
    partial.replace(folder / NAME)
