"""The model of time: its trees, the quantities that they ask about, and how it is fitted."""

from __future__ import annotations

from itertools import islice
from math import isfinite
from pathlib import Path

import numpy as np
import pytest

from bench.calls import call_of
from bench.calls import draw as drawn_calls
from bench.drawn import Drawn
from bench.fit import Samples, fitted, samples
from bench.measure import EACH, offers
from bench.regret import predicted as expected
from bench.regret import regrets, report
from normgen.launching.machine import machine_named
from normgen.launching.model import SHIPPED, Trees, matrix, microseconds, predict, read, shipped, write
from normgen.runtime.planning.choose import Candidate, Running, predicted
from normgen.runtime.planning.registry import family_of
from tests.planning.judged import DEVICES

TIMINGS = sorted((Path(__file__).parents[2] / "bench" / "timings").glob("*.gz"))


def one_by_one(trees: Trees, row: np.ndarray) -> float:
    """What trees answer to one row, question after question."""
    total = trees.base
    for features, thresholds, values in zip(trees.features, trees.thresholds, trees.values, strict=True):
        leaf = 0
        for feature, threshold in zip(features, thresholds, strict=True):
            leaf = 2 * leaf + int(row[feature] > threshold)
        total += float(values[leaf])
    return total


def test_all_trees_answer_at_once_as_one_by_one() -> None:
    trees = shipped()
    rows = np.random.default_rng(2).normal(4, 4, (5, len(trees.names))).astype(np.float32)
    np.testing.assert_allclose(predict(trees, rows), [one_by_one(trees, row) for row in rows], atol=1e-4)


def test_what_is_shipped_is_small_and_finite() -> None:
    trees = shipped()
    assert SHIPPED.stat().st_size <= 60 * 1024
    assert np.isfinite(trees.thresholds).all() and np.isfinite(trees.values).all() and isfinite(trees.base)
    assert trees.features.max() < len(trees.names)


def test_trees_are_kept_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "trees.npz", shipped())
    again = read(tmp_path / "trees.npz")
    assert again.names == shipped().names and again.base == shipped().base
    assert all((one == other).all() for one, other in zip(again[2:], shipped()[2:], strict=True))


# ------------------------------------------------------------------------------------------------ quantities


def kernels(call: Drawn, device: str) -> list[list[Candidate]]:
    """The offers of every kernel of every strategy of a call."""
    direction, binding = call_of(call)
    found = []
    for strategy in direction.record.strategies:
        there = Running(strategy, binding, DEVICES[device])
        if not there.misfit:
            for kernel in there.kernels:
                every = islice(there.space(kernel), 40)
                found.append([Candidate(kernel, there.call, each) for each in every])
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_schedules_have_the_same_time_alone_and_among_others(device: str) -> None:
    drawn = [(call, every) for call in islice(drawn_calls(3), 10) for every in kernels(call, device)]
    assert len(drawn) >= 10
    for call, every in drawn:
        times = predicted(every)
        assert all(0 < us < 1e7 for us in times), call.text
        np.testing.assert_allclose([predicted([each])[0] for each in every[:6]], times[:6], rtol=1e-5)


def test_every_question_is_about_a_quantity_that_some_family_has() -> None:
    known: set[str] = set()
    for call in islice(drawn_calls(0), 20):
        for every in kernels(call, "H200"):
            each = every[0]
            found = family_of(each.kernel).quantities(each.kernel, each.call, [each.schedule])
            known |= set(found or ())
    assert {shipped().names[place] for place in np.unique(shipped().features)} <= known


def test_more_bytes_take_longer_on_a_slower_device() -> None:
    """Of the same schedule: by the bound that memory sets, whatever trees make of it."""
    call = Drawn("", "rmsnorm", (), "forward", "bf16", (("...", 16384), ("D", 8192)))
    direction, binding = call_of(call)
    fast, slow = (
        Running(direction.record.strategies[0], binding, machine_named(name)) for name in ("H200", "H100")
    )
    (kernel,) = fast.kernels
    schedule = next(fast.space(kernel))
    times = [predicted([Candidate(kernel, there.call, schedule)])[0] for there in (fast, slow)]
    assert times[0] < times[1]


