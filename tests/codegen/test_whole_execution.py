"""Rows that thread groups hold are right: while they sum parts of them, in pieces, in pieces that are added
up."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from normgen.arrays import view
from normgen.package.direction import directions
from normgen.runtime.calls.binding import bind
from normgen.runtime.planning.choose import alternatives, plan_launches
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import CHECKED, prove

LAST = "groupnorm_channels_last"
MIXED = "bf16, params f32"


class Call(NamedTuple):
    name: str
    groups: int
    direction: str
    extents: dict[str, int]
    dtypes: str


def sized(names: str, *lengths: int) -> dict[str, int]:
    return dict(zip(names.split(), lengths, strict=True))


# Vectors of one element and of several, runs of one lane and of all, thread groups within a warp, of
# several, and of several blocks; one sample, one place, pieces that are no whole vectors, more places than
# threads.
CALLS = [
    Call("groupnorm", 2, "backward", sized("B C rest", 2, 7, 49), "bf16"),
    Call("groupnorm_silu", 2, "backward", sized("B C rest", 3, 2, 64), MIXED),
    Call("adagn", 2, "backward", sized("B C rest", 5, 4, 196), "f32"),
    Call("groupnorm", 1, "backward", sized("B C rest", 1, 10, 1024), "f32"),  # a cluster
    Call("nested", 0, "backward", sized("B C D rest", 1, 4, 5, 21), "bf16"),
    # rows in pieces
    Call("batchnorm", 0, "both", sized("B C rest", 5, 3, 49), MIXED),
    Call("batchnorm", 0, "both", sized("B C rest", 16, 2, 1024), "f32"),  # a cluster
    Call("video", 0, "both", sized("N T C H W", 3, 1, 2, 5, 7), "bf16"),
    Call(LAST, 3, "forward", sized("B C rest", 3, 10, 70), "bf16"),
    # pieces that are added up besides
    Call(LAST, 3, "backward", sized("B C rest", 3, 10, 70), MIXED),
    Call(LAST, 3, "backward", sized("B C rest", 5, 1, 9), "f32"),
    Call(LAST, 1, "backward", sized("B C rest", 2, 20, 550), "f32"),  # a cluster
    Call("modulated", 0, "backward", sized("B C rest", 3, 40, 9), "bf16"),
    Call("bounded", 0, "backward", sized("B C rest", 1, 12, 70), "f32"),
    Call("squashed", 0, "forward", sized("B C rest", 5, 3, 33), MIXED),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.name}-{c.direction}-{[*c.extents.values()]}")
def test_rows_that_teams_hold(call: Call) -> None:
    found = subject(call.name, call.groups)
    both = ("forward", "backward") if call.direction == "both" else (call.direction,)
    fixed = {axis.name: axis.extent for axis in found.norm.package.axes if axis.extent is not None}
    for direction in both:
        record = getattr(found.norm.package, direction)
        binding = bound(record, call.dtypes[:4].strip(","), **fixed, **call.extents)
        launch = plan_launches(record, binding, H200, strategy="whole").launches[0]
        assert launch.entry == f"{call.name}_{direction}_registers"
    made = case(found, call.dtypes, **call.extents)
    prove(found, made, CHECKED, directions=both)
    if call.dtypes == "bf16":
        prove(found, replace(made, offset=1), CHECKED, directions=both)


# Where results go, and gradients that are wanted or added. (What is left out: `test_unwanted`.)
WAYS = (
    {"wrt": ("w",), "accumulate": True},
    {"in_place": True},
    {"given_out": True, "offset": 3, "pitch": "padded"},
)


@pytest.mark.parametrize(
    ("name", "extents"),
    [
        ("groupnorm", sized("B G C rest", 3, 2, 3, 128)),
        ("batchnorm", sized("B C rest", 5, 3, 96)),
        (LAST, sized("B G C rest", 3, 2, 12, 50)),
    ],
    ids=["parts", "pieces", "pieces added up"],
)
def test_calls_that_want_or_give_less_or_more(name: str, extents: dict[str, int]) -> None:
    found = subject(name, extents.get("G", 0))
    both = ("forward", "backward") if name == "batchnorm" else ("backward",)
    for way in WAYS:
        prove(found, replace(case(found, "bf16", **extents), **way), CHECKED, directions=both)


@pytest.mark.parametrize("name", ["groupnorm", LAST])
def test_what_is_not_finite_shows_in_its_group_and_others_have_the_bits_of_any_batch(name: str) -> None:
    norm = subject(name, 2).norm.on(CHECKED)
    x, dy = np.random.default_rng(7).standard_normal((2, 2, 4, 64)).astype(np.float32)
    if name == LAST:
        x, dy = (np.ascontiguousarray(np.moveaxis(a, 1, 2)) for a in (x, dy))
    groups = (lambda a: np.moveaxis(a, 2, 1)) if name == LAST else (lambda a: a)
    groups(x)[1, 3, 7] = np.nan
    w = np.ones(4, np.float32)
    save = norm.forward(x=x, w=w, b=w)
    made = norm.backward(dy=dy, x=x, w=w, mu=save.mu, rstd=save.rstd)
    dx = groups(np.asarray(made.dx))
    assert np.isnan(dx[1, 2:]).all() and np.isfinite(dx[0]).all() and np.isfinite(dx[1, :2]).all()
    assert np.isnan(made.dw[2:]).all() and np.isfinite(made.dw[:2]).all()
    alone = norm.backward(dy=dy[:1], x=x[:1], w=w, mu=save.mu[:1], rstd=save.rstd[:1]).dx
    assert np.array_equal(alone, made.dx[:1])


@pytest.mark.kernels
def test_groups_whose_channels_lie_apart_are_not_held_and_are_not_copied() -> None:
    norm = subject("groupnorm", 2).norm
    direction = directions(norm.package)[1]
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 3, 16, 8)).astype(np.float32)
    save = norm.forward(x=x[:, ::2].copy())
    given = {"x": x[:, ::2], "dy": dy[:, ::2], "mu": save.mu, "rstd": save.rstd}
    found = bind(direction, {name: view(array) for name, array in given.items()}, {}, ("dx", "dw", "db"))
    assert not found.copies
    ways = {a.strategy.name for a in alternatives(direction.record, found.binding, H200)}
    assert ways == {"fewest", "split"}
    packed = {name: np.ascontiguousarray(array) for name, array in given.items()}
    for one, other in zip(norm.backward(**given), norm.backward(**packed), strict=True):
        assert (one is None) == (other is None)
        assert one is None or np.allclose(one, other, atol=1e-5)
