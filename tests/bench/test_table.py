"""The shipped table is what `bench.table` makes of the choices that are written down. (That these are what is
taken with the table is tried in `test_choices`.)"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from bench.choices import PATH
from bench.table import Measured, main, measured, table
from normgen.launching.table import SHIPPED, Line, written

TABLE = SHIPPED / "sm_90.jsonl"


@cache
def found() -> tuple[Measured, ...]:
    return tuple(measured(map(json.loads, PATH.read_text().splitlines())))


def test_the_table_is_what_was_measured(tmp_path: Path) -> None:
    """It may have lines of other shapes beside those of the bench, which stay."""
    other = Line("0123456789abcdef", "a kernel of another shape", ((4, {"team": 32}),))
    (again := tmp_path / "sm_90.jsonl").write_text(TABLE.read_text() + written([other]))
    main(again)
    made, known = again.read_text().splitlines(), [*TABLE.read_text().splitlines(), written([other]).strip()]
    changed = [line for line in made if line not in known]
    assert not changed, f"{len(changed)} lines differ: python -m bench.table\n{changed[0]}"
    assert made == known


def test_a_shape_has_one_line_with_the_schedules_of_all_counts() -> None:
    made = table(
        [
            Measured("one", "a kernel", 64, {"team": 32, "blocks": 2}),
            Measured("two", "a third", 16, {"team": 64}),
            Measured("one", "another", 16, {"team": 64}),
        ]
    )
    assert made == [
        Line("one", "a kernel", ((16, {"team": 64}), (64, {"team": 32, "blocks": 2}))),
        Line("two", "a third", ((16, {"team": 64}),)),
    ]
