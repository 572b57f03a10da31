"""What is taken of the schedules that a family offers: how many are looked at, what they have in common, and
by which rule one of them is preferred."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.calls import call_of
from bench.calls import draw as draw_of
from bench.drawn import Drawn, draw
from normgen.families.columns.launch import space as of_columns
from normgen.families.columns.launch.family import shape_of as shape_of_columns
from normgen.families.columns.launch.quantities import ColumnsSpace
from normgen.families.resident.launch.family import shape_of as shape_of_resident
from normgen.families.resident.launch.quantities import ResidentSpace
from normgen.families.resident.launch.segments import segment_of
from normgen.families.rows.launch import choose as rows
from normgen.families.rows.launch import space as of_rows
from normgen.families.tiles.launch import family as tiles
from normgen.families.windows.launch.quantities import WindowsSpace
from normgen.families.windows.launch.shape import shape_of as shape_of_windows
from normgen.launching import model, pick
from normgen.launching.call import Call
from normgen.launching.knobs import Knobs
from normgen.launching.machine import Machine
from normgen.launching.pick import (
    BUCKETS,
    MOST_SCHEDULES,
    Range,
    Ranges,
    Space,
    bucket_of,
    buckets_of,
    compared,
    least_regret,
    ranges_of,
)
from normgen.package.kernels import ColumnsRecord, Kernel, ResidentRecord, RowsRecord, WindowsRecord
from normgen.runtime.planning.choose import Running
from normgen.runtime.planning.registry import family_of
from tests.planning.judged import DEVICES

STARTS, NEIGHBOURS = 60, 20  # of a kernel, at most


class Offered(NamedTuple):
    """What a family looks at for a kernel, and how."""

    kernel: Kernel
    call: Call
    space: Space[Any]

    @property
    def starts(self) -> Sequence[Any]:
        fits = family_of(self.kernel).fits(self.kernel, self.call).ok
        return self.space.starts() if fits or not isinstance(self.kernel, ResidentRecord) else []

    def neighbours(self, start: Any) -> list[Any]:
        return list(self.space.near(start))

    def bits(self, schedule: Any) -> Knobs:
        found: Knobs = family_of(self.kernel).bits(schedule)
        return found

    def predict(self) -> Any:
        """With nothing remembered, and no table."""
        return pick.predicted.__wrapped__(self.space)


def of_kernel(kernel: Kernel, call: Call) -> Offered:
    match kernel:
        case RowsRecord():
            return Offered(kernel, call, rows.space_of(kernel, call))
        case ColumnsRecord():
            return Offered(kernel, call, ColumnsSpace(shape_of_columns(kernel, call)))
        case ResidentRecord():
            space = ResidentSpace(segment_of(kernel, call), shape_of_resident(kernel, call))
            return Offered(kernel, call, space)
        case WindowsRecord():
            return Offered(kernel, call, WindowsSpace(kernel, shape_of_windows(kernel, call)))
        case _:
            return Offered(kernel, call, tiles.space_of(kernel, call))


def kernels_of(call: Drawn, device: Machine) -> Iterator[tuple[Kernel, Call]]:
    """Every kernel of every strategy."""
    direction, binding = call_of(call)
    for strategy in direction.record.strategies:
        running = Running(strategy, binding, device)
        yield from ((kernel, running.call) for kernel in running.kernels)


def offered(seed: int, count: int) -> Iterator[Offered]:
    others = islice(draw_of(seed, ("windows", "tiles", "resident")), count // 2)
    for call in (*draw(seed, count), *others):
        for device in DEVICES.values():
            for kernel, there in kernels_of(call, device):
                yield of_kernel(kernel, there)


# ------------------------------------------------------------------------------------- what is looked at


def test_few_schedules_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(of_rows.MOST_STARTS, of_columns.MOST_STARTS) <= STARTS
    assert max(of_rows.MOST_NEIGHBOURS, of_columns.MOST_NEIGHBOURS) <= NEIGHBOURS
    most = 0
    for each in offered(11, 20):
        assert len(each.starts) <= STARTS
        most = max(most, len(each.starts))
        assert max((len(each.neighbours(s)) for s in each.starts[::4]), default=0) <= NEIGHBOURS
    assert most > STARTS // 2
    for family in (of_rows, of_columns):
        monkeypatch.setattr(family, "MOST_STARTS", 4)
        monkeypatch.setattr(family, "MOST_NEIGHBOURS", 3)
    few = [each for each in offered(11, 20) if isinstance(each.kernel, RowsRecord | ColumnsRecord)]
    assert {len(each.starts) for each in few} <= {*range(5)}
    assert {len(each.neighbours(s)) for each in few for s in each.starts} <= {1, 2, 3}


def test_a_prediction_evaluates_few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start for every bucket, and the neighbours of few of them for those of one range."""
    evaluated: list[int] = []
    usual = model.microseconds

    def counting(quantities: Mapping[str, Any]) -> Any:
        found = usual(quantities)
        evaluated.append(found.size)
        return found

    monkeypatch.setattr(pick, "microseconds", counting)
    for each in offered(12, 15):
        if starts := each.starts:
            evaluated.clear()
            each.predict()
            assert 0 < sum(evaluated) <= (len(starts) + NEIGHBOURS) * len(BUCKETS)


