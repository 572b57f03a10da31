"""Quantities of the families that name themselves, and who predicts the time of their kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from bench.calls import draw
from bench.drawn import Drawn, line_of
from bench.fit import fitted, samples
from bench.measure import kernels
from bench.regret import known
from normgen.launching import model
from normgen.launching.call import Call
from normgen.launching.family import LaunchFamily
from normgen.launching.knobs import short
from normgen.launching.model import matrix, predict, read, write
from normgen.measure.norms import contiguous_binding, direction_of
from normgen.package.kernels import Kernel
from normgen.runtime.planning.choose import Running, predicted
from normgen.runtime.planning.registry import family_of
from tests.codegen.norms import package_of
from tests.planning.judged import DEVICES

FAMILIES = ("windows", "tiles", "resident")
SOME = 60  # schedules of a kernel

each_family = pytest.mark.parametrize("family", FAMILIES)


class Planned(NamedTuple):
    """A kernel in a call, with some of its schedules."""

    kernel: Kernel
    call: Call
    schedules: list[Any]

    @property
    def family(self) -> LaunchFamily[Any, Any]:
        return family_of(self.kernel)

    def quantities(self) -> dict[str, np.ndarray]:
        found = self.family.quantities(self.kernel, self.call, self.schedules)
        assert found is not None
        return dict(found)


def planned(drawn: Drawn, device: str) -> Iterator[Planned]:
    """The kernels of a call that are of the family that it was drawn for."""
    for _, every in kernels(drawn, DEVICES[device]):
        some = every[:: max(1, len(every) // SOME)]
        yield Planned(every[0].kernel, every[0].call, [each.schedule for each in some])


def drawn_for(family: str, device: str, count: int) -> list[Planned]:
    """The kernels of so many calls."""
    return [each for drawn in islice(draw(3, (family,)), count) for each in planned(drawn, device)]


# ------------------------------------------------------------------------------------------------ numbers


@each_family
@pytest.mark.parametrize("device", DEVICES)
def test_every_schedule_has_the_same_finite_quantities(family: str, device: str) -> None:
    every = [(each, each.quantities()) for each in drawn_for(family, device, 4)]
    assert every
    for each, found in every:
        assert found.keys() == every[0][1].keys()
        assert found[f"is of {family}"] == 1
        for name, values in found.items():
            assert np.isfinite(values).all(), name
            assert np.shape(values) in ((), (len(each.schedules),)), name


@each_family
def test_quantities_do_not_depend_on_what_else_is_asked_for(family: str) -> None:
    for each in drawn_for(family, "H200", 3):
        found = each.quantities()
        for place, schedule in list(enumerate(each.schedules))[:5]:
            alone = each._replace(schedules=[schedule]).quantities()
            for name, values in found.items():
                own = values if np.ndim(values) == 0 else values[place]
                np.testing.assert_allclose(alone[name], own, err_msg=name)


OUTER = """norm outer
input a[M]
input b[N]
output y[M, N] = a * b
output z[N, M] = a * b
grad y wrt a, b
"""


def test_operands_without_every_element_come_in_time() -> None:
    direction = direction_of(package_of(OUTER), "forward")
    (strategy,) = direction.record.strategies
    there = Running(strategy, contiguous_binding(direction, {"M": 300, "N": 200}, "f32"), DEVICES["H200"])
    (kernel,) = there.kernels
    each = Planned(kernel, there.call, list(there.space(kernel)))
    assert kernel.family == "tiles" and all(np.isfinite(found).all() for found in each.quantities().values())


BATCHES = (
    ("windows", "local_response_norm", (("n", 5),), "backward", (("B", 40), ("C", 64), ("...", 784))),
    ("tiles", "add_channels_last", (), "forward", (("B", 40), ("C", 264), ("...", 1000))),
    ("resident", "groupnorm_channels_last", (("groups", 32),), "backward",
     (("B", 24), ("C", 20), ("...", 1024))),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "norm", "attrs", "direction", "sizes"), BATCHES)
def test_a_batch_of_twice_the_size_moves_twice_the_bytes_in_twice_the_waves(
    kind: str, norm: str, attrs: Any, direction: str, sizes: tuple[tuple[str, int], ...]
) -> None:
    drawn = Drawn(kind, norm, attrs, direction, "bf16", sizes)
    (axis, batch), *rest = sizes
    (one,) = planned(drawn, "H200")
    (two,) = planned(replace(drawn, sizes=((axis, 2 * batch), *rest)), "H200")
    few, many = one.quantities(), two._replace(schedules=one.schedules).quantities()
    np.testing.assert_allclose(many["bytes"] - few["bytes"], 1, atol=0.01)
    np.testing.assert_allclose(many["waves"] - few["waves"], 1, atol=0.05)
    assert (many["bound"] > few["bound"]).all() and (many["active"] >= few["active"]).all()


def schedules_of(place: int) -> Planned:
    kind, norm, attrs, direction, sizes = BATCHES[place]
    (found,) = planned(Drawn(kind, norm, attrs, direction, "bf16", sizes), "H200")
    return found


def test_ranges_beside_one_another_read_more() -> None:
    each = schedules_of(0)
    walk = next(s for s in each.schedules if s.form == "march")
    ways = [replace(walk, ranges=n, length=-(-walk.steps // n)) for n in (1, 2, 4, 8)]
    found = each._replace(schedules=ways).quantities()
    assert (np.diff(found["bytes"]) > 0).all() and (np.diff(found["waves"]) > 0.5).all()


def test_tiles_that_reach_beyond_a_matrix_have_idle_places() -> None:
    each = schedules_of(1)
    tall = [replace(each.schedules[0], rows=rows) for rows in (8, 16, 128)]  # of 264 rows
    found = each._replace(schedules=tall).quantities()
    assert found["idle down"].tolist() == pytest.approx([0, log2(272 / 264), log2(384 / 264)])


def test_rows_that_are_read_twice_move_more() -> None:
    each = schedules_of(2)
    kept = each.schedules[0]
    ways = [replace(kept, again=again) for again in (0, kept.depth // 2)]
    found = each._replace(schedules=ways).quantities()
    assert found["bytes"][1] > found["bytes"][0] + 0.2 and found["held"][1] < found["held"][0]


# ------------------------------------------------------------------------------------------------ switch


@pytest.fixture(scope="module")
def timings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of tiles, larger ones of which take longer, and of one resident kernel."""
    path = tmp_path_factory.mktemp("timings") / "some.jsonl"
    with path.open("w") as file:
        for drawn in (*islice(draw(4, ("tiles",)), 3), *islice(draw(2, ("resident",)), 1)):
            for alternative, every in kernels(drawn, DEVICES["H200"]):
                for each in every[:12]:
                    tile = short(each.schedule).get("rows", 1) * short(each.schedule).get("columns", 1)
                    line = {
                        **line_of(drawn), "device": "NVIDIA H200", "strategy": alternative.strategy.name,
                        "kernel": each.kernel.name, "knobs": short(each.schedule), "usual": each is every[0],
                        "us": 10.0 + tile,
                    }  # fmt: skip
                    file.write(json.dumps(line) + "\n")
    return path


