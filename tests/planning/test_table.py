"""The table of measured choices: who finds a line of it, and who goes by predictions all the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bench.calls import call_of
from bench.drawn import Drawn
from bench.problems import DTYPES, LAYOUTS, OPS, problems
from normgen.launching import model, pick, table
from normgen.launching.knobs import full, short
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import Machine
from normgen.launching.pick import bucket_of
from normgen.launching.table import key_of
from normgen.runtime.planning.choose import (
    Alternative,
    Candidate,
    alternatives,
    candidates,
    fastest,
    plan_launches,
)
from normgen.runtime.planning.registry import family_of
from tests.planning.judged import DEVICES

H200 = DEVICES["H200"]
Lines = Sequence[tuple[int, Mapping[str, Any]]]
Ship = Callable[..., None]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ship]:
    """Has normgen come with a table of one line, for the calls that a kernel is of."""

    def shipped(kernel: Candidate, lines: Lines, arch: str = "sm_90") -> None:
        key, _ = family_of(kernel.kernel).measured_as(kernel.kernel, kernel.call) or ("", 0)
        line = {"key": key, "about": kernel.kernel.name, "measured": lines}
        (tmp_path / f"{arch}.jsonl").write_text(json.dumps(line) + "\n")
        forget()

    def forget() -> None:
        table.read.cache_clear()

    monkeypatch.setattr(table, "SHIPPED", tmp_path)
    forget()
    yield shipped
    forget()


CALLS = {
    "rows": ("rmsnorm", (), "...", (("D", 2048),)),
    "columns": ("instancenorm_channels_last", (), "B", (("C", 96), ("...", 256))),
    "resident": ("groupnorm_channels_last", (("groups", 8),), "B", (("C", 16), ("...", 1024))),
}


def call(family: str, count: int) -> Drawn:
    norm, attrs, axis, sizes = CALLS[family]
    return Drawn("", norm, attrs, "forward", "bf16", ((axis, count), *sizes))


def alternative(drawn: Drawn, family: str, device: Machine = H200) -> Alternative:
    """The first strategy with a kernel of a family."""
    direction, binding = call_of(drawn)
    found = alternatives(direction.record, binding, device)
    return next(each for each in found if each.kernels[0].kernel.family == family)


def kernel(family: str, count: int, device: Machine = H200) -> Candidate:
    """The first kernel of it, with what it takes."""
    return alternative(call(family, count), family, device).kernels[0]


def count_of(family: str, count: int) -> int:
    """The rows, columns or segments of such a call, as tables count them."""
    found = kernel(family, count)
    return (family_of(found.kernel).measured_as(found.kernel, found.call) or ("", 0))[1]


def two_others(family: str) -> tuple[Any, Any]:
    """Schedules of that kernel that it takes for no count by itself."""
    drawn, taken = call(family, 64), {kernel(family, 4**power).knobs for power in range(9)}
    offers = candidates(alternative(drawn, family).strategy, call_of(drawn)[1], H200)[0]
    found = [each for each in offers if each.knobs not in taken]
    return found[0].schedule, found[-1].schedule


@pytest.mark.parametrize("family", CALLS)
def test_what_was_measured_is_taken(family: str, ship: Ship) -> None:
    usual, elsewhere = kernel(family, 64), kernel(family, 64, DEVICES["B200"])
    assert not usual.measured
    for other in two_others(family):
        ship(usual, [(count_of(family, 64), short(other))])
        assert kernel(family, 64).schedule == other != usual.schedule
        assert kernel(family, 64).measured
        assert kernel(family, 64, DEVICES["B200"]).schedule == elsewhere.schedule
        assert kernel(family, 64, replace(H200, arch="sm_90a")).schedule == other


@pytest.mark.parametrize("family", CALLS)
def test_what_was_measured_is_taken_in_its_bucket(family: str, ship: Ship) -> None:
    few, many = two_others(family)
    shipped, counts = kernel(family, 64), [1, 2, 5, 8, 16, 31, 32, 64, 127, 128, 2048]
    ship(shipped, [(count_of(family, 16), short(few)), (count_of(family, 64), short(many))])
    for count in counts:
        bucket = bucket_of(count_of(family, count))
        taken = {bucket_of(count_of(family, 16)): few, bucket_of(count_of(family, 64)): many}.get(bucket)
        found = kernel(family, count)
        assert found.measured == (taken is not None)
        assert found.schedule == taken or not found.measured
    assert len({kernel(family, 4**power).schedule for power in range(9)}) <= pick.MOST_SCHEDULES


@pytest.mark.parametrize("family", CALLS)
def test_in_a_bucket_the_schedule_of_the_nearest_count_is_taken(family: str, ship: Ship) -> None:
    few, many = two_others(family)
    ship(kernel(family, 64), [(count_of(family, 40), short(few)), (count_of(family, 80), short(many))])
    assert [kernel(family, count).schedule for count in (36, 40, 56)] == [few] * 3
    assert [kernel(family, count).schedule for count in (57, 80, 84)] == [many] * 3


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(
    "change", [{"vector": 3}, {"vector": "8"}, {"colour": 1}, {"team": 31}, {"form": "x"}]
)
def test_a_line_that_is_not_legal_is_passed_over(
    family: str, change: Mapping[str, object], ship: Ship
) -> None:
    usual = kernel(family, 64)
    ship(usual, [(64, {**short(two_others(family)[0]), **change})])
    assert kernel(family, 64).schedule == usual.schedule
    assert not kernel(family, 64).measured


def test_of_a_line_what_is_legal_is_taken(ship: Ship) -> None:
    other, _ = two_others("rows")
    ship(kernel("rows", 64), [(64, short(other)), (4096, {**short(other), "team": 1024})])
    assert kernel("rows", 64).schedule == other
    assert kernel("rows", 4096).schedule.team != 1024 and not kernel("rows", 4096).measured


def test_a_line_that_is_not_legal_prefers_no_strategy(ship: Ship) -> None:
    direction, binding = call_of(call("resident", 1))

    def planned() -> LaunchPlan:
        return plan_launches(direction.record, binding, H200)

    usual, every = planned(), alternatives(direction.record, binding, H200)
    other = next(each for each in every if len(each.kernels) == 1 and each.plan != usual)
    ship(other.kernels[0], [(1, {"colour": 1})])
    assert planned() == usual
    ship(other.kernels[0], [(1, short(other.kernels[0].schedule))])
    assert planned() == other.plan


# ------------------------------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class Shape:
    length: int
    rows: int = 0
    late: bool = False


def test_a_key_stays_when_a_shape_gets_another_field() -> None:
    more = make_dataclass("Shape", [("length", int), ("new", int, 4), ("late", bool, False)], frozen=True)
    assert key_of(Shape(64)) == key_of(more(64)) == key_of(Shape(64, late=False))
    assert key_of(Shape(64, late=True)) == key_of(more(64, late=True))
    assert key_of(more(64, new=5)) != key_of(more(64))


def test_a_key_tells_shapes_apart() -> None:
    other = make_dataclass("Other", [("length", int)], frozen=True)
    keys = [*map(key_of, (Shape(64), Shape(65), Shape(64, 1), Shape(64, 2), Shape(64, late=True), other(64)))]
    assert len({*keys}) == len(keys)
    assert key_of(Shape(64, 1), "rows") == key_of(Shape(64, 2), "rows") == key_of(Shape(64))


@pytest.mark.parametrize("family", CALLS)
def test_a_schedule_is_written_without_its_defaults(family: str) -> None:
    schedule = kernel(family, 64).schedule
    assert dict(full(type(schedule), short(schedule))) == dict(kernel(family, 64).knobs)
    usual = {each.name: each.default for each in fields(schedule)}
    assert all(value != usual[name] for name, value in short(schedule).items())


# ---------------------------------------------------------------------------------- what is not predicted


def test_nothing_is_predicted_of_calls_that_the_table_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it has more than one strategy of a pass, or few texts serve images of every size."""
    asked: list[int] = []
    usual = model.microseconds

    def counting(quantities: Mapping[str, Any]) -> Any:
        asked.append(1)
        return usual(quantities)

    for each in (model, pick):
        monkeypatch.setattr(each, "microseconds", counting)
    pick.predicted.cache_clear()
    known = 0
    for problem in problems(OPS, DTYPES, (), LAYOUTS):
        for direction in problem.directions:
            called, binding = problem.call(direction)
            asked.clear()
            plan = plan_launches(called.record, binding, H200)
            predicted = bool(asked)
            found = alternatives(called.record, binding, H200)
            if sum(each.measured for each in found) == 1:
                known += 1
                assert not predicted, (problem.text, direction)
            assert plan == fastest(called.record, binding, H200).plan, (problem.text, direction)
    assert known > 300
