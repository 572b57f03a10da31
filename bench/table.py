"""Writes the tables of measured choices that normgen comes with.

    PYTHONPATH=. python -m bench.table     # from bench/choices/*.jsonl, for sm_90

A line of `bench/choices` says what was measured to be fast in one call; a line of a table says it of every
call with such rows, columns or segments. Schedules that `normgen tune --json` prints as `chosen` may take the
place of those of the same kernels.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.choices import PATH
from bench.problems import DTYPES, LAYOUTS, OPS, problems
from normgen.launching.knobs import full
from normgen.launching.machine import USUAL_MACHINE
from normgen.launching.table import SHIPPED, Line, parsed, written
from normgen.runtime.planning.choose import Choice, chosen
from normgen.runtime.planning.registry import family_of


class Measured(NamedTuple):
    """A kernel in one call, as it was fast."""

    key: str
    about: str
    count: int
    knobs: Mapping[str, Any]


def measured(lines: Iterable[Mapping[str, Any]]) -> Iterator[Measured]:
    """The kernels of calls, as far as their families have tables."""
    by_text = {problem.text: problem for problem in problems(OPS, DTYPES, (), LAYOUTS)}
    for line in lines:
        called, binding = by_text[line["call"]].call(line["direction"])
        kernels = {kernel.name: kernel for kernel in called.record.kernels}
        knobs = {
            name: full(family_of(kernels[name]).schedule, short) for name, short in line["schedules"].items()
        }
        found = chosen(called.record, binding, USUAL_MACHINE, Choice(line["strategy"], knobs))
        assert found is not None, f"{line['call']} {line['direction']}: its schedules no longer fit"
        for each in found.kernels:
            kept = family_of(each.kernel).measured_as(each.kernel, each.call)
            if kept is not None:
                key, count = kept
                about = f"{each.kernel.name} of {line['call']}"
                short = line["schedules"][each.kernel.name]
                yield Measured(key, about, count, short)


def table(found: Iterable[Measured], known: Iterable[Line] = ()) -> list[Line]:
    """Of each shape the schedules of all its counts; then known lines of other shapes."""
    by_key: dict[str, list[Measured]] = defaultdict(list)
    for each in found:
        by_key[each.key].append(each)
    lines = []
    for key, alike in by_key.items():
        counts = {each.count: each.knobs for each in alike}
        lines.append(Line(key, alike[0].about, tuple(sorted(counts.items()))))
    return [*lines, *(line for line in known if line.key not in by_key)]


def main(path: Path = SHIPPED / "sm_90.jsonl") -> None:
    known = parsed(path.read_text()) if path.exists() else []
    found = measured(map(json.loads, PATH.read_text().splitlines()))
    path.write_text(written(table(found, known)))


if __name__ == "__main__":
    main()
