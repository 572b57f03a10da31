"""Calls that are drawn to be timed: of which classes, and which of their kernels."""

from __future__ import annotations

from argparse import ArgumentTypeError
from itertools import islice

import pytest

from bench.calls import CLASSES, SPECS, draw, kinds_of, package_of
from bench.measure import EACH, kernels, offers, told_apart
from bench.registers import own_launch
from normgen import bundled
from tests.planning.judged import DEVICES

FAMILIES = [kind for kind, each in CLASSES.items() if each.family]


def test_each_class_is_drawn_in_turn() -> None:
    kinds = list(CLASSES)
    assert [call.kind for call in islice(draw(1), 2 * len(kinds))] == 2 * kinds
    some = [call.kind for call in islice(draw(1, ("tiles", "few rows")), 4)]
    assert some == 2 * ["tiles", "few rows"]


def test_classes_are_named_by_an_argument() -> None:
    assert kinds_of("") == () and kinds_of("windows, few rows") == ("windows", "few rows")
    with pytest.raises(ArgumentTypeError, match=r"^'pixels' is none of multiples of 8, .*, resident$"):
        kinds_of("tiles,pixels")


def test_norms_are_bundled_or_specs_of_the_bench_each_of_which_is_drawn() -> None:
    norms = {norm for each in CLASSES.values() for norm, _ in each.norms}
    own = {path.stem for path in SPECS.glob("*.norm")}
    assert own < norms <= {*own, *bundled.names()}
    assert all(package_of(norm, ()).name == norm for norm in own)


@pytest.mark.parametrize("kind", FAMILIES)
def test_calls_drawn_for_a_family_have_kernels_of_it(kind: str) -> None:
    """But for few whose segments find no place. Nothing else of them is timed."""
    calls, found = list(islice(draw(11, (kind,)), 8)), 0
    for call in calls:
        tried = offers(call, DEVICES["H200"], 1)
        found += bool(tried)
        names = [(alternative.strategy.name, each.kernel.name) for alternative, each in tried]
        assert {each.kernel.family for _, each in tried} <= {CLASSES[kind].family}
        assert max(map(names.count, names), default=0) <= EACH
        assert all(each.lowered.launches for _, each in tried[:: EACH // 2])
    assert found >= 6


def test_of_schedules_that_the_model_cannot_tell_apart_one_is_timed() -> None:
    """Which tile comes first counts only after another kernel."""
    for call in islice(draw(12, ("tiles",)), 3):
        for _, every in kernels(call, DEVICES["H200"]):
            assert {each.schedule.backwards for each in every} == {True, False}
            some = told_apart(every)
            assert some[0] == every[0] and 2 * len(some) == len(every)
            assert all(each.schedule.backwards for each in some)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_report_of_a_kernel_is_not_of_what_clears_before_it(kind: str) -> None:
    for call in islice(draw(11, (kind,)), 3):
        for _, each in offers(call, DEVICES["H200"], 1)[:2]:
            own = own_launch(each)
            assert not own.entry.endswith(("_clear", "_second_stage")) and own in each.lowered.launches