def test_what_is_looked_at_settles_to_itself_and_neighbours_have_the_same_bits() -> None:
    for place, each in enumerate(offered(13, 20)):
        settle = family_of(each.kernel).settle
        for s in each.starts:
            assert settle(each.kernel, each.call, s) == s
        for s in each.starts[place % 4 :: 4]:
            for near in each.neighbours(s):
                assert settle(each.kernel, each.call, near) == near
                assert each.bits(near) == each.bits(s)


# ------------------------------------------------------------------------------------- any number of rows

COUNTED = (1, 5, 132, 3000, 40000)  # rows, or images
BACKWARDS = ("rmsnorm", "layernorm", "softmax", "add_rmsnorm", "dyt")
NORMS = (*BACKWARDS, "rmsnorm_quantized_row")
IMAGES = (
    ("groupnorm", (("groups", 4),)),
    ("groupnorm_channels_last", (("groups", 4),)),
    ("instancenorm", ()),
    ("instancenorm_channels_last", ()),
    ("layernorm2d", ()),
    ("rmsnorm2d", ()),
    ("local_response_norm", (("n", 5),)),
    ("local_response_norm_channels_last", (("n", 5),)),
)
TYPES = ("bf16", "f32", "bf16 with f32 params")
WIDTHS = st.one_of(st.integers(1, 20_000), st.integers(1, 4000).map(lambda n: 8 * n), st.integers(1, 700_000))
DIRECTIONS = st.sampled_from(("forward", "backward"))
LESS = st.floats(0, 1)  # of the multiprocessors of a device
DRAWN = settings(deadline=None, max_examples=20, phases=(Phase.generate,))


@given(
    st.sampled_from(NORMS), DIRECTIONS, st.sampled_from(TYPES), WIDTHS, st.sampled_from(list(DEVICES)), LESS
)
@DRAWN
def test_any_number_of_rows_has_few_schedules_whatever_came_before(
    norm: str, direction: str, dtype: str, width: int, name: str, less: float
) -> None:
    direction = direction if norm in BACKWARDS else "forward"
    calls = [Drawn("", norm, (), direction, dtype, (("...", n), ("D", width))) for n in COUNTED]
    have_few_schedules(calls, DEVICES[name], less)


@given(
    st.sampled_from(IMAGES),
    DIRECTIONS,
    st.sampled_from(TYPES[:2]),
    st.integers(1, 2000),
    st.integers(1, 5000),
    st.sampled_from(list(DEVICES)),
    LESS,
)
@DRAWN
def test_any_number_of_images_has_few_schedules_whatever_came_before(
    norm: tuple[str, Any], direction: str, dtype: str, channels: int, pixels: int, name: str, less: float
) -> None:
    sizes = (("C", channels), ("...", pixels))
    calls = [Drawn("", *norm, direction, dtype, (("B", n), *sizes)) for n in COUNTED[:4]]
    have_few_schedules(calls, DEVICES[name], less)


def have_few_schedules(calls: Sequence[Drawn], device: Machine, less: float) -> None:
    """All kernels of these calls that count what differs between them, but windows and tiles, which have a
    schedule for each bucket; also with fewer multiprocessors."""
    fewer = replace(device, multiprocessors=max(1, round(less * device.multiprocessors)))
    for there in (device, fewer):
        taken = [taken_by(drawn, there) for drawn in calls]
        pick.predicted.cache_clear()
        assert [taken_by(drawn, there) for drawn in reversed(calls)] == taken[::-1]
        for name in {name for each in taken for name in each}:
            assert len({each[name] for each in taken if name in each}) <= MOST_SCHEDULES


