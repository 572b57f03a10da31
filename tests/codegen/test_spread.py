"""Rows that many blocks share and meet in memory. On the host blocks run one after the other, so that the
first of a row adds up the slices of all: helping is what runs there, and on a GPU the exception.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.devices.host.executor import HostExecutor
from normgen.errors import ToolchainMissing
from normgen.families.rows.launch import choose
from normgen.families.rows.launch.clusters import spread, spread_rows
from normgen.families.rows.launch.forms import fit
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import alternatives, choose_strategy, plan_launches
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound, package_of
from tests.verify.subjects import CHECKED, prove, same_bits

# Images that no cluster holds, and what norms make of them: sizes by name.
IMAGES = {
    "groups": ("groupnorm", 32, {"B": 2, "G": 32, "C": 16, "rest": 65536}),
    "few groups": ("groupnorm", 32, {"B": 1, "G": 32, "C": 4, "rest": 262144}),
    "channels": ("batchnorm", 0, {"B": 256, "C": 256, "rest": 3136}),
    "few channels": ("batchnorm", 0, {"B": 256, "C": 64, "rest": 12544}),
    "instances": ("instancenorm", 0, {"B": 8, "C": 16, "rest": 1048576}),
    "pixels": ("groupnorm_channels_last", 32, {"B": 2, "G": 32, "C": 16, "rest": 65536}),
    "tokens": ("rmsnorm", 0, {"rest": 64, "D": 262144}),
    "long tokens": ("layernorm", 0, {"rest": 8, "D": 1048576}),
}

EXTREMES = """norm extremes "Between the least and the greatest value of a row."
input x[B, D]
save top[B] = max[D](x)
save bottom[B] = min[D](x)
output y[B, D] = (x - bottom) / (top - bottom)
"""

# Bytes that some spill where the compiler takes more registers than for sm_90.
SPILLED = {
    ("few channels", "bf16", "forward", "sm_100"): 8,
    ("few channels", "bf16", "forward", "sm_80"): 4,
    ("few channels", "f32", "forward", "sm_80"): 8,
}


def dealt_out(monkeypatch, held=1, places=1, threads=64):
    """Small blocks, of which several share a row however short it is."""
    usual = choose.tiers

    def tiers(shape, device):
        made = spread(shape, threads, held, places)
        return [[made]] if shape.spreads and made.members > 1 else usual(shape, device)

    monkeypatch.setattr(choose, "tiers", tiers)


def fresh(name, groups, strategy):
    """A subject whose norm has planned nothing yet."""
    found = subject(name, groups, strategy)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy=strategy)))


def best(name, groups, dtype, direction, device=H200, **extents):
    """The launches of the strategy that is taken."""
    package = subject(name, groups).norm.package
    record = package.forward if direction == "forward" else package.backward
    found = alternatives(record, bound(record, dtype, **extents), device, package.header)
    return choose_strategy(found).plan.launches


@pytest.mark.parametrize(
    ("dtypes", "held", "places"),
    [("f32", 2, 0), ("f32", 1, 3), ("bf16", 1, 1), ("bf16, params f32", 1, 3)],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "groups", "strategy", "directions", "extents"),
    [
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
    ],
)
def test_results(monkeypatch, name, groups, strategy, directions, extents, held, places, dtypes):
    dealt_out(monkeypatch, held, places)
    found = fresh(name, groups, strategy)
    executor = HostExecutor(checked=True)
    prove(found, case(found, dtypes, **extents), executor, directions=directions)
    ran = [entry for entry, _ in executor.history]
    for direction in directions:
        assert f"{name}_{direction}_spread" in ran


@pytest.mark.parametrize(
    ("name", "groups", "strategy", "shape"),
    [("groupnorm", 2, "fused", (2, 6, 1024)), ("batchnorm", 0, "whole", (9, 2, 400))],
)
@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 3), (2, 8)], ids=str)
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
    words, met = "instancenorm_forward.words", "instancenorm_forward.met"
    assert set(needed) == {words, met}
    given = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    given[words].view(np.uint32)[:] = 0xFFFFFFFF
    usual = norm.forward(x=x)
    for _ in range(2):
        for one, other in zip(usual, norm.forward(x=x, workspace=given), strict=True):
            assert same_bits(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 700, 1999])
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


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 3)], ids=str)
def test_states_are_read_and_written_by_their_row_alone(monkeypatch, order):
    dealt_out(monkeypatch)
    norm = fresh("batchnorm", 0, "whole").norm
    x = np.random.default_rng(4).standard_normal((9, 2, 400)).astype(np.float32)
    made = []
    for executor in (CHECKED, HostExecutor(True, *order)):
        states = {"running_mean": np.ones(2, np.float32), "running_var": np.full(2, 3, np.float32)}
        norm.on(executor).forward(x=x, **states)
        made.append(states)
    for name, state in made[0].items():
        assert same_bits(state, made[1][name]) and not (state == (1 if name == "running_mean" else 3)).any()


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
    assert {entry for entry, _ in executor.history} == {"groupnorm_forward_spread"}


def test_only_one_of_the_gradients(monkeypatch):
    """Without sums that are wanted, nothing is exchanged, and no block waits."""
    dealt_out(monkeypatch)
    norm = fresh("groupnorm", 2, "whole").norm.on(CHECKED)
    random = np.random.default_rng(1)
    x, dy = random.standard_normal((2, 2, 4, 1024)).astype(np.float32)
    w = random.standard_normal(4).astype(np.float32)
    _, mu, rstd = norm.forward(x=x, w=w)
    every = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
    for name in ("x", "w", "b"):
        one = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd, wrt=(name,))
        assert same_bits(np.asarray(getattr(one, f"d{name}")), np.asarray(getattr(every, f"d{name}")))


# ------------------------------------------------------------------------------------------------ planning


@pytest.mark.parametrize(
    ("image", "direction", "dtype", "members", "threads", "blocks"),
    [
        ("groups", "forward", "f32", 32, 512, 2),
        ("groups", "backward", "f32", 64, 512, 2),
        ("groups", "backward", "bf16", 32, 512, 2),
        ("few groups", "forward", "f32", 32, 512, 2),
        ("channels", "forward", "bf16", 16, 256, 3),
        ("channels", "forward", "f32", 32, 256, 3),
        ("channels", "backward", "bf16", 22, 512, 2),
        ("channels", "backward", "f32", 49, 512, 2),
        ("few channels", "forward", "f32", 126, 256, 3),
        ("few channels", "backward", "bf16", 88, 512, 2),
        ("instances", "forward", "f32", 32, 512, 2),
    ],
)
def test_images_that_no_cluster_holds_are_read_once(image, direction, dtype, members, threads, blocks):
    name, groups, extents = IMAGES[image]
    launches = best(name, groups, dtype, direction, **extents)
    clear, launch = (x for x in launches if not x.entry.endswith("_finalise"))
    rows = extents["C"] if name == "batchnorm" else extents["B"] * extents.get("G", extents["C"])
    assert (clear.entry, launch.entry) == (f"{name}_{direction}_clear", f"{name}_{direction}_spread")
    assert (launch.grid[0], launch.block[0], launch.cluster) == (rows * members, threads, 1)
    assert f"MIN_BLOCKS = {blocks};" in launch.source


@pytest.mark.parametrize(
    ("name", "dtype", "length", "form"),
    [
        ("rmsnorm", "f32", 131072, "registers"),
        ("rmsnorm", "f32", 262144, "spread"),
        ("layernorm", "f32", 262144, "ring"),
        ("add_rmsnorm", "f32", 262144, "spread"),
        ("rmsnorm", "bf16", 262144, "skewed"),
        ("layernorm", "bf16", 262144, "skewed"),
        ("rmsnorm", "bf16", 1 << 22, "spread"),
        ("layernorm", "bf16", 1 << 22, "spread"),
    ],
)
def test_tokens_are_spread_where_clusters_do_worse_or_do_not_hold_them(name, dtype, length, form):
    launches = best(name, 0, dtype, "forward", rest=64, D=length)
    assert launches[-1].entry == f"{name}_forward_{form}"


@pytest.mark.parametrize(
    ("name", "dtype", "direction", "channels", "members"),
    [
        ("groupnorm", "bf16", "forward", 16, 16),
        ("groupnorm", "bf16", "forward", 5, 5),
        (
            "groupnorm",
            "bf16",
            "forward",
            4,
            0,
        ),  # few blocks: one image alone would leave most of the device idle
        ("groupnorm", "f32", "forward", 4, 8),
        ("groupnorm", "f32", "forward", 2, 0),
        ("groupnorm", "bf16", "backward", 4, 8),
        ("groupnorm", "bf16", "backward", 2, 0),
        ("instancenorm", "bf16", "forward", 4, 0),
        ("instancenorm", "bf16", "forward", 8, 8),
    ],
)
def test_images_that_a_cluster_would_hold(name, dtype, direction, channels, members):
    """Those of which a few blocks would be enough stay in clusters, however many there are."""
    for batch in (1, 64):
        extents = {"G": 32, "C": channels, "rest": 65536}
        if name == "instancenorm":
            extents = {"C": 32, "rest": channels * 65536}
        launches = best(name, 32 if name == "groupnorm" else 0, dtype, direction, B=batch, **extents)
        spread_out = [x for x in launches if x.entry.endswith("_spread")]
        assert [x.grid[0] for x in spread_out] == ([32 * batch * members] if members else [])
        assert members or max(x.cluster for x in launches) > 1


@pytest.mark.parametrize(("samples", "channels"), [(64, 256), (128, 64)])
def test_pieces_that_a_cluster_holds_stay_in_it(samples, channels):
    launches = best("batchnorm", 0, "bf16", "forward", B=samples, C=channels, rest=3136)
    assert [launch.cluster > 1 for launch in launches] == [True]


def test_rows_of_which_not_two_find_place_together_are_read_twice():
    """64 channels of 3211264 elements of 4 bytes, with their gradients: 196 blocks of 264."""
    launches = best("batchnorm", 0, "f32", "backward", B=256, C=64, rest=12544)
    assert not [x for x in launches if x.entry.endswith("_spread")]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("length", [1310723, 1310722], ids=["elements", "pairs"])
def test_rows_of_narrow_vectors_are_not_spread(direction, length):
    launches = best("instancenorm", 0, "bf16", direction, B=1, C=2, rest=length)
    assert not [x for x in launches if x.entry.endswith("_spread")]


def test_statistics_alone_are_not_spread():
    record = subject("instancenorm", 0).norm.package.forward
    binding = bound(record, "f32", B=1, C=2, rest=1310720)
    split, *_ = alternatives(record, binding, H200, only="split")
    assert not [x for x in split.plan.launches if x.entry.endswith("_spread")]


def test_an_older_device_spreads_rows_too():
    device = replace(H200, name="NVIDIA A100", arch="sm_80", multiprocessors=108, shared_per_block=166912)
    device = replace(device, shared_per_multiprocessor=167936)
    _, launch = best("groupnorm", 32, "f32", "forward", device, B=2, G=32, C=16, rest=65536)
    assert launch.entry == "groupnorm_forward_spread"
    assert "MIN_BLOCKS = 1;" in launch.source and launch.shared <= device.shared_per_block


@pytest.mark.parametrize(
    ("multiprocessors", "reason"),
    [(132, ""), (31, "of which 62 run together"), (16, "of which 32 run together")],
)
def test_blocks_that_wait_leave_room_for_others(multiprocessors, reason):
    record = subject("groupnorm", 32, "fused").norm.package.forward
    binding = bound(record, "f32", B=2, G=32, C=16, rest=65536)
    device = replace(H200, multiprocessors=multiprocessors)
    shape = shape_of(record.strategies[0].kernels[0], Call(binding, device, ""))
    (offered,) = spread_rows(shape)
    outcome = fit(offered, shape, device)
    assert reason in str(outcome) if reason else outcome.members == 32


def test_blocks_have_the_shared_memory_that_they_take():
    record = subject("groupnorm", 32, "fused").norm.package.forward
    binding = bound(record, "f32", B=2, G=32, C=16, rest=65536)
    device = replace(H200, shared_per_block=99328)
    shape = shape_of(record.strategies[0].kernels[0], Call(binding, device, ""))
    (offered,) = spread_rows(shape)
    assert str(fit(offered, shape, device)) == "needs 98304 bytes of shared memory, 97280 are there"


@pytest.mark.nvcc
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("image", IMAGES)
def test_nothing_spills(image, dtype, direction):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    name, groups, extents = IMAGES[image]
    for launch in best(name, groups, dtype, direction, **extents):
        if launch.entry.endswith("_spread"):
            for arch in ("sm_80", "sm_90", "sm_100"):
                assert compile_text(launch.source, arch)[1][0].spilled <= SPILLED.get(
                    (image, dtype, direction, arch), 0
                ), arch
