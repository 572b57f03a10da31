"""Blocks that keep what they read of a segment while they meet are right. On the host blocks run one after
the other, so that the first of a segment adds up the slices of all: helping is what runs there, and on a GPU
the exception.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.package import package
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.resident.launch import residence
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.draw import Sample
from tests.codegen.holding import case
from tests.codegen.norms import bound
from tests.codegen.residing import LENGTHS, LESS, TEXTS, fresh, launched, ruled, spec
from tests.verify.subjects import CHECKED, prove, same_bits


@pytest.fixture
def dealt_out(monkeypatch):
    """Small blocks, of which several share a segment however short it is; some of their rows are in
    registers, and some in shared memory."""

    def small(threads: int = 64, members: int = 4, depth: int = 96, warps: int = 28) -> None:
        monkeypatch.setattr(residence, "LEAST_SLICE", 256)
        ruled(monkeypatch, "MOMENTS", ways=((threads, 32 * warps // threads),))
        monkeypatch.setattr(residence, "MEMBERS", members)
        monkeypatch.setattr(residence, "DEPTH_BYTES", depth)

    small()
    return small


# ---------------------------------------------------------------------------------------------- what it gives

# (samples, groups, channels of one, places): groups of one channel, of parts of a vector, of several vectors,
# of no whole number of either; more groups than threads; slices that are short at the end; narrow vectors.
SHAPES = [
    (2, 32, 10, 70), (1, 32, 1, 33), (3, 4, 16, 50), (1, 5, 3, 90), (1, 3, 5, 130), (2, 16, 2, 65),
    (1, 8, 12, 40), (1, 1, 24, 77), (2, 7, 9, 41), (1, 32, 40, 45), (1, 100, 4, 19), (5, 2, 4, 130),
    (1, 11, 17, 31), (1, 130, 1, 9), (2, 32, 10, 64),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16", "f16", "bf16, params f32"])
def test_groups_of_channels_that_come_last(dealt_out, shape, dtypes):
    samples, groups, channels, places = shape
    if groups * channels > 1000:  # a thread has one vector
        dealt_out(threads=320, warps=20)
    found, executor = fresh("groupnorm_channels_last", groups), HostExecutor(checked=True)
    prove(found, case(found, dtypes, B=samples, C=channels, rest=places), executor, directions=("forward",))
    assert {entry for entry, _ in executor.history} == {"groupnorm_channels_last_forward_resident"}


@pytest.mark.parametrize("dtypes", ["f32", "bf16", "bf16, params f32"])
@pytest.mark.parametrize("shape", [(2, 4, 10, 70), (1, 3, 5, 130)], ids=str)
def test_an_activation_in_the_same_kernel(dealt_out, shape, dtypes):
    samples, groups, channels, places = shape
    found = fresh("groupnorm_silu_channels_last", groups)
    prove(found, case(found, dtypes, B=samples, C=channels, rest=places), CHECKED, directions=("forward",))


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize("name", TEXTS)
def test_other_norms(dealt_out, name, dtypes):
    found = fresh(name)
    axes = {a.name for a in found.norm.package.axes}
    lengths = {n: k for n, k in LENGTHS.items() if n in axes or (n == "rest" and "..." in axes)}
    prove(found, case(found, dtypes, **lengths), CHECKED, directions=("forward",))


@pytest.mark.parametrize("less", LESS, ids=str)
def test_less_or_more(dealt_out, less):
    for dtypes in ("f32", "bf16"):
        found = fresh("groupnorm_channels_last", 4)
        made = replace(case(found, dtypes, B=2, C=6, rest=90), **less)
        prove(found, made, CHECKED, directions=("forward",))


# Bytes of a thread, warps of a multiprocessor, and rows of a team in all and in shared memory.
HELD = [(16, 28, 1, 0), (96, 16, 6, 0), (96, 28, 6, 1), (96, 32, 6, 3)]


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize(("depth", "warps", "rows", "places"), HELD)
def test_rows_in_registers_and_in_shared_memory(dealt_out, threads, depth, warps, rows, places):
    """One row a thread in as many blocks as that takes, and all rows of a segment in two."""
    dealt_out(threads, 2, depth, warps)
    found = fresh("groupnorm_channels_last", 4)
    prove(found, case(found, "f32", B=2, C=8, rest=300), CHECKED, directions=("forward",))
    text = launched(found, "f32", B=2, G=4, C=8, rest=300).source
    assert f"DEPTH = {rows};" in text and f"SLOTS = {places};" in text


def test_more_than_a_word_of_members(dealt_out):
    dealt_out(32, 100, 16)
    found = fresh("groupnorm_channels_last", 2)
    prove(found, case(found, "f32", B=2, C=8, rest=700), CHECKED, directions=("forward",))
    package = found.norm.package
    binding = bound(package.forward, "f32", B=2, G=2, C=8, rest=700)
    assert (
        plan_launches(package.forward, binding, HOST_MACHINE, package.header, "resident").launches[1].grid[0]
        > 160
    )


def test_several_vectors_of_a_row_in_a_thread(dealt_out):
    dealt_out(32, 3, 128)
    found = fresh("groupnorm_channels_last", 5)
    for channels in (36, 40):
        prove(found, case(found, "f32", B=2, C=channels, rest=21), CHECKED, directions=("forward",))


@pytest.mark.parametrize(
    "shape", [(2, 32, 10, 300), (1, 3, 5, 600), (1, 4, 16, 200), (1, 16, 1, 300)], ids=str
)
def test_a_mean_that_is_large_beside_the_deviation(dealt_out, shape):
    samples, groups, channels, places = shape
    found = fresh("groupnorm_channels_last", groups)
    made = case(found, "f32", B=samples, C=channels, rest=places)
    prove(found, made, CHECKED, {"x": Sample("normal", 1e6, 1.0)}, directions=("forward",))


@pytest.mark.parametrize("channels", [1, 3, 8, 10])
@pytest.mark.parametrize("within", [0.0, 1e4], ids=["alike", "apart"])
def test_groups_that_are_far_from_their_neighbours(dealt_out, channels, within):
    """A vector has channels of several groups, each with a mean of its own; so may the channels of one. And
    the first rows of some threads are unlike all others."""
    random, groups = np.random.default_rng(4), 5
    means = 1e6 * random.permutation(groups)[:, None] + within * random.permutation(channels)
    x = (means + random.standard_normal((2, 60, groups, channels))).astype(np.float32)
    x[:, :4] += 100
    made = (
        fresh("groupnorm_channels_last", groups).norm.on(CHECKED).forward(x=x.reshape(2, 60, -1), save=True)
    )
    exact = x.astype(np.float64)
    assert np.allclose(made.mu, exact.mean((1, 3)), rtol=1.2e-7, atol=1e-6)
    assert np.allclose(made.rstd, (exact.var((1, 3)) + 1e-5) ** -0.5, rtol=2e-6, atol=0)


# What is among the values of a group, and the mean that the formulas give.
SPECIAL = [
    ([np.inf], np.inf),
    ([np.inf, np.inf], np.inf),
    ([np.inf, -np.inf], np.nan),
    ([np.nan, np.inf], np.nan),
]


@pytest.mark.parametrize("first", [0, 17, 36], ids=["in the first slice", "within", "in the last"])
@pytest.mark.parametrize("channels", [3, 8, 10])
def test_infinity_and_nan_stay_in_their_group(dealt_out, channels, first):
    groups = len(SPECIAL) + 1
    x = np.random.default_rng(3).standard_normal((1, 40, groups * channels)).astype(np.float32)
    exact = x.reshape(40, groups, channels).astype(np.float64)
    for group, (values, _) in enumerate(SPECIAL):
        for k, value in enumerate(values):
            x[0, first + k, group * channels + k] = value
    made = fresh("groupnorm_channels_last", groups).norm.on(CHECKED).forward(x=x, save=True)
    assert np.array_equal(made.mu[0, :-1], [mean for _, mean in SPECIAL], equal_nan=True)
    assert np.isnan(made.rstd[0, :-1]).all()
    assert np.allclose(made.mu[0, -1], exact[:, -1].mean(), atol=1e-6)
    assert np.allclose(made.rstd[0, -1], (exact[:, -1].var() + 1e-5) ** -0.5, rtol=1e-5)
    assert np.isfinite(made.y[0, :, -channels:]).all()


# --------------------------------------------------------------------------------- blocks that meet, and bits


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 1), (2, 2), (2, 7)], ids=str)
def test_the_same_bits_in_any_order_of_blocks_and_threads_and_in_place(dealt_out, order):
    """Slices that others have helped with are overwritten by their owners."""
    x = drawn(2, 50, 130)
    norm = fresh("groupnorm_channels_last", 13).norm
    apart = norm.on(CHECKED).forward(x=x, save=True)
    over = x.copy()
    made = norm.on(HostExecutor(True, *order)).forward(x=over, out={"y": over}, save=True)
    for one, other in zip(apart, made, strict=True):
        assert same_bits(np.asarray(one), np.asarray(other))


def test_bits_do_not_depend_on_the_batch(dealt_out):
    x = drawn(5, 90, 40)
    norm = fresh("groupnorm_channels_last", 4).norm.on(CHECKED)
    together = norm.forward(x=x, save=True)
    for sample in range(5):
        alone = norm.forward(x=x[sample : sample + 1], save=True)
        for one, other in zip(alone, together, strict=True):
            assert same_bits(np.asarray(one), np.asarray(other)[sample : sample + 1])


def test_blocks_help_those_that_do_not_run(dealt_out):
    """The first block finds the parts of all others, and reads all of its segment; those then read their
    own."""
    found, executor = fresh("groupnorm_channels_last", 4), HostExecutor(checked=True)
    x = drawn(1, 128, 64)
    found.norm.on(executor).forward(x=x)
    members = launched(found, "bf16", B=1, G=4, C=16, rest=128).grid[0]
    (_, traffic) = executor.history[-1]
    read = {t.name: t.read for t in traffic}["x_ptr"]
    assert members == 4
    # its own slice twice, the others' once, and each of the others its own
    assert read == x.nbytes * (1 + 1 / members + (members - 1) / members)


def test_scratch_memory_may_hold_anything(dealt_out):
    """What tells blocks which parts are there is cleared by the call itself, each time."""
    norm = fresh("groupnorm_channels_last", 4).norm.on(CHECKED)
    x = drawn(2, 64, 40)
    needed = norm.workspace("forward", {"B": 2, "C": 10, "...": 64}, "bf16", device=CHECKED.device)
    words, met = (f"groupnorm_channels_last_forward_resident.{what}" for what in ("words", "met"))
    assert set(needed) == {words, met}
    given = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    given[words].view(np.uint32)[:] = 0xFFFFFFFF
    usual = norm.forward(x=x)
    for _ in range(2):
        for one, other in zip(usual, norm.forward(x=x, workspace=given), strict=True):
            assert same_bits(np.asarray(one), np.asarray(other))


WORDS = (
    "table",
    "mine",
    "meeting",
    "home",
    "zero",
    "scratch",
    "parts",
    "segment",
    "t1",
    "slice",
    "words",
    "met",
)


def test_operands_of_such_names(dealt_out):
    params = [f"param {word}[(G C)] = 1" for word in WORDS]
    text = spec("B, ..., (G C)", "B, G", "C, ...", *params, value=f"(x - mu) * rstd * {' * '.join(WORDS)}")
    made = package(load_definition(Source("clash.norm", text), {}))
    norm = Norm(made, planner=partial(plan_launches, strategy="resident")).on(CHECKED)
    x = np.random.default_rng(2).standard_normal((2, 90, 12)).astype(np.float32)
    found = norm.forward(x=x, **{word: np.ones(12, np.float32) for word in WORDS}).y.reshape(2, 90, 2, 6)
    g = x.astype(float).reshape(2, 90, 2, 6)
    want = (g - g.mean((1, 3), keepdims=True)) * (g.var((1, 3), keepdims=True) + 1e-5) ** -0.5
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
