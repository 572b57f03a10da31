"""Verdicts of the check where little can be said: no number, no length, no kernel, a moment below zero."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.verify.compare import compare
from normgen.verify.coverage import covering
from normgen.verify.events import FAILED, SKIPPED, Row
from normgen.verify.run import Options, run
from tests.verify.subjects import CHECKED, prove, subject_of

pytestmark = pytest.mark.kernels


def source(text: str) -> Source:
    return Source("test.norm", f"norm test\n{text}\n")


def rows_of(text: str, **options: object) -> list[Row]:
    made = Options(executors=("host",), **options)  # type: ignore[arg-type]
    return [event for event in run(source(text), made) if isinstance(event, Row)]


def test_values_that_are_no_numbers_have_no_differences() -> None:
    text = "attr n = 0\ninput x[D]\ninput b[D]\noutput y[D] = x * sqrt(n - 9) + b"
    rows = rows_of(text, kernels=False)
    said = {(row.status, row.note) for row in rows if row.stage == "differences"}
    assert said == {(SKIPPED, "the finite differences are not numbers")}


@pytest.mark.parametrize("root", ["rsqrt(kept + 0.00001)", "sqrt(kept)", "log(kept + 0.00001)"])
def test_states_are_not_negative_where_that_makes_no_sense(root: str) -> None:
    """Second moments that begin at zero."""
    text = (
        "input x[B, C]\nstate v[C] = 0\nsave kept[C] = v\n"
        f"output y[B, C] = x * {root}\nupdate v = lerp(v, mean[B](x^2), 0.1)"
    )
    rows = rows_of(text, sizes={"C": 5}, dtype="f32", quick=True)
    assert not [row for row in rows if row.status == FAILED]
    assert any("v U(0, 0.4)" in row.drawn for row in rows)


def test_differences_are_at_the_lengths_that_were_asked_for() -> None:
    text = "input x[B, D]\noutput y[B, D] = x * sqrt(size[D] - 9)"
    shapes = {
        row.shape for row in rows_of(text, sizes={"D": 11}, kernels=False) if row.stage == "differences"
    }
    assert shapes == {"B=2 D=11", "B=3 D=11", "B=1 D=11"}
    large = rows_of(text, sizes={"D": 2_000_000}, kernels=False)
    assert not [row for row in large if row.status == FAILED]


def test_what_is_right_needs_no_bound() -> None:
    truth, bound = np.array([1.0, 2.0, np.inf, np.nan]), np.full(4, np.inf)
    assert compare(truth.astype(np.float32), "f32", truth, bound).ok
    found = compare(truth.astype(np.float32) + np.float32([0, 1, 0, 0]), "f32", truth, bound)
    assert found.unbounded == 1 and not found.ok


COMPOSITE = "input x[(S B), D]\ninput w[B]\noutput y[S, B, D] = x * w"


def test_lengths_that_an_empty_array_does_not_tell() -> None:
    """Of (S B) = 0 with B = 0; and no result lies over an operand of other dimensions."""
    subject = subject_of(source(COMPOSITE))
    cases = covering(load_definition(source(COMPOSITE)))
    empty = [case for case in cases if 0 in case.extents.values()]
    assert empty and all(case.extents["S"] == 0 for case in empty if case.extents["B"] == 0)
    for case in [*empty[:4], next(case for case in cases if case.in_place and all(case.extents.values()))]:
        prove(subject, case, CHECKED)
