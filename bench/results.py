"""Results of `run.py` as a file: a header of what they were measured with, and a row for each figure.

A row is `op, direction, shape, dtype, layout, provider`, which name it, and `us, bytes, copy_us, rho,
host_us, method, error`; `wrong` where the error is more than rounding, `fault` in place of figures where
there are none, `plan` where it is normgen's. Of two rows of one name the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
SCHEMA = 1
NAME = "results.json"
LINE = ("op", "direction", "shape", "dtype", "layout")


class OtherDevice(Exception):
    """Results of two devices do not belong into one file."""


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


def write(folder: Path, header: Row, rows: Iterable[Row]) -> None:
    """Add rows to the file of a folder, whole or not at all. OtherDevice where it is another's."""
    known, before = read(folder)
    if before and known["device"] != header["device"]:
        raise OtherDevice(f"{folder / NAME} is of {known['device']}, not of {header['device']}")
    every = merge(before, rows)
    lines = ",\n".join(json.dumps(row) for row in every)
    head = json.dumps({"schema": SCHEMA, **_of_all(known, header, every)})[:-1]
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{NAME}.part"
    partial.write_text(f'{head}, "rows": [\n{lines}\n]}}\n')
    partial.replace(folder / NAME)


def _of_all(known: Row, header: Row, rows: Iterable[Row]) -> Row:
    """The header of all runs in a file: a version is that of the last run that had the package, and a
    provider is absent where no run had it."""
    there = {row["provider"] for row in rows}
    versions = {**known.get("versions", {}), **header.get("versions", {})}
    absent = {name: why for name, why in header.get("absent", {}).items() if name not in there}
    return {**header, "versions": versions, "absent": absent}