def taken_by(drawn: Drawn, device: Machine) -> dict[str, Any]:
    """What the kernels of a call take by themselves."""
    found = {}
    for kernel, call in kernels_of(drawn, device):
        if drawn.sizes[0][0] in counted_of(kernel) and family_of(kernel).fits(kernel, call).ok:
            found[kernel.name] = next(family_of(kernel).space(kernel, call))
    return found


def counted_of(kernel: Kernel) -> set[str]:
    """The axes of what a kernel counts: rows, columns or segments."""
    match kernel:
        case RowsRecord():
            return {*kernel.kept}
        case ColumnsRecord():
            return {*kernel.kept} - {*kernel.reduced}
        case ResidentRecord():
            return {*kernel.segment}
        case _:
            return set()


# ------------------------------------------------------------------------------------ what is preferred


@pytest.mark.parametrize(
    ("microseconds", "taken"),
    [
        pytest.param([[1, 2], [3, 4]], [(0, 2, 0)], id="faster for any count"),
        pytest.param([[1, 2], [2, 1]], [(0, 1, 0), (1, 2, 1)], id="one for few and one for many"),
        pytest.param([[1, 2], [2, 1], [1, 2]], [(0, 1, 0), (1, 2, 1), (2, 3, 0)], id="one twice"),
        pytest.param([[1, 1.04], [1.04, 1]], [(0, 2, 0)], id="a second text is not worth it"),
        pytest.param([[1, 1.06], [1.06, 1]], [(0, 1, 0), (1, 2, 1)], id="a second text is worth it"),
        pytest.param(
            [[1, 1.06], [1.03, 1], [1.03, 1]], [(0, 1, 0), (1, 3, 1)], id="worth it in several together"
        ),
        pytest.param([[2, 1]], [(0, 1, 1)], id="one count"),
        pytest.param([[1, 1]], [(0, 1, 0)], id="the first of equals"),
        pytest.param(
            [[1, 9, 9, 9], [9, 1, 9, 9], [9, 9, 1, 9], [9, 9, 1.2, 1]],
            [(0, 1, 0), (1, 2, 1), (2, 4, 2)],
            id="no more than so many, of the least regret",
        ),
    ],
)
def test_there_are_further_schedules_where_fewer_would_be_slow(
    microseconds: list[list[float]], taken: list[tuple[int, int, int]]
) -> None:
    assert ranges_of(np.array(microseconds, float), 3) == [Range(*each) for each in taken]


def test_in_a_range_the_product_of_regrets_is_least() -> None:
    assert least_regret(np.array([[1, 1.1, 2], [8, 5, 4.5]])) == 1


def test_a_count_has_the_schedule_of_its_range() -> None:
    found = Ranges(("a", "b", "c"), (2, 32))
    assert [found.of(count) for count in (0, 1, 2, 31, 32, 1 << 40)] == list("aabbcc")
    assert Ranges(("a",)).of(7) == "a"


@pytest.mark.parametrize(("architecture", "most"), [(90.0, 1.2), (120.0, 2.0)])
def test_the_more_registers_are_to_lack_the_slower_a_schedule_counts(
    architecture: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every count; and more where no timings tell what that costs."""
    lacking = np.array([0.0, 4.0, 32.0, 0.0])
    monkeypatch.setattr(pick, "microseconds", lambda found: found["bound"])
    monkeypatch.setattr(pick, "lacking", lambda found, count: lacking[:count])
    times = np.array([[2.0, 1.99, 1.95, 3.0], [8.0, 4.0, 2.0, 9.0]])
    found = compared({"bound": times.ravel(), "architecture": np.array(architecture)}, 4)
    slower = found / times
    assert (slower[:, lacking == 0] == 1).all()
    assert (slower[:, 1] > 1).all() and (slower[:, 1] < slower[:, 2]).all() and (slower[:, 2] < most).all()
    assert found.argmin(1).tolist() == [0, 2], "unless it is much faster"


def test_no_call_of_a_count_is_too_large_to_be_met() -> None:
    assert buckets_of(1 << 10) == BUCKETS
    assert buckets_of(1 << 24) == (1, 4, 16, 64, 256, 1024)
    assert buckets_of(1 << 40) == (1,)


@pytest.mark.parametrize(
    ("count", "bucket"), [(0, 1), (1, 1), (2, 4), (7, 4), (8, 16), (1 << 30, BUCKETS[-1])]
)
def test_a_count_is_of_the_bucket_that_is_nearest(count: int, bucket: int) -> None:
    assert bucket_of(count) == bucket