# ------------------------------------------------------------------------------------------------ fitting


def made_up(count: int, seed: int) -> Samples:
    """Timings of kernels with eight schedules each, that depend on two of four quantities."""
    source = np.random.default_rng(seed)
    quantities = source.normal(0, 1, (8 * count, 4)).astype(np.float32)
    times = 3 + quantities[:, 0] + 0.5 * np.where(quantities[:, 1] > 0.2, quantities[:, 2], 0.3)
    call = {"kind": "any", "direction": "forward", "device": "a card", "family": "rows"}
    places = np.repeat(np.arange(count), 8)
    return Samples(("bound", "b", "c", "d"), quantities, times, places, places < 0, (call,) * count)


def test_a_fitted_model_finds_the_fastest_of_what_it_has_not_seen() -> None:
    trees = fitted(made_up(300, 1), trees=60)
    unseen = made_up(60, 2)
    found = unseen.bound + predict(trees, unseen.quantities)
    liked = [each.liked for each in regrets(unseen, found).values()]
    at_random = [each.liked for each in regrets(unseen, np.zeros(len(found))).values()]
    assert np.mean(np.log(liked)) < 0.1 * np.mean(np.log(at_random))
    assert "| all | 60 |" in report(unseen, regrets(unseen, found))


def test_a_fit_does_not_depend_on_when_it_is_made() -> None:
    one, other = (fitted(made_up(20, 1), trees=5) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one[2:], other[2:], strict=True))


@pytest.mark.thorough
def test_what_is_shipped_chooses_better_than_what_was_taken() -> None:
    """Among what was measured; of what it has not seen `bench.regret --folds` tells."""
    found = samples(TIMINGS[:1])
    every = regrets(found, expected(found, 0)).values()
    taken = [each.taken for each in every if each.taken == each.taken]
    assert np.mean(np.log([each.liked for each in every])) < 0.5 * np.mean(np.log(taken))


# ------------------------------------------------------------------------------------------------ measuring


def test_calls_and_schedules_are_drawn_by_their_seed() -> None:
    calls = list(islice(drawn_calls(5), 10))
    assert calls == list(islice(drawn_calls(5), 10)) != list(islice(drawn_calls(6), 10))
    for call in calls[:5]:
        one, other = (offers(call, DEVICES["H200"], 1) for _ in range(2))
        assert [each.knobs for _, each in one] == [each.knobs for _, each in other]


def test_of_each_kernel_some_schedules_are_tried_the_one_taken_first() -> None:
    tried: dict[tuple[int, str, str], list[Candidate]] = {}
    for place, call in enumerate(islice(drawn_calls(7), 6)):
        for alternative, each in offers(call, DEVICES["H200"], 1):
            tried.setdefault((place, alternative.strategy.name, each.kernel.name), []).append(each)
    assert len(tried) > 6
    for every in tried.values():
        assert len({each.knobs for each in every}) == len(every) <= EACH
        first = every[0]
        assert first.schedule == next(family_of(first.kernel).space(first.kernel, first.call))


def test_a_matrix_has_nothing_where_a_family_does_not() -> None:
    found = matrix({"bound": np.array([1.0, 2.0]), "a": np.array(3.0)}, ("a", "z", "bound"), 2)
    assert found.tolist() == [[3, 0, 1], [3, 0, 2]]


def test_a_time_is_a_bound_and_what_trees_make_of_it() -> None:
    names = shipped().names
    quantities = {name: np.zeros(1) for name in names}
    above = microseconds(quantities | {"bound": np.array([2.0])}) / microseconds(quantities)
    rows = (matrix(q, names, 1) for q in (quantities | {"bound": np.array([2.0])}, quantities))
    more, less = (predict(shipped(), each) for each in rows)
    np.testing.assert_allclose(above, np.exp(2.0 + more - less), rtol=1e-5)
