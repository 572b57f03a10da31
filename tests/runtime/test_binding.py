"""Arrays to axes: lengths, strides, results, and every way in which a call's arrays can be wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import arrays
from normgen.arrays.views import View
from normgen.launching.launch import Binding
from normgen.package.direction import directions
from normgen.runtime.calls.binding import bind
from tests.runtime import stubs
from tests.runtime.calling import zeros

ROWS, BACK = directions(stubs.package())
GROUPS, _ = directions(stubs.package(stubs.GROUPS))
STATES, _ = directions(stubs.package(stubs.RUNNING))
# Groups of which the spec does not fix the number.
AXES = tuple(replace(axis, extent=None) for axis in stubs.package(stubs.GROUPS).axes)
FREE, _ = directions(replace(stubs.package(stubs.GROUPS), axes=AXES))
f16 = np.float16


def views(**given: Any) -> dict[str, View]:
    return {name: arrays.view(array) for name, array in given.items()}


def bound(direction: Any, out: dict[str, Any] | None = None, wanted: Any = None, **given: Any) -> Any:
    wanted = tuple(direction.results) if wanted is None else wanted
    return bind(direction, views(**given), views(**(out or {})), wanted)


def strides(binding: Binding, name: str) -> dict[str, int]:
    return dict(dict(binding.operands)[name].strides)


def test_lengths_of_axes_and_results() -> None:
    for direction, shape, lengths in (
        (ROWS, (8,), {"...": 1, "D": 8}),
        (ROWS, (2, 3, 8), {"...": 6, "D": 8}),
        (GROUPS, (5, 6), {"B": 5, "G": 2, "C": 3, "...": 1}),
        (GROUPS, (5, 6, 7, 2), {"B": 5, "G": 2, "C": 3, "...": 14}),
        (FREE, (5, 6), {"B": 5, "G": 3, "C": 2, "...": 1}),
    ):
        out = {"mu": zeros(5, 3)} if direction is FREE else {}
        assert dict(bound(direction, out, x=zeros(*shape)).binding.extents) == lengths
    x = zeros(2, 3, 8, dtype=f16)
    assert bound(ROWS, x=x).results == (("y", (2, 3, 8), "f16"), ("rstd", (2, 3), "f32"))
    assert bound(GROUPS, x=zeros(5, 6, 7)).results[1] == ("mu", (5, 2), "f32")


def test_a_gradient_has_the_dtype_of_its_tensor_and_else_of_out_or_the_first_cotangent() -> None:
    half, single = zeros(4, 8, dtype=f16), zeros(8)
    given = {"dy": half, "x": zeros(4, 8), "w": single, "rstd": zeros(4)}
    assert [dtype for _, _, dtype in bound(BACK, **given).results] == ["f32", "f32", "f16"]
    assert [dtype for _, _, dtype in bound(BACK, b=single, **given).results] == ["f32", "f32", "f32"]
    assert bound(BACK, out={"db": zeros(8)}, **given).results[2][2] == "f32"


def frozen(*shape: int) -> Any:
    array = zeros(*shape)
    array.flags.writeable = False
    return array


# A direction, what it is given, results that are given, and what is wrong.
REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (ROWS, {"x": zeros(4, 512), "w": zeros(256)}, {}, r"D is 512 in x\[\.\.\., D\] but 256 in w\[D\]"),
    (ROWS, {"x": zeros()}, {}, r"x\[\.\.\., D\] needs at least 1 dimension, but the array has shape \(\)"),
    (ROWS, {"x": zeros(4, 8), "w": zeros(1, 8)}, {}, r"w\[D\] needs 1 dimension, but .* shape \(1, 8\)"),
    (
        ROWS,
        {"x": zeros(3, 0)},
        {},
        r"D is 0, but the norm reduces over D, which must not be empty if \.\.\. = 3",
    ),
    (ROWS, {"x": zeros(0)}, {}, "D is 0, but the norm reduces over D"),
    (
        GROUPS,
        {"x": zeros(5, 0, 6)},
        {},
        r"C is 0, but the norm reduces over C, which must not be empty if B = 5 x G = 2 x",
    ),
    (GROUPS, {"x": zeros(5, 7)}, {}, r"\(G C\) is 7 in x\[B, \(G C\), \.\.\.\], not a multiple of G = 2"),
    (GROUPS, {"x": zeros(5, 6), "w": zeros(8)}, {}, r"\(G C\) is 6 in x\[.*\] but 8 in w\[\(G C\)\]"),
    (GROUPS, {"x": zeros(5, 6)}, {"mu": zeros(5, 3)}, r"G is 2 in the spec but 3 in mu\[B, G\]"),
    (FREE, {"x": zeros(5, 6)}, {}, "the length of G is unknown"),
    (BACK, {"dy": zeros(2, 6, 8), "x": zeros(3, 4, 8)}, {}, r"\.\.\. is \(2, 6\) in dy.* but \(3, 4\) in x"),
    (BACK, {"dy": zeros(4, 8), "rstd": zeros(3)}, {}, r"\.\.\. is \(4,\) in dy.* but \(3,\) in rstd"),
    (BACK, {"dy": zeros(4, 8), "b": zeros(9)}, {}, r"D is 8 in dy\[\.\.\., D\] but 9 in b\[D\]"),
    (BACK, {"dy": zeros(4, 8), "rstd": zeros(4, dtype=f16)}, {}, r"must be f32 .*astype\(numpy\.float32\)"),
    (ROWS, {"x": zeros(4, 8)}, {"y": zeros(2, 2, 8)}, r"\.\.\. is \(4,\) in x"),
    (ROWS, {"x": zeros(4, 8)}, {"y": zeros(4, 8, dtype=f16)}, r"out\['y'\] must be f32 but is f16"),
    (ROWS, {"x": zeros(4, 8)}, {"y": zeros(4, 16)[:, :8]}, r"out\['y'\] must be contiguous"),
    (ROWS, {"x": zeros(4, 8)}, {"y": np.broadcast_to(zeros(8), (4, 8))}, r"out\['y'\] must be contiguous"),
    (ROWS, {"x": zeros(4, 8)}, {"y": frozen(4, 8)}, r"out\['y'\] is read-only"),
    (STATES, {"x": zeros(4, 8), "r": frozen(8)}, {}, "r is read-only, but the call writes it"),
    (
        STATES,
        {"x": zeros(4, 8), "r": zeros(16)[::2]},
        {},
        "state r is updated in place, so it must be contig",
    ),
    (STATES, {"x": zeros(4, 8), "r": zeros(8, dtype=f16)}, {}, "must be f32"),
]


def test_arrays_that_do_not_fit() -> None:
    for direction, given, out, message in REFUSED:
        kind = TypeError if "must be f32" in message else ValueError
        with pytest.raises(kind, match=message):
            bound(direction, out, **given)


X = zeros(6, 16)
# Views, and the strides with which they are read as they are.
VIEWS: dict[str, tuple[Any, dict[str, int] | None]] = {
    "rows apart": (X[:, :8], {"...": 16, "D": 1}),
    "every other row": (X[::2], {"...": 32, "D": 1}),
    "one row of many": (X[:1], {"...": 16, "D": 1}),
    "one column": (zeros(6, 1), {"...": 1, "D": 1}),
    "two dimensions as one": (zeros(2, 3, 32)[..., :8], {"...": 32, "D": 1}),
    "a unit dimension": (zeros(2, 1, 8)[:, :, :4], {"...": 8, "D": 1}),
    "dimensions apart": (zeros(2, 3, 8)[:, :2], None),
    "transposed": (X.T, None),
    "columns apart": (X[:, ::2], None),
    "backwards rows": (X[::-1], None),
    "expanded rows": (np.broadcast_to(X[:1], (6, 16)), None),
}


@pytest.mark.parametrize("name", VIEWS)
def test_which_views_are_read_as_they_are(name: str) -> None:
    x, seen = VIEWS[name]
    result = bound(ROWS, x=x)
    assert result.copies == (() if seen is not None else ("x",))
    assert strides(result.binding, "x") == (seen or {"...": x.shape[-1], "D": 1})


def test_parts_of_a_composite_dimension_have_strides_of_their_own() -> None:
    result = bound(GROUPS, x=zeros(5, 6, 7))
    assert strides(result.binding, "x") == {"B": 42, "G": 21, "C": 7, "...": 1}
    sliced = bound(GROUPS, x=zeros(5, 12, 7)[:, :6])
    assert (sliced.copies, strides(sliced.binding, "x")["B"]) == ((), 84)
    assert bound(GROUPS, x=zeros(5, 6, 8)[:, :, :7]).copies == ("x",)


def test_alignment() -> None:
    whole = arrays.view(zeros(64))
    start = whole.pointer // 16 * 16
    for offset, alignment in ((0, 16), (4, 4), (8, 8), (12, 4)):
        x = whole._replace(pointer=start + offset, shape=(4, 8), strides=(8, 1))
        assert dict(bind(ROWS, {"x": x}, {}, ("y",)).binding.operands)["x"].alignment == alignment
    with pytest.raises(ValueError, match=r"x has .* which is not aligned to their size"):
        bind(ROWS, {"x": x._replace(pointer=x.pointer + 2)}, {}, ("y",))


def test_devices_that_differ() -> None:
    host, w = arrays.view(zeros(4, 8)), arrays.view(zeros(8))
    one, two = host._replace(device=("cuda", 0)), w._replace(device=("cuda", 1))
    for given, out, message in (
        ({"x": host, "w": two}, {}, "x is on the host but w is on cuda:1"),
        ({"x": one, "w": two}, {}, "x is on cuda:0 but w is on cuda:1"),
        ({"x": one}, {"y": host}, r"x is on cuda:0 but out\['y'\] is on the host"),
    ):
        with pytest.raises(ValueError, match=message):
            bind(ROWS, given, out, ())


def test_states_are_written_where_they_are() -> None:
    assert STATES.updated == {"r"} and STATES.required == {"x", "s"}
    made = bound(STATES, x=zeros(4, 8), r=zeros(8), s=frozen(8))
    assert "r" in dict(made.binding.operands)


def test_nothing_runs_where_nothing_is_wanted_or_every_cotangent_is_zero() -> None:
    given = {"x": zeros(4, 8), "rstd": zeros(4)}
    assert bound(BACK, **given).idle
    assert bound(BACK, wanted=(), dy=zeros(4, 8), **given).idle
    made = bound(BACK, dy=zeros(4, 8), b=zeros(8), **given)
    assert not made.idle and "b" not in dict(made.binding.operands), "which the backward does not read"


def test_equal_calls_have_equal_bindings() -> None:
    one, two = bound(ROWS, x=zeros(4, 8)), bound(ROWS, x=zeros(4, 8))
    assert one.binding == two.binding and hash(one.binding) == hash(two.binding)
    assert bound(ROWS, x=zeros(4, 8), w=zeros(8)).binding != one.binding
