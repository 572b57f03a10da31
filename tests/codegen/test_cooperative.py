"""Rows that many blocks share and exchange through memory. On the host blocks run one after the other, so
that the first of a row adds up the slices of all: helping is what runs there, and on a GPU the exception.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.rows.launch.choose import RowsSpace
from normgen.families.rows.launch.legal import fit
from normgen.families.rows.launch.shape import shape_of
from normgen.families.rows.launch.space import cooperative, cooperative_rows
from normgen.launching import pick
from normgen.launching.call import Call
from normgen.runtime.norm import Norm
from normgen.verify.draw import Sample
from tests.codegen.holding import case, fresh, subject
from tests.codegen.norms import H200, bound, package_of
from tests.verify.subjects import CHECKED, prove, same_bits

FAR = {"x": Sample("normal", 1e6, 1.0)}
EXTREMES = """norm extremes "Between the least and the greatest value of a row."
input x[B, D]
save top[B] = max[D](x)
save bottom[B] = min[D](x)
output y[B, D] = (x - bottom) / (top - bottom)
"""


def dealt_out(monkeypatch, held=1, places=1, threads=64):
    """Small blocks, of which several share a row however short it is."""
    usual = pick.predicted

    def predicted(space, known=()):
        shape = space.shape
        if not (isinstance(space, RowsSpace) and shape.cooperates and "cooperative" in space.forms):
            return usual(space, known)
        made = cooperative(shape, threads, held, places)
        return pick.Ranges((fit(made, shape, space.device),)) if made.members > 1 else usual(space, known)

    monkeypatch.setattr(pick, "predicted", predicted)


# Norm, groups, strategy, directions, lengths, element types, slices held in registers and in memory.
CALLS = [
    ("groupnorm", 2, "fused", ("forward",), {"B": 2, "C": 6, "rest": 1024}, "f32", 2, 0),
    ("groupnorm", 2, "fused", ("forward",), {"B": 3, "C": 4, "rest": 712}, "f32", 1, 3),  # across channels
    ("groupnorm", 2, "whole", ("backward",), {"B": 2, "C": 6, "rest": 1024}, "bf16", 1, 1),
    ("batchnorm", 0, "whole", ("forward", "backward"), {"B": 9, "C": 3, "rest": 400}, "f32", 1, 3),
    ("batchnorm", 0, "whole", ("forward", "backward"), {"B": 7, "C": 1, "rest": 1000}, "bf16", 2, 0),
    ("video", 0, "whole", ("backward",), {"N": 3, "T": 5, "C": 2, "H": 12, "W": 16}, "f32", 2, 0),
    ("pixels", 0, "whole", ("forward",), {"B": 600, "C": 2, "D": 8}, "bf16", 1, 1),
    ("add_rmsnorm", 0, "fused", ("forward",), {"rest": 2, "D": 4096}, "bf16, params f32", 1, 3),
]


@pytest.mark.parametrize(
    ("name", "groups", "strategy", "directions", "extents", "dtypes", "held", "places"), CALLS
)
def test_results(monkeypatch, name, groups, strategy, directions, extents, dtypes, held, places):
    dealt_out(monkeypatch, held, places)
    found = fresh(name, groups, strategy)
    executor = HostExecutor(checked=True)
    prove(found, case(found, dtypes, **extents), executor, directions=directions)
    ran = [entry for entry, _ in executor.history]
    for direction in directions:
        assert f"{name}_{direction}_cooperative" in ran


@pytest.mark.parametrize(
    ("name", "groups", "strategy", "shape", "order"),
    [("groupnorm", 2, "fused", (2, 6, 1024), (1, 0)), ("batchnorm", 0, "whole", (9, 2, 400), (2, 8))],
)
def test_results_over_operands_in_any_order(monkeypatch, name, groups, strategy, shape, order):
    """Slices that others have helped with are overwritten by their owners; the bits are the same."""
    dealt_out(monkeypatch)
    norm = fresh(name, groups, strategy).norm
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    apart = norm.on(CHECKED).forward(x=x)
    over = x.copy()
    made = norm.on(HostExecutor(True, *order)).forward(x=over, out={"y": over})
    assert all(same_bits(one, other) for one, other in zip(apart, made, strict=True))


def test_memory_of_calls_may_hold_anything(monkeypatch):
    """What tells blocks which parts are there is cleared by the call itself, each time: memory that is given
    may hold anything, and what a norm keeps is as good for the next call."""
    dealt_out(monkeypatch)
    norm = fresh("instancenorm", 0, "fused").norm.on(CHECKED)
    x = np.random.default_rng(6).standard_normal((2, 2, 2048)).astype(np.float32)
    needed = norm.workspace("forward", {"B": 2, "C": 2, "...": 2048}, device=CHECKED.device)
    words, published = "instancenorm_forward.words", "instancenorm_forward.published"
    assert set(needed) == {words, published}
    given = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    given[words].view(np.uint32)[:] = 0xFFFFFFFF
    usual = norm.forward(x=x)
    norm.forward(x=3 * x + 1)
    for memory in (given, given, None):
        again = norm.forward(x=x, workspace=memory)
        assert all(same_bits(one, other) for one, other in zip(usual, again, strict=True))


def test_infinities_and_nan_go_through(monkeypatch):
    """In the first slice, in the middle, in the last."""
    dealt_out(monkeypatch)
    norm = fresh("instancenorm", 0, "fused").norm.on(CHECKED)
    for first, last, place in ((np.inf, 1, 0), (-np.inf, 1, 700), (np.nan, 1, 1999), (np.inf, -np.inf, 0)):
        x = np.ones((3, 1, 2000), np.float32)
        x[1, 0, -1], x[1, 0, place] = last, first
        y, mu, rstd = norm.forward(x=x)
        assert np.array_equal(mu[1], [first + (last - 1)], equal_nan=True)
        assert np.isnan(rstd[1]).all() and np.isnan(y[1]).all()
        assert np.array_equal(y[[0, 2]], np.zeros((2, 1, 2000)))


def test_a_mean_that_is_large_beside_the_deviation(monkeypatch):
    """What is left of the mean when it is rounded to float32 is not lost."""
    dealt_out(monkeypatch)
    found = fresh("instancenorm", 0, "fused")
    prove(found, case(found, B=2, C=1, rest=4096), CHECKED, FAR, directions=("forward",))


def test_maxima_and_minima(monkeypatch):
    """Members that a lane does not have count for nothing, not for zero."""
    dealt_out(monkeypatch)
    norm = Norm(package_of(EXTREMES)).on(CHECKED)
    x = np.random.default_rng(5).uniform(1, 2, (3, 2000)).astype(np.float32)
    for signed in (x, -x):
        y, top, bottom = norm.forward(x=signed)
        assert np.array_equal(top, signed.max(1)) and np.array_equal(bottom, signed.min(1))
        assert np.allclose(y, (signed - bottom[:, None]) / (top - bottom)[:, None])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"multiprocessors": 31}, "of which 62 run together"),
        ({"shared_per_block": 99328}, "needs 98304 bytes of shared memory, and 97280 are available"),
    ],
)
def test_blocks_that_wait_leave_room_for_others_and_have_the_memory_that_they_take(changed, reason):
    record = subject("groupnorm", 32, "fused").norm.package.forward
    binding = bound(record, "f32", B=2, G=32, C=16, rest=65536)
    device = replace(H200, **changed)
    shape = shape_of(record.strategies[0].kernels[0], Call(binding, device, ""))
    offered = next(cooperative_rows(shape))
    outcome = fit(offered, shape, device)
    assert reason in str(outcome) if reason else outcome.members == 32
