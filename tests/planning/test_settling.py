"""Schedules from knobs: what the families say of those that they offer, and of any others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import normgen
from bench.drawn import draw
from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.columns.launch.schedule import ColumnSchedule
from normgen.families.rows.launch.schedule import RowSchedule
from normgen.launching.knobs import knobs_of, schedule_of
from normgen.launching.launch import Binding
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.launching.support import Support
from normgen.measure.norms import contiguous_binding, direction_of
from normgen.package.direction import directions
from normgen.package.records import PassRecord
from normgen.runtime.planning.choose import (
    Candidate,
    Choice,
    alternatives,
    candidates,
    chosen,
    fastest,
)
from normgen.runtime.planning.registry import family_of
from tests.channel_specs import channel_specs
from tests.planning.changing import changed, settled
from tests.planning.judged import DEVICES
from tests.strategies import well_typed_specs

ROWS = RowSchedule("registers", 8, 32, 4, 2, 8)
MACHINES = (*DEVICES.values(), HOST_MACHINE)
LENGTHS = st.sampled_from((1, 2, 3, 7, 8, 24, 33, 64, 100, 136, 516, 1000))


# ------------------------------------------------------------------------------------------------ knobs


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"colour": 1}, "colour is unknown"),
        ({"registers": 40}, "registers is unknown"),  # an estimate
        ({"team": None}, "team is missing"),
        ({"team": "32"}, "team cannot be '32'"),
        ({"team": True}, "team cannot be True"),
        ({"late": 1}, "late cannot be 1"),
        ({"items": -1}, "items cannot be -1"),
        ({"items": 1 << 63}, "items cannot be 9223372036854775808"),
        ({"vector": 3}, "vector cannot be 3"),
        ({"cluster": 3}, "cluster cannot be 3"),
        ({"stages": 9}, "stages cannot be 9"),
    ],
)
def test_knobs_that_make_no_schedule(changed: dict[str, Any], why: str) -> None:
    knobs = {name: value for name, value in (dict(knobs_of(ROWS)) | changed).items() if value is not None}
    assert schedule_of(RowSchedule, tuple(knobs.items())) == Support(False, why)


@pytest.mark.parametrize("schedule", [ROWS, ColumnSchedule("multipass", 4, 8, 100, lanes=32, blocks=4)])
def test_knobs_make_the_schedule_that_they_are_of(schedule: Any) -> None:
    assert schedule_of(schedule.__class__, knobs_of(schedule)) == schedule


# ------------------------------------------------------------------------------------------------ the space


def offers_of(record: PassRecord, binding: Binding, device: Machine) -> Iterator[Candidate]:
    """Every schedule of every kernel of every strategy that fits a call."""
    for alternative in alternatives(record, binding, device):
        for offers in candidates(alternative.strategy, binding, device):
            yield from offers


def settles(offer: Candidate) -> None:
    """A schedule of the space is legal, and has its estimates."""
    family = family_of(offer.kernel)
    asked = schedule_of(family.schedule, offer.knobs)
    assert not isinstance(asked, Support), asked
    assert family.settle(offer.kernel, offer.call, asked) == offer.schedule


@given(st.one_of(well_typed_specs(), channel_specs()), st.data())
@settings(
    deadline=None,
    max_examples=12,
    phases=(Phase.generate,),
    suppress_health_check=(HealthCheck.too_slow,),
)
def test_what_is_offered_for_drawn_specs_settles_to_itself(text: str, data: st.DataObject) -> None:
    offered_settle(package(load_definition(Source("drawn.norm", text), {})), data)


@pytest.mark.parametrize("name", ["local_response_norm", "local_response_norm_within", "rmsnorm_fp8"])
def test_what_other_families_offer_settles_to_itself(name: str) -> None:
    @given(st.data())
    @settings(deadline=None, max_examples=6, phases=(Phase.generate,))
    def check(data: st.DataObject) -> None:
        offered_settle(normgen.load(name).package, data)

    check()


def offered_settle(made: Any, data: st.DataObject) -> None:
    sizes = {axis.name: data.draw(LENGTHS) for axis in made.axes if axis.extent is None}
    device, dtype = data.draw(st.sampled_from(MACHINES)), data.draw(st.sampled_from(("bf16", "f32")))
    for direction in directions(made):
        if direction is not None:
            for offer in offers_of(direction.record, contiguous_binding(direction, sizes, dtype), device):
                settles(offer)


def test_what_is_offered_for_drawn_calls_settles_to_itself() -> None:
    for place, call in enumerate(draw(7, 15)):
        direction = direction_of(normgen.load(call.norm, **dict(call.attrs)).package, call.direction)
        binding = contiguous_binding(direction, dict(call.sizes), call.dtype)
        for offer in offers_of(direction.record, binding, MACHINES[place % len(MACHINES)]):
            settles(offer)


def test_any_knobs_are_refused_with_a_reason_or_have_launches() -> None:
    """Nothing that a file may hold makes a family fail."""
    for place, call in enumerate(draw(9, 10)):
        direction = direction_of(normgen.load(call.norm, **dict(call.attrs)).package, call.direction)
        binding = contiguous_binding(direction, dict(call.sizes), call.dtype)
        random, legal = Random(place), 0
        offers = list(offers_of(direction.record, binding, MACHINES[place % len(MACHINES)]))
        for _ in range(300):
            offer = random.choice(offers)
            found = settled(offer, changed(random, offer))
            if isinstance(found, Support):
                assert found.reason
            else:
                legal += 1
                assert replace(offer, schedule=found).lowered.launches
        assert legal > 10


@pytest.mark.parametrize("teams", [1, 8])
def test_one_row_comes_through_no_pipeline(teams: int) -> None:
    """There is no row to come, and what thread groups without a row would read may be where the results of
    another one go."""
    text = "norm one\ninput x[D]\noutput y[D] = x - mean[D](x)\n"
    made = package(load_definition(Source("one.norm", text), {}))
    binding = contiguous_binding(directions(made)[0], {"D": 1344}, "f32")
    offer = next(offers_of(made.forward, binding, DEVICES["H200"]))
    items = 1344 // (32 * offer.schedule.vector) + (1344 % (32 * offer.schedule.vector) > 0)
    knobs = {"form": "pipeline", "team": 32, "teams": teams, "items": items, "blocks": 1, "stages": 2}
    asked = replace(offer.schedule, **knobs, late=True, shared=128 * teams)
    found = family_of(offer.kernel).settle(offer.kernel, offer.call, asked)
    assert found == Support(False, "pipeline is not for such rows")


# ------------------------------------------------------------------------------------------------ no search


def test_a_choice_is_planned_without_a_walk_over_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its families' spaces are asked for a schedule, nor is any predicted."""
    device, asked = DEVICES["H200"], []
    for call in draw(8, 10):
        direction = direction_of(normgen.load(call.norm, **dict(call.attrs)).package, call.direction)
        binding = contiguous_binding(direction, dict(call.sizes), call.dtype)
        taken = fastest(direction.record, binding, device)
        offered = candidates(taken.strategy, binding, device)
        schedules = {offers[0].kernel.name: offers[-1].knobs for offers in offered}
        asked.append((direction.record, binding, Choice(taken.strategy.name, schedules)))
    families = {family_of(k) for record, _, _ in asked for s in record.strategies for k in s.kernels}
    for family in families:
        for name in ("space", "fits", "quantities"):
            monkeypatch.setattr(family.__class__, name, None)
    for record, binding, choice in asked:
        found = chosen(record, binding, device, choice)
        assert found is not None, choice
        assert {each.kernel.name: each.knobs for each in found.kernels} == choice.schedules
