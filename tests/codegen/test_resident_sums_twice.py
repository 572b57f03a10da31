"""Segments of which blocks keep a part while their sums meet, and read the rest of it twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.verify.draw import Sample
from tests.codegen import residing
from tests.codegen.holding import case
from tests.codegen.residing import LENGTHS, SUMS, adding, backward_launched, dealt
from tests.verify.subjects import CHECKED, prove

# Threads of a block, rows of a team in registers, rows of a sample, and of a team in all, in shared memory
# and read twice: fewer that are read twice than places in shared memory, and more; the last slice short, and
# not.
TWICE = [
    (64, 2, 300, (25, 12, 11)), (64, 1, 387, (33, 12, 20)), (64, 2, 220, (19, 12, 5)),
    (64, 9, 390, (33, 12, 12)), (32, 3, 450, (75, 24, 48)), (128, 1, 200, (9, 5, 3)),
]  # fmt: skip


@pytest.fixture
def read_twice(monkeypatch):
    """Blocks that have room for a few rows only."""

    def few(threads: int, held: int, members: int = 3, room: int = 27800) -> None:
        residing.read_twice(monkeypatch, "SUMS", threads, held, members, room)

    return few


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize(("threads", "held", "rest", "expected"), TWICE)
def test_rows_that_are_read_twice(read_twice, threads, held, rest, expected, dtypes):
    read_twice(threads, held)
    found = adding("groupnorm_channels_last", 4)
    for over in (False, True):
        made = replace(case(found, dtypes, B=2, C=16, rest=rest), in_place=over)
        prove(found, made, CHECKED, directions=("backward",))
    made = case(found, "f32", B=2, C=16, rest=rest)
    prove(found, made, CHECKED, {"x": Sample("normal", 1e6, 1.0)}, directions=("backward",))
    assert dealt(backward_launched(found, "f32", B=2, G=4, C=16, rest=rest)) == expected


@pytest.mark.parametrize("name", SUMS)
def test_other_norms_whose_rows_are_read_twice(read_twice, name):
    read_twice(64, 2, 2, 8000)
    found = adding(name)
    axes = {a.name for a in found.norm.package.axes}
    lengths = LENGTHS | {"S": 167, "rest": 403}
    lengths = {n: k for n, k in lengths.items() if n in axes or (n == "rest" and "..." in axes)}
    prove(found, case(found, "f32", **lengths), CHECKED, directions=("backward",))
    extents = lengths | {a.name: a.extent for a in found.norm.package.axes if a.extent is not None}
    _, _, again = dealt(backward_launched(found, "f32", **extents))
    assert again > 0
