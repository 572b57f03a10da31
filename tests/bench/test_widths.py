"""Which widths are surveyed, and how what was measured is shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from normgen.measure.norms import contiguous_binding, direction_of
from normgen.runtime.planning.choose import plan_launches
from tests.bench.programs import program
from tests.codegen.norms import H200


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch) -> Any:
    return program("widths", monkeypatch)


def test_widths_have_vectors_of_every_length(survey: Any) -> None:
    found = survey.widths(64, 4096)
    assert found[:4] == [64, 68, 80, 82] and found[-1] == 4096
    assert {width & -width for width in found if width % 16} >= {2, 4, 8}
    assert all(sum(low <= width < 2 * low for width in found) == 8 for low in (64, 128, 1024, 2048))
    assert any(width % 2 for width in survey.widths(64, 4096, odd=True))


def test_the_table_marks_what_is_slow(survey: Any) -> None:
    found = (("a.forward", 64, 0.9), ("b.forward", 64, 0.5), ("a.forward", 32, 0.7), ("b.forward", 96, 0.85))
    rows = [{"pass": name, "width": width, "rho": rho} for name, width, rho in found]
    assert survey.table(rows, 0.85) == [
        "| columns | a.forward | b.forward |", "|---|---|---|",
        "| 32 | **0.70** |  |", "| 64 | 0.90 | **0.50** |", "| 96 |  | 0.85 |",
    ]  # fmt: skip


def test_a_survey(survey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: plans are those for an H200, every copy takes 100 us, every pass 125."""
    compiled: set[str] = set()

    def plan(package: Any, case: Any) -> Any:
        direction = direction_of(package, case.direction)
        binding = contiguous_binding(direction, case.sizes, case.dtype)
        return plan_launches(direction.record, binding, H200)

    there = SimpleNamespace(
        executor=SimpleNamespace(plan=plan, binary=compiled.add),
        ceiling=SimpleNamespace(microseconds=lambda kind, total: 100.0),
        buffers=lambda package, case: [SimpleNamespace(addresses={})],
        clock=None,
        plan=plan,
    )
    monkeypatch.setattr(survey, "Bench", lambda: there)
    monkeypatch.setattr(survey, "measure_plan", lambda *_: SimpleNamespace(us=125.0))
    found = survey.run(["rmsnorm.forward", "softmax.backward"], "bf16", [64, 514], 1e9)
    assert [row["pass"] for row in found] == ["rmsnorm.forward", "softmax.backward"] * 2
    assert [row["width"] for row in found] == [64, 64, 514, 514]
    assert all(row["rho"] == pytest.approx(0.8, rel=1e-3) and "threads" in row["note"] for row in found)
    assert len(compiled) == 4
    assert survey.run(["rmsnorm.forward"], "bf16", [64], -1.0) == []
