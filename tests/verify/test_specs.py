"""The check of every file in `specs/`, which nobody writes a test for.

Each combination of attr values (required ints 1, 2, 4; bools both) is derived and differentiated. Its
kernels run on the covering cases of `normgen.verify.coverage`, which the combinations share out among them
by groups. For a spec of rows that is every width with every number of rows; for any other, channels, spaces
and batches apart. All element types, offsets and pitches occur, params, states and cotangents are left
out, gradients accumulated or not wanted, results in place. Each case runs on the checked host executor, each
third group also on the plain one with fused multiplications and additions, as nvcc does; the largest run
there alone. In `make test` each combination has an eighth of its groups, each another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pytest

from normgen import bundled
from normgen.dsl.syntax import parse
from normgen.verify import coverage
from normgen.verify.cases import DTYPE_SETS, Case, make_case
from normgen.verify.coverage import ROWS, WIDTHS
from normgen.verify.draw import attr_choices
from normgen.verify.events import FAILED, SKIPPED, Row
from normgen.verify.memory import PITCHES
from normgen.verify.places import CHECKED_ELEMENTS
from normgen.verify.run import Options, run
from tests.verify import subjects

pytestmark = pytest.mark.kernels

PARTS = 16  # has no factor in common with the number of groups of which the plain host runs one


def combinations() -> Iterator[list[object]]:
    """Of each spec, those of its attr values."""
    for name in bundled.names():
        texts = (
            "-".join(f"{key}={value}" for key, value in attrs.items())
            for attrs in attr_choices(parse(subjects.bundled_source(name)), {})
        )
        yield [
            pytest.param(name, index, id=f"{name}-{text}" if text else name)
            for index, text in enumerate(texts)
        ]


OF_EACH = list(combinations())
COMBINATIONS = [*chain(*OF_EACH)]


def check(name: str, index: int | None, executor: str, quick: bool = False) -> list[Row]:
    """The rows of a check, none of which has failed."""
    options = Options(only=index, executors=(executor,), quick=quick)
    rows = [event for event in run(subjects.bundled_source(name), options) if isinstance(event, Row)]
    failed = [row for row in rows if row.status == FAILED]
    assert not failed, "\n".join(
        f"{row.stage} {row.direction} {row.attrs} {row.shape} [{row.dtypes}] on {row.executor}: "
        f"{row.result} {row.worst:.3g} {row.note}"
        for row in failed
    )
    return rows


def check_on_host(name: str, index: int) -> None:
    """Nothing was passed over."""
    rows = check(name, index, "host")
    assert any(row.stage == "differences" for row in rows)
    kernels = [row for row in rows if row.stage == "kernels"]
    assert SKIPPED not in {row.status for row in kernels}
    assert {row.direction for row in kernels} == {"forward", "backward"}
    assert "host, checked" in {row.executor for row in kernels}


@pytest.mark.parametrize(("name", "index"), [each[place % len(each)] for place, each in enumerate(OF_EACH)])
def test_a_part_of_the_cases(name: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place, every = bundled.names().index(name), coverage.covering

    def part(*about: object) -> Sequence[Case]:
        cases = every(*about)
        groups = sorted({case.group for case in cases})
        parts = min(PARTS, len(groups) // 2)
        return [case for case in cases if case.group in groups[place % parts :: parts]]

    monkeypatch.setattr(coverage, "covering", part)
    check_on_host(name, index)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_all_cases(name: str, index: int) -> None:
    check_on_host(name, index)


# Where an attr fixes the length of a row, the widths are values of that attr.
WIDTH_ATTRS = {"qk_norm": ("head_dim", {"H": 3, "K": 2})}


@pytest.mark.parametrize(
    "width",
    [pytest.param(n, marks=() if i % 4 == 1 else pytest.mark.thorough) for i, n in enumerate(WIDTHS)],
)
@pytest.mark.parametrize("name", WIDTH_ATTRS)
def test_widths_that_are_attrs(name: str, width: int) -> None:
    attr, sizes = WIDTH_ATTRS[name]
    subject, index = subjects.bundled_subject(name, ((attr, width),)), WIDTHS.index(width)
    for rows in ROWS:
        case = make_case(subject.definition, rows, width, DTYPE_SETS[2 * index % len(DTYPE_SETS)], sizes)
        case = replace(
            case, offset=(0, 0, 1, 2, 3)[index % 5], pitch=PITCHES[index // 3 % len(PITCHES)], seed=rows
        )
        large = case.elements(subject.definition) > CHECKED_ELEMENTS
        subjects.prove(subject, case, subjects.PLAIN if large else subjects.CHECKED)
