"""The shipped table is what `bench.table` makes of the choices that are written down. (That these are what is
taken with the table is tried in `test_choices`.)"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from bench.choices import PATH
from bench.table import Measured, main, measured, table
from normgen.launching.table import SHIPPED, Line, read, written

TABLE = SHIPPED / "sm_90.jsonl"
A, B = ((("team", team),) for team in (32, 64))  # bits


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


def test_all_schedules_of_a_line_give_the_same_bits() -> None:
    bits = {(each.key, each.count): each.bits for each in found()}
    lines = read(TABLE)
    assert max(map(len, lines.values())) > 1
    for key, line in lines.items():
        assert len({bits[key, count] for count, _ in line}) == 1


def test_a_shape_has_one_line_with_the_bits_that_most_give() -> None:
    made = table(
        [
            Measured("one", "a kernel", 64, A, {"team": 32, "blocks": 2}),
            Measured("one", "another", 16, B, {"team": 64}),
            Measured("two", "a third", 16, B, {"team": 64}),
            Measured("one", "a fourth", 4, A, {"team": 32}),
        ]
    )
    assert made == [
        Line("one", "a kernel", ((4, {"team": 32}), (64, {"team": 32, "blocks": 2}))),
        Line("two", "a third", ((16, {"team": 64}),)),
    ]
