"""Which widths are surveyed, and how what was measured is shown."""

from __future__ import annotations

from typing import Any

import pytest

from normgen import bundled
from tests.bench.programs import program


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("widths", monkeypatch)


def test_widths_have_vectors_of_every_length(survey: Any) -> None:
    found = survey.widths(64, 4096)
    assert found[:4] == [64, 68, 80, 82] and found[-1] == 4096
    assert {width & -width for width in found if width % 16} >= {2, 4, 8}
    assert all(sum(low <= width < 2 * low for width in found) == 8 for low in (64, 128, 1024, 2048))
    assert any(width % 2 for width in survey.widths(64, 4096, odd=True))


def test_every_pass_is_of_a_bundled_spec(survey: Any) -> None:
    for each in survey.PASSES.split(","):
        name, _, direction = each.rpartition(".")
        assert name in bundled.names() and direction in ("forward", "backward")


def test_sizes_keep_the_number_of_elements(survey: Any) -> None:
    for width in survey.widths():
        (rows,) = survey.sizes_of(width)["..."]
        assert 0 <= survey.ELEMENTS - rows * width < width


def rows() -> list[dict[str, Any]]:
    found = (("a.forward", 64, 0.9), ("b.forward", 64, 0.5), ("a.forward", 32, 0.7), ("b.forward", 96, 0.85))
    return [{"pass": name, "width": width, "rho": rho} for name, width, rho in found]


def test_the_table_marks_what_is_slow(survey: Any) -> None:
    assert survey.table(rows(), 0.85) == [
        "| columns | a.forward | b.forward |",
        "|---|---|---|",
        "| 32 | **0.70** |  |",
        "| 64 | 0.90 | **0.50** |",
        "| 96 |  | 0.85 |",
    ]


def test_the_slowest_comes_first(survey: Any) -> None:
    assert [(row["pass"], row["width"]) for row in survey.slow(rows(), 0.85)] == [
        ("b.forward", 64),
        ("a.forward", 32),
    ]
