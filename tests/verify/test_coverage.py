"""The cases of a check: widths with all numbers of rows, parts of a space apart, arrays as they lie."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from normgen import bundled
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.dtypes import DTYPES
from normgen.verify import spaces
from normgen.verify.cases import DTYPE_SETS
from normgen.verify.coverage import MOST, ROWS, WIDTHS, covering, in_reason, thorough
from normgen.verify.draw import attr_choices
from normgen.verify.memory import HOST, PITCHES, layout
from normgen.verify.places import CHECKED_ELEMENTS, Place
from normgen.verify.rotation import asked_for, in_groups, strategies_of
from tests.kinds import of_all
from tests.verify.subjects import bundled_source


@pytest.mark.parametrize("name", ["layernorm", "softmax", "add_rmsnorm"])
def test_the_covering_cases_cover(name: str) -> None:
    """Every width with every number of rows, in one layout and one set of element types each."""
    cases = covering(load_definition(bundled_source(name)))
    assert {(case.extents["..."], case.extents["D"]) for case in cases} >= set(product(ROWS, WIDTHS))
    assert {case.dtype_name for case in cases} >= {dtypes.name for dtypes in DTYPE_SETS}
    assert {case.offset for case in cases} == {0, 1, 2, 3}
    assert {case.pitch for case in cases} == set(PITCHES)
    assert {case.given_out for case in cases} == {False, True}
    assert {len(case.rest) for case in cases} >= {1, 2}
    if name == "layernorm":
        assert {case.absent for case in cases} >= {(), ("w",), ("b",)}
    for group in {case.group for case in cases}:
        kinds = {
            (c.dtype_name, c.offset, c.out_offset, c.pitch, c.absent, c.save, c.in_place)
            for c in cases
            if c.group == group
        }
        assert len(kinds) == 1, "what shares a group shares its kernels"


@pytest.mark.parametrize("name", bundled.names())
def test_calls_ask_for_all_that_a_call_can(name: str) -> None:
    definition = load_definition(bundled_source(name), attr_choices(parse(bundled_source(name)), {})[-1])
    cases, sources = covering(definition), set(definition.wrt)
    assert {c.in_place for c in cases} == {c.save for c in cases} == {c.accumulate for c in cases}
    assert {c.in_place for c in cases} == {False, True}
    places = {(bool(c.offset), bool(c.out_offset)) for c in cases if c.given_out and not c.in_place}
    assert places >= {(False, True), (True, False)}, "results lie at an alignment of their own"
    cotangents = {f"d{name}" for name in definition.of}
    left_out = [cotangents & set(case.absent) for case in cases]
    assert set().union(*left_out) == (cotangents if len(cotangents) > 1 else set())
    assert cotangents not in left_out, "not all of them: then nothing is launched"
    narrow = {case.wrt for case in cases if case.wrt is not None}
    assert all(set() < set(wrt) < sources for wrt in narrow)
    if len(sources) > 1:
        assert {len(wrt) for wrt in narrow} >= {1, len(sources) - 1}
    for group in {case.group for case in cases}:
        assert any(case.wrt is None for case in cases if case.group == group), "all gradients, in any group"


# A spec and attrs; what its statistics go over; which lengths its cases must have.
SPACES = {
    "batchnorm": ("training", {"B": {0, 1, 2, 3, 33, spaces.MANY}, "C": {1, 2, 3, 7, 8, 33, 100, 128}}),
    "groupnorm": ("groups", {"B": {0, 1, 2, 3, 33, spaces.MANY}, "C": {1, 2, 3, 10, 33, 128}}),
    "softmax2d": (None, {"B": {0, 1, 2, 3, 33}, "C": {1, 10, 33, 128}, "H": {1, 7, 32}, "W": {1, 7, 32}}),
    "local_response_norm": (None, {"B": {0, 1, 33}, "C": {1, 2, 3, 7, 10, 33, 100}}),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_cases_of_channels_cover(name: str) -> None:
    """Batch, channels and space vary apart; `...` is of no to three dimensions; all kinds of calls occur."""
    attr, lengths = SPACES[name]
    for attrs in attr_choices(parse(bundled_source(name)), {}):
        cases = covering(load_definition(bundled_source(name), attrs))
        assert attr is None or attr in attrs
        for axis, wanted in lengths.items():
            assert {case.extents[axis] for case in cases} >= wanted, axis
        assert {prod(case.rest) for case in cases} >= {1, 49, 196, 1024} or "H" in lengths
        assert {len(case.rest) for case in cases} >= {0, 1, 2, 3} or "H" in lengths
        assert {case.offset for case in cases} == {0, 1, 2, 3}
        assert {case.pitch for case in cases} == set(PITCHES)
        assert {case.save for case in cases} == {False, True}
        assert {case.accumulate for case in cases} == {case.given_out for case in cases} == {False, True}
        assert {case.dtype_name for case in cases} >= {dtypes.name for dtypes in DTYPE_SETS}
        assert len(cases) <= 80
        if name == "batchnorm":
            left_out = {name for case in cases for name in case.absent}
            assert left_out == {"w", "b"} | ({"running_mean", "running_var"} if attrs["training"] else set())


@pytest.mark.parametrize(
    ("name", "lengths"), [("add_layernorm", {"...": 3, "D": 40}), ("batchnorm", {"B": 3, "C": 8, "...": 5})]
)
def test_fixed_lengths_leave_every_kind_of_call(name: str, lengths: dict[str, int]) -> None:
    definition = load_definition(bundled_source(name))

    def kinds(sizes: dict[str, int]) -> set[object]:
        cases = covering(definition, sizes)
        return {(tuple(c.dtypes.items()), c.offset, c.pitch, c.absent) for c in cases}

    assert kinds(lengths) == kinds({})


@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_cases_of_every_spec_have_sizes_in_reason(name: str) -> None:
    for attrs in attr_choices(parse(bundled_source(name)), {}):
        definition = load_definition(bundled_source(name), attrs)
        cases = [*covering(definition), *thorough(definition)]
        assert in_reason(definition, cases) == cases
        for case in cases:
            for tensor in definition.program.operands:
                assert np.prod(case.memory_shape(tensor)) == np.prod([case.extents[a] for a in tensor.order])


# Sizes that the drawn lengths would multiply to more than a machine has room for; the elements of one sample.
SIZES = {
    "rmsnorm_fp8": ({"G": 16384}, 16384 * 16),
    "batchnorm": ({"...": 262_144}, 262_144),
    "groupnorm": ({"B": 64, "...": 65_536}, 64 * 65_536),
    "softmax2d": ({"H": 2048, "W": 2048}, 2048 * 2048),
    "layernorm": ({"D": 1_000_000}, 1_000_000),
    "softmax": ({"...": 100_000}, 100_000),
}


@pytest.mark.parametrize("name", SIZES)
def test_cases_of_great_sizes_stay_in_reason(name: str) -> None:
    """What the sizes make too large is left out, but for the smallest of all."""
    sizes, sample = SIZES[name]
    definition = load_definition(bundled_source(name), attr_choices(parse(bundled_source(name)), {})[0])
    cases = covering(definition, sizes)
    kept = in_reason(definition, cases)
    lengths = [case.elements(definition) for case in kept if all(case.extents.values())]
    assert len(kept) < len(cases) and set(map(id, kept)) < set(map(id, cases))
    assert min(lengths) == sample
    assert max(lengths) <= max(MOST, sample)
    for case in kept:
        assert all(case.extents[axis] == length for axis, length in sizes.items())


def test_large_cases_run_where_nothing_checks_and_all_of_them() -> None:
    checked, sampled = Place("checked", None, HOST, limit=CHECKED_ELEMENTS), Place("s", None, HOST, every=3)
    assert [checked.takes(group, 100) for group in range(4)] == [True] * 4
    assert [sampled.takes(group, 100) for group in range(4)] == [True, False, False, True]
    assert not checked.takes(0, 33 * 65537) and all(sampled.takes(group, 33 * 65537) for group in range(4))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "f64"])
@pytest.mark.parametrize(("shape", "offset"), [((), 0), ((3, 5), 1), ((0, 4), 2), ((2, 3, 2, 5), 0)])
@pytest.mark.parametrize("pitch", PITCHES)
def test_placed_arrays_hold_their_values(dtype: str, shape: tuple[int, ...], offset: int, pitch: str) -> None:
    values = np.arange(np.prod(shape)).reshape(shape) % 5
    array = HOST.place(values, dtype, shape, offset, pitch)
    assert array.dtype == DTYPES[dtype].numpy and array.shape == shape
    assert np.array_equal(array.astype(np.float64), values)
    blank = HOST.blank(dtype, shape, offset)
    assert np.all(np.isnan(blank.astype(np.float64)))


STRIDES = {
    "": (80, 20, 5, 1),
    "padded": (96, 24, 6, 1),
    "rounded": (256, 64, 16, 1),
    "odd rows": (128, 32, 5, 1),
    "odd outer": (257, 64, 16, 1),
}


@pytest.mark.parametrize("pitch", PITCHES)
def test_pitches(pitch: str) -> None:
    assert layout((3, 4, 4, 5), pitch=pitch).strides == STRIDES[pitch]
    assert layout((4, 4), pitch=pitch).strides[0] % 2 == ("odd" in pitch or pitch == "padded")
    assert layout((4,), pitch=pitch).strides == (1,) and layout((), pitch=pitch).strides == ()


@pytest.mark.parametrize("offset", [0, 3])
def test_an_empty_array_takes_no_room_however_long_its_rows_are(offset: int) -> None:
    assert layout((0, 256, 128, 262_144), offset).length == offset + 2


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["add_rmsnorm", "batchnorm"])
def test_every_strategy_accumulates_and_two_meet_all_that_is_asked_for(
    name: str, count: int, turns: int
) -> None:
    """In the cases of all attr values together."""
    groups = in_groups(covering(load_definition(bundled_source(name))))
    taken = strategies_of([case for cases in groups.values() for case in cases], count, turns)
    met: dict[int, set[str]] = {strategy: set() for strategy in range(count)}
    for group, cases in groups.items():
        met[taken[group]] |= asked_for(cases, turns)
    every = set.union(*met.values())
    assert {"accumulated", "in place", "left out", "some gradients", "without checks"} <= every
    for found in met.values():
        assert "accumulated" in found and (count > 2 or found == every), met
