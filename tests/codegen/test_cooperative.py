"""Rows that many blocks share and exchange through memory. On the host blocks run one after the other, so
that the first of a row adds up the slices of all: helping is what runs there, and on a GPU the exception.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.rows.launch import choose
from normgen.families.rows.launch.clusters import cooperative, cooperative_rows
from normgen.families.rows.launch.forms import fit
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound, package_of
from tests.sampling import paired
from tests.verify.subjects import CHECKED, prove, same_bits

EXTREMES = """norm extremes "Between the least and the greatest value of a row."
input x[B, D]
save top[B] = max[D](x)
save bottom[B] = min[D](x)
output y[B, D] = (x - bottom) / (top - bottom)
"""


def dealt_out(monkeypatch, held=1, places=1, threads=64):
    """Small blocks, of which several share a row however short it is."""
    usual = choose.tiers

    def tiers(shape, device):
        made = cooperative(shape, threads, held, places)
        return [[made]] if shape.cooperates and made.members > 1 else usual(shape, device)

    monkeypatch.setattr(choose, "tiers", tiers)


def fresh(name, groups, strategy):
    """A subject whose norm has planned nothing yet."""
    found = subject(name, groups, strategy)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy=strategy)))


WAYS = [("f32", 2, 0), ("f32", 1, 3), ("bf16", 1, 1), ("bf16, params f32", 1, 3)]
CALLS = [
    ("groupnorm", 2, "fused", ("forward",), {"B": 2, "C": 6, "rest": 1024}),
    ("groupnorm", 2, "fused", ("forward",), {"B": 3, "C": 4, "rest": 712}),  # slices across channels
    ("groupnorm", 2, "whole", ("backward",), {"B": 2, "C": 6, "rest": 1024}),
    ("groupnorm_silu", 2, "fused", ("forward",), {"B": 2, "C": 6, "rest": 1024}),
    ("batchnorm", 0, "whole", ("forward", "backward"), {"B": 9, "C": 3, "rest": 400}),
    ("batchnorm", 0, "whole", ("forward", "backward"), {"B": 7, "C": 1, "rest": 1000}),
    ("instancenorm", 0, "fused", ("forward",), {"B": 2, "C": 3, "rest": 4096}),
    ("video", 0, "whole", ("forward", "backward"), {"N": 3, "T": 5, "C": 2, "H": 12, "W": 16}),
    ("nested", 0, "fused", ("forward",), {"B": 3, "C": 4, "D": 2, "rest": 512}),
    ("pixels", 0, "whole", ("forward",), {"B": 600, "C": 2, "D": 8}),
    ("rmsnorm", 0, "fused", ("forward",), {"rest": 3, "D": 4096}),
    ("layernorm", 0, "fused", ("forward",), {"rest": 2, "D": 5000}),
    ("add_rmsnorm", 0, "fused", ("forward",), {"rest": 2, "D": 4096}),
]


@pytest.mark.parametrize(("call", "way"), paired(CALLS, WAYS))
def test_results(monkeypatch, call, way):
    (name, groups, strategy, directions, extents), (dtypes, held, places) = call, way
    dealt_out(monkeypatch, held, places)
    found = fresh(name, groups, strategy)
    executor = HostExecutor(checked=True)
    prove(found, case(found, dtypes, **extents), executor, directions=directions)
    ran = [entry for entry, _ in executor.history]
    for direction in directions:
        assert f"{name}_{direction}_cooperative" in ran


@pytest.mark.parametrize(
    ("name", "groups", "strategy", "shape"),
    [("groupnorm", 2, "fused", (2, 6, 1024)), ("batchnorm", 0, "whole", (9, 2, 400))],
)
@pytest.mark.parametrize("order", [(1, 0), (2, 8)], ids=str)
def test_results_over_operands_in_any_order(monkeypatch, name, groups, strategy, shape, order):
    """Slices that others have helped with are overwritten by their owners; the bits are the same."""
    dealt_out(monkeypatch)
    norm = fresh(name, groups, strategy).norm
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    apart = norm.on(CHECKED).forward(x=x)
    over = x.copy()
    made = norm.on(HostExecutor(True, *order)).forward(x=over, out={"y": over})
    for one, other in zip(apart, made, strict=True):
        assert same_bits(np.asarray(one), np.asarray(other))


def test_scratch_memory_may_hold_anything(monkeypatch):
    """What tells blocks which parts are there is cleared by the call itself, each time."""
    dealt_out(monkeypatch)
    norm = fresh("instancenorm", 0, "fused").norm.on(CHECKED)
    x = np.random.default_rng(6).standard_normal((2, 2, 2048)).astype(np.float32)
    needed = norm.workspace("forward", {"B": 2, "C": 2, "...": 2048}, device=CHECKED.device)
    words, published = "instancenorm_forward.words", "instancenorm_forward.published"
    assert set(needed) == {words, published}
    given = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    given[words].view(np.uint32)[:] = 0xFFFFFFFF
    usual = norm.forward(x=x)
    for _ in range(2):
        for one, other in zip(usual, norm.forward(x=x, workspace=given), strict=True):
            assert same_bits(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize(("value", "place"), paired((np.inf, -np.inf, np.nan), (0, 700, 1999)))
def test_infinities_and_nan_go_through(monkeypatch, value, place):
    """In the first slice, in the middle, in the last."""
    dealt_out(monkeypatch)
    x = np.ones((3, 1, 2000), np.float32)
    x[1, 0, place] = value
    y, mu, rstd = fresh("instancenorm", 0, "fused").norm.on(CHECKED).forward(x=x)
    assert np.array_equal(np.asarray(mu)[1], [value], equal_nan=True)
    assert np.isnan(np.asarray(rstd)[1]).all() and np.isnan(np.asarray(y)[1]).all()
    assert np.array_equal(np.asarray(y)[[0, 2]], np.zeros((2, 1, 2000)))


def test_a_mean_that_is_large_beside_the_deviation(monkeypatch):
    """What is left of the mean when it is rounded to float32 is not lost."""
    dealt_out(monkeypatch)
    random = np.random.default_rng(3)
    x = (1e6 + random.standard_normal((2, 1, 4096))).astype(np.float32)
    y, mu, rstd = fresh("instancenorm", 0, "fused").norm.on(CHECKED).forward(x=x)
    exact = x.astype(np.float64)
    mean, inverse = exact.mean(2, keepdims=True), 1 / np.sqrt(exact.var(2, keepdims=True) + 1e-5)
    assert np.allclose(np.asarray(mu), mean[..., 0], rtol=1e-7)
    assert np.allclose(np.asarray(rstd), inverse[..., 0], rtol=1e-5)
    assert np.abs(np.asarray(y) - (exact - mean) * inverse).max() < 1e-4
    assert np.abs(np.asarray(mu) - mean[..., 0]).max() > 1e-3  # else nothing would have been left


def test_maxima_and_minima(monkeypatch):
    """Members that a lane does not have count for nothing, not for zero."""
    dealt_out(monkeypatch)
    norm = Norm(package_of(EXTREMES)).on(CHECKED)
    x = np.random.default_rng(5).uniform(1, 2, (3, 2000)).astype(np.float32)
    for sign in (1, -1):
        y, top, bottom = norm.forward(x=sign * x)
        assert np.array_equal(np.asarray(top), (sign * x).max(1))
        assert np.array_equal(np.asarray(bottom), (sign * x).min(1))
        assert np.allclose(
            np.asarray(y), (sign * x - np.asarray(bottom)[:, None]) / (x.max(1) - x.min(1))[:, None]
        )


def test_words_are_left_as_they_were(monkeypatch):
    """What tells blocks of one another is cleared once, and not by each call."""
    dealt_out(monkeypatch)
    executor = HostExecutor(checked=True)
    x = np.random.default_rng(5).standard_normal((2, 2, 4, 1024)).astype(np.float32)
    norm = fresh("groupnorm", 2, "fused").norm.on(executor)
    for given in (x, 3 * x + 1, x):
        alone = fresh("groupnorm", 2, "fused").norm.on(CHECKED).forward(x=given)
        made = norm.forward(x=given)
        assert all(same_bits(np.asarray(a), np.asarray(b)) for a, b in zip(made, alone, strict=True))
    assert {entry for entry, _ in executor.history} == {"groupnorm_forward_cooperative"}


# ------------------------------------------------------------------------------------------------ planning


@pytest.mark.parametrize(
    ("multiprocessors", "reason"),
    [(132, ""), (31, "of which 62 run together"), (16, "of which 32 run together")],
)
def test_blocks_that_wait_leave_room_for_others(multiprocessors, reason):
    record = subject("groupnorm", 32, "fused").norm.package.forward
    binding = bound(record, "f32", B=2, G=32, C=16, rest=65536)
    device = replace(H200, multiprocessors=multiprocessors)
    shape = shape_of(record.strategies[0].kernels[0], Call(binding, device, ""))
    (offered,) = cooperative_rows(shape)
    outcome = fit(offered, shape, device)
    assert reason in str(outcome) if reason else outcome.members == 32


def test_blocks_have_the_shared_memory_that_they_take():
    record = subject("groupnorm", 32, "fused").norm.package.forward
    binding = bound(record, "f32", B=2, G=32, C=16, rest=65536)
    device = replace(H200, shared_per_block=99328)
    shape = shape_of(record.strategies[0].kernels[0], Call(binding, device, ""))
    (offered,) = cooperative_rows(shape)
    assert str(fit(offered, shape, device)) == "needs 98304 bytes of shared memory, 97280 are there"
