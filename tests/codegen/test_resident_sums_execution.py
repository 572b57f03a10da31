"""Blocks that keep what they read of a segment while their sums meet are right: backwards of groups of
channels that come last. (On the host the first block of a segment adds up the slices of all.)"""

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
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.draw import Sample
from tests.codegen.holding import case
from tests.codegen.residing import LENGTHS, SUMS, adding, backward_launched, ruled, spec
from tests.verify.subjects import CHECKED, prove, same_bits

BACKWARD = ("backward",)


@pytest.fixture
def dealt_out(monkeypatch):
    """Small blocks, of which several share a segment however short it is; some of their rows are in
    registers, and some in shared memory."""

    def small(threads: int = 64, members: int = 4, depth: int = 96, warps: int = 20) -> None:
        monkeypatch.setattr(residence, "LEAST_SLICE", 512)
        ruled(monkeypatch, "SUMS", ways=((threads, 32 * warps // threads),))
        monkeypatch.setattr(residence, "MEMBERS", members)
        monkeypatch.setattr(residence, "DEPTH_BYTES", depth)

    small()
    return small


def run(name: str, groups: int, dtypes: str = "f32", samples=None, less=None, **extents: int) -> None:
    """A backward by this strategy, and no other."""
    found, executor = adding(name, groups), HostExecutor(checked=True)
    made = replace(case(found, dtypes, **extents), **(less or {}))
    prove(found, made, executor, samples, directions=BACKWARD)
    entries = [entry for entry, _ in executor.history if entry != "normgen_copy"]
    assert entries[0].endswith("_backward_resident")
    assert {entry.rpartition("_backward_")[2] for entry in entries} <= {"resident", "resident_finalise"}


# (samples, groups, channels of one, places): groups of one channel, of parts of a vector, of several vectors,
# of no whole number of either; more groups than threads; slices that are short at the end; narrow vectors.
SHAPES = [
    (2, 32, 10, 70), (1, 32, 1, 33), (3, 4, 16, 50), (1, 5, 3, 90), (1, 3, 5, 130), (2, 16, 2, 65),
    (1, 8, 12, 40), (1, 1, 24, 77), (2, 7, 9, 41), (1, 100, 4, 19), (5, 2, 4, 130), (1, 11, 17, 31),
    (2, 32, 10, 64),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16", "f16", "bf16, params f32"])
def test_groups_of_channels_that_come_last(dealt_out, shape, dtypes):
    samples, groups, channels, places = shape
    run("groupnorm_channels_last", groups, dtypes, B=samples, C=channels, rest=places)


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize("name", SUMS)
def test_other_norms(dealt_out, name, dtypes):
    axes = {a.name for a in adding(name).norm.package.axes}
    lengths = {n: k for n, k in LENGTHS.items() if n in axes or (n == "rest" and "..." in axes)}
    run(name, 0, dtypes, **lengths)


@pytest.mark.parametrize(
    "less",
    [
        {"accumulate": True},
        {"wrt": ("x",)},
        {"wrt": ("x", "w")},
        {"wrt": ("x", "b")},
        {"absent": ("w",)},
        {"absent": ("w", "b")},
        {"in_place": True},
        {"offset": 1},
        {"given_out": True, "offset": 3},
        {"padded": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["groupnorm_channels_last", "instances"])
def test_less_or_more(dealt_out, less, name):
    for dtypes in ("f32", "bf16"):
        run(name, 4 if name.startswith("group") else 0, dtypes, less=less, B=2, C=6, rest=90)


@pytest.mark.parametrize("wrt", [("w",), ("w", "b")], ids=str)
def test_what_blocks_keep_nothing_for(dealt_out, wrt):
    """Without the result of every element it is another strategy's."""
    found, executor = adding("groupnorm_channels_last", 4), HostExecutor(checked=True)
    made = replace(case(found, "f32", B=2, C=6, rest=90), wrt=wrt)
    prove(found, made, executor, directions=BACKWARD)
    assert not any("resident" in entry for entry, _ in executor.history)


# Bytes of a thread, warps of a multiprocessor, and rows of a team in all and in shared memory.
HELD = [(16, 24, 1, 0), (96, 16, 6, 0), (96, 20, 6, 1), (96, 24, 6, 3)]


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize(("depth", "warps", "rows", "places"), HELD)
def test_rows_in_registers_and_in_shared_memory(dealt_out, threads, depth, warps, rows, places):
    """One row a thread in as many blocks as that takes, and all rows of a segment in two."""
    dealt_out(threads, 2, depth, warps)
    run("groupnorm_channels_last", 4, B=2, C=8, rest=300)
    text = backward_launched(adding("groupnorm_channels_last", 4), "f32", B=2, G=4, C=8, rest=300).source
    assert f"DEPTH = {rows};" in text and f"SLOTS = {places};" in text


def test_more_than_a_word_of_members(dealt_out):
    dealt_out(32, 100, 16)
    run("groupnorm_channels_last", 2, B=2, C=8, rest=700)
    launch = backward_launched(adding("groupnorm_channels_last", 2), "f32", B=2, G=2, C=8, rest=700)
    assert launch.grid[0] > 160


def test_several_vectors_of_a_row_in_a_thread(dealt_out):
    dealt_out(32, 3, 128, 16)
    for channels in (36, 40):
        run("groupnorm_channels_last", 5, B=2, C=channels, rest=21)


@pytest.mark.parametrize(
    "shape", [(2, 32, 10, 300), (1, 3, 5, 600), (1, 4, 16, 200), (1, 16, 1, 300)], ids=str
)
def test_a_mean_that_is_large_beside_the_deviation(dealt_out, shape):
    samples, groups, channels, places = shape
    far = {"x": Sample("normal", 1e6, 1.0)}
    dealt_out(warps=16)
    run("groupnorm_channels_last", groups, samples=far, B=samples, C=channels, rest=places)
    run("instances", 0, samples=far, B=samples, C=groups * channels, rest=places)


@pytest.mark.parametrize("size", [1e14, 1e17])
@pytest.mark.parametrize("name", ["groupnorm_channels_last", "instances"])
def test_values_whose_cubes_are_out_of_range(dealt_out, name, size):
    large = {"x": Sample("normal", 0.0, size)}
    run(name, 4 if name.startswith("group") else 0, samples=large, B=2, C=6, rest=200)


@pytest.mark.parametrize("name", ["groupnorm_channels_last", "instances"])
def test_cotangents_that_are_far_from_zero(dealt_out, name):
    far = {"dy": Sample("normal", 1e4, 1.0)}
    run(name, 4 if name.startswith("group") else 0, samples=far, B=2, C=6, rest=200)


# --------------------------------------------------------------------------------- blocks that meet, and bits


def arrays(samples: int, places: int, channels: int, groups: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    shape = (samples, places, channels)
    given = {name: random.standard_normal(shape).astype(ml_dtypes.bfloat16) for name in ("dy", "x")}
    given["w"] = random.standard_normal(channels).astype(ml_dtypes.bfloat16)
    return given | {
        "mu": random.standard_normal((samples, groups)).astype(np.float32) / 10,
        "rstd": random.uniform(0.5, 2, (samples, groups)).astype(np.float32),
    }


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 1), (2, 2), (2, 7)], ids=str)
def test_the_same_bits_in_any_order_of_blocks_and_threads_and_in_place(dealt_out, order):
    """Slices that others have helped with are overwritten by their owners."""
    given = arrays(2, 50, 130, 13)
    norm = adding("groupnorm_channels_last", 13).norm
    apart = norm.on(CHECKED).backward(**given)
    for over in ("x", "dy"):
        own = {name: array.copy() for name, array in given.items()}
        made = norm.on(HostExecutor(True, *order)).backward(**own, out={"dx": own[over]})
        for one, other in zip(apart, made, strict=True):
            assert same_bits(np.asarray(one), np.asarray(other))


def test_bits_do_not_depend_on_the_batch(dealt_out):
    given = arrays(5, 90, 40, 4)
    norm = adding("groupnorm_channels_last", 4).norm.on(CHECKED)
    together = norm.backward(**given)
    for sample in range(5):
        one = {n: array if n == "w" else array[sample : sample + 1] for n, array in given.items()}
        alone = norm.backward(**one)
        assert same_bits(np.asarray(alone.dx), np.asarray(together.dx)[sample : sample + 1])


def test_blocks_help_those_that_do_not_run(dealt_out):
    """The first block finds the sums of all others, and reads all of its segment; those then read their
    own."""
    found, executor = adding("groupnorm_channels_last", 4), HostExecutor(checked=True)
    given = arrays(1, 128, 64, 4)
    found.norm.on(executor).backward(**given)
    members = backward_launched(found, "bf16", B=1, G=4, C=16, rest=128).grid[0]
    traffic = executor.history[0][1]
    for name in ("x", "dy"):
        read = {t.name: t.read for t in traffic}[f"{name}_ptr"]
        # its own slice twice, the others' once, and each of the others its own
        assert members == 4 and read == given[name].nbytes * (1 + 1 / members + (members - 1) / members)


def test_scratch_memory_may_hold_anything(dealt_out):
    norm = adding("groupnorm_channels_last", 4).norm.on(CHECKED)
    given = arrays(2, 64, 40, 4)
    needed = norm.workspace("backward", {"B": 2, "C": 10, "...": 64}, "bf16", device=CHECKED.device)
    kernel = "groupnorm_channels_last_backward_resident"
    assert set(needed) == {f"{kernel}.{what}" for what in ("words", "met", "dw_sum", "db_sum")}
    scratch = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    scratch[f"{kernel}.words"].view(np.uint32)[:] = 0xFFFFFFFF
    usual = norm.backward(**given)
    for _ in range(2):
        for one, other in zip(usual, norm.backward(**given, workspace=scratch), strict=True):
            assert same_bits(np.asarray(one), np.asarray(other))


WORDS = (
    "room", "columns", "own", "totals", "table", "mine", "meeting", "home", "zero", "segment", "t1", "words",
    "met", "factor_1", "sum_1", "value_1", "all",
)  # fmt: skip


def test_operands_of_such_names(dealt_out):
    params = [f"param {word}[(G C)] = 1" for word in WORDS]
    text = spec("B, ..., (G C)", "B, G", "C, ...", *params, value=f"(x - mu) * rstd * {' * '.join(WORDS)}")
    definition = load_definition(Source("clash.norm", text), {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy="resident")).on(CHECKED)
    given = arrays(2, 90, 12, 2)
    del given["w"]
    made = norm.backward(
        **given, **{word: np.ones(12, ml_dtypes.bfloat16) for word in WORDS}, wrt=("x", "own")
    )
    usual = adding("groupnorm_channels_last", 2).norm.on(CHECKED)
    same = usual.backward(**given, w=np.ones(12, ml_dtypes.bfloat16), wrt=("x", "w"))
    np.testing.assert_allclose(made.dx.astype(float), same.dx.astype(float), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(made.down.astype(float), same.dw.astype(float), rtol=1e-2, atol=1e-1)
