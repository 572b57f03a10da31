"""The table of measured choices that normgen comes with, under those that a user has tuned.

One file an architecture, a JSON line for the rows, or columns, of one shape: how many there were, and which
schedule was fastest. `bench/table.py` writes it. A line that is no longer legal is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from normgen.launching.knobs import full, schedule_of
from normgen.launching.support import Support

S = TypeVar("S")
Lines = tuple[tuple[int, Mapping[str, Any]], ...]  # by how many there were, the knobs beside the defaults

SHIPPED = Path(__file__).parent / "tables"


class Line(NamedTuple):
    """What was measured for the rows, columns or segments of one shape."""

    key: str
    about: str  # a kernel in a call, for people
    measured: Lines


def measured(arch: str, key: str, schedule: type[S]) -> tuple[tuple[int, S], ...]:
    """What was measured for kernels of a shape on an architecture: each count, and the schedule that was
    taken, with nothing estimated; in order of the counts."""
    made = ((count, schedule_of(schedule, full(schedule, knobs))) for count, knobs in lines_of(arch, key))
    return tuple((count, each) for count, each in made if not isinstance(each, Support))


def nearest(found: Sequence[tuple[int, S]], count: int) -> S | None:
    """The schedule of the nearest count; None where there is none."""
    for (less, schedule_of_less), (more, _) in pairwise(found):
        if count <= isqrt(less * more):
            return schedule_of_less
    return found[-1][1] if found else None


def lines_of(arch: str, key: str) -> Lines:
    """The same as it is written."""
    return read(SHIPPED / f"{arch.rstrip('af')}.jsonl").get(key, ())


def key_of(shape: Any, *without: str) -> str:
    """What names a shape: a digest of what differs from the defaults of its class, so that the class may get
    further fields, without those that a line is not for."""
    named = {each.name: (getattr(shape, each.name), each.default) for each in fields(shape)}
    said = sorted(
        (name, value) for name, (value, usual) in named.items() if value != usual and name not in without
    )
    return blake2b(repr((type(shape).__name__, said)).encode(), digest_size=8).hexdigest()


@cache
def read(path: Path) -> Mapping[str, Lines]:
    """The lines of a table by their keys; nothing where there is no such file."""
    return {line.key: line.measured for line in parsed(path.read_text())} if path.exists() else {}


def parsed(text: str) -> list[Line]:
    """The lines of a table. ValueError where it is none, with the number of the line that is wrong."""
    return [_parsed(number, line) for number, line in enumerate(text.splitlines(), 1)]


def written(lines: Iterable[Line]) -> str:
    """The text of a table."""
    return "".join(f"{json.dumps(line._asdict())}\n" for line in lines)


def _parsed(number: int, text: str) -> Line:
    try:
        line = json.loads(text)
        measured = tuple((count, knobs) for count, knobs in line["measured"])
        right = all(type(count) is int and count > 0 and type(knobs) is dict for count, knobs in measured)
        if measured and right and isinstance(line["key"], str):
            return Line(line["key"], str(line["about"]), measured)
    except (ValueError, TypeError, KeyError):
        pass
    raise ValueError(f"line {number} is not a line of a table")