def test_a_family_goes_by_its_bound_until_the_model_was_fitted_to_it(
    timings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = {
        family: next(every for _, every in kernels(next(draw(5, (family,))), DEVICES["H200"]))[:8]
        for family in FAMILIES
    }

    def by_bound(family: str) -> bool:
        (kernel, call), each = (offers[family][0].kernel, offers[family][0].call), offers[family]
        bound = np.exp(family_of(kernel).quantities(kernel, call, [e.schedule for e in each])["bound"])
        return predicted(each) == bound.tolist()

    assert not any(map(by_bound, FAMILIES))
    path = tmp_path / "trees.npz"
    write(path, fitted(samples([timings], fewest=2), trees=8))
    monkeypatch.setattr(model, "SHIPPED", path)
    assert not by_bound("tiles") and by_bound("windows") and by_bound("resident")
    each = offers["tiles"]
    found = family_of(each[0].kernel).quantities(each[0].kernel, each[0].call, [e.schedule for e in each])
    trees = read(path)
    own = np.exp(found["bound"] + predict(trees, matrix(found, trees.names, len(each))))
    np.testing.assert_allclose(predicted(each), own)
    np.testing.assert_allclose([replace(e).microseconds for e in each], own, rtol=1e-5)


def test_families_with_few_timings_are_left_out(timings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some, every = samples([timings], fewest=2), samples([timings])
    assert "left out: 1 kernels of resident" in capsys.readouterr().out
    assert {call["family"] for call in some.calls} == {"tiles"}
    assert {call["family"] for call in every.calls} == {"tiles", "resident"}
    assert "is of resident" not in some.names
    assert known(every, fitted(some, trees=2)) == [call["family"] == "tiles" for call in every.calls]
