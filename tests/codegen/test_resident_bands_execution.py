"""Blocks that keep bands of an only segment while they meet are right, in both directions. (On the host the
first block of a band adds up the slices of all.)"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.resident.launch import residence, segments
from normgen.launching.machine import HOST_MACHINE
from normgen.verify.draw import Sample
from tests.codegen.banding import BATCHNORM, TEXTS, dealt, of, subject
from tests.codegen.holding import case
from tests.codegen.residing import LESS, clashing, ruled
from tests.sampling import paired
from tests.verify.subjects import CHECKED, prove, same_bits


@pytest.fixture
def dealt_out(monkeypatch):
    """Narrow bands in small blocks, however short a segment is; some of their rows are in registers, and some
    in shared memory."""

    def small(threads: int = 64, blocks: int = 12, depth: int = 96, warps: int = 24) -> None:
        monkeypatch.setattr(segments, "BAND_BYTES", 32)
        for name, value in {"BANDED_BLOCKS": blocks, "BANDED_SLICE": 256, "DEPTH_BYTES": depth}.items():
            monkeypatch.setattr(residence, name, value)
        ruled(monkeypatch, "MOMENTS", band_ways=((threads, 32 * warps // threads),))
        fewer = max(1, 32 * (warps - 8) // threads)
        ruled(monkeypatch, "SUMS", band_ways=((threads, fewer),))

    small()
    return small


def run(name: str, dtypes: str, samples=None, less=None, directions=("forward", "backward"), **extents: int):
    found, executor = subject(name), HostExecutor(checked=True)
    prove(
        found,
        replace(case(found, dtypes, **extents), **(less or {})),
        executor,
        samples,
        directions=directions,
    )
    entries = {entry for entry, _ in executor.history if entry != "normgen_copy"}
    assert {entry.rpartition("_")[2] for entry in entries} == {"resident"}


# (channels, places): several bands, one, narrow vectors, slices that are short at the end.
SHAPES = [(24, 130), (48, 70), (64, 33), (7, 210), (40, 90), (130, 45), (1, 700), (96, 64)]


@pytest.mark.parametrize(("shape", "dtypes"), paired(SHAPES, ("f32", "bf16", "f16", "bf16, params f32")))
def test_channels_that_come_last(dealt_out, shape, dtypes):
    channels, places = shape
    run(BATCHNORM, dtypes, C=channels, rest=places)


@pytest.mark.parametrize(("name", "dtypes"), paired(TEXTS, ("f32", "bf16")))
def test_other_norms(dealt_out, name, dtypes):
    axes = {a.name for a in subject(name).norm.package.axes}
    lengths = {"T": 3, "S": 37, "C": 48, "rest": 110}
    lengths = {n: k for n, k in lengths.items() if n in axes or (n == "rest" and "..." in axes)}
    directions = ("forward",) if "activation" in name else ("forward", "backward")
    dealt_out(warps=16)
    run(name, dtypes, directions=directions, **lengths)


MORE = ({"accumulate": True}, {"wrt": ("x",)}, {"wrt": ("x", "w")})


@pytest.mark.parametrize("less", [*LESS, *MORE], ids=str)
def test_less_or_more(dealt_out, less):
    directions = ("backward",) if less in MORE else ("forward", "backward")
    run(BATCHNORM, "bf16", less=less, directions=directions, C=48, rest=90)


@pytest.mark.parametrize(("threads", "blocks", "warps"), [(32, 200, 16), (128, 6, 28)])
def test_more_or_fewer_blocks(dealt_out, threads, blocks, warps):
    """More members than bits of a word, and two; rows in registers alone, and in shared memory too."""
    dealt_out(threads, blocks, 96, warps)
    run(BATCHNORM, "f32", C=16, rest=900)


@pytest.mark.parametrize(("places", "dtypes"), paired((1100, 1537, 1456), ("f32", "bf16")))
def test_rows_that_are_read_twice(monkeypatch, places, dtypes):
    values = {"MOST_MEMBERS": 3, "DEPTH": 2, "STATIC_SHARED": HOST_MACHINE.shared_per_block - 14000}
    for name, value in (values | {"BANDED_BLOCKS": 18}).items():
        monkeypatch.setattr(residence, name, value)
    monkeypatch.setattr(segments, "BAND_BYTES", 32)
    for kind in ("MOMENTS", "SUMS"):
        ruled(monkeypatch, kind, band_ways=(), long_band_ways=(64,))
    for direction in ("forward", "backward"):
        found, _ = of(direction, dtypes, places, 48, HOST_MACHINE)
        *_, depth, again = dealt(found["resident"])
        assert 0 < again < depth - 2
    for over in (False, True):
        run(BATCHNORM, dtypes, less={"in_place": over}, C=48, rest=places)
    run(BATCHNORM, dtypes, {"x": Sample("normal", 1e6 if dtypes == "f32" else 100.0, 1.0)}, C=48, rest=places)


@pytest.mark.parametrize("order", [(1, 0), (2, 1), (2, 7)], ids=str)
def test_the_same_bits_in_any_order_of_blocks_and_threads(dealt_out, order):
    """States are updated once, whoever comes first."""
    random = np.random.default_rng(1)
    x, dy = (random.standard_normal((3, 40, 48)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = random.standard_normal(48).astype(ml_dtypes.bfloat16)
    norm, found = subject(BATCHNORM).norm, []
    for executor in (CHECKED, HostExecutor(True, *order)):
        states = {"running_mean": np.full(48, 3, np.float32), "running_var": np.full(48, 2, np.float32)}
        one = norm.on(executor)
        y, mu, rstd = one.forward(x=x, w=w, save=True, **states)
        found.append([y, mu, rstd, *states.values(), *one.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)])
    assert all(same_bits(np.asarray(a), np.asarray(b)) for a, b in zip(*found, strict=True))
    exact = x.astype(float).reshape(-1, 48)
    assert np.allclose(found[0][3], 2.7 + 0.1 * exact.mean(0), rtol=1e-6)
    assert np.allclose(found[0][4], 1.8 + 0.1 * exact.var(0, ddof=1), rtol=1e-6)


def test_infinity_and_nan_stay_in_their_channel(dealt_out):
    x = np.random.default_rng(3).standard_normal((90, 24)).astype(np.float32)
    x[5, 3], x[40, 11], x[89, 17] = np.inf, np.nan, -np.inf
    made = subject(BATCHNORM).norm.on(CHECKED).forward(x=x, save=True)
    bad = [3, 11, 17]
    assert not np.isfinite(made.rstd[bad]).any() and np.isfinite(np.delete(made.rstd, bad)).all()
    assert np.isfinite(np.delete(made.y, bad, 1)).all()


def test_operands_of_such_names(dealt_out):
    words = ("band", "segment", "home", "table", "totals", "columns", "factors", "words", "published")
    norm = clashing("..., C", "C", "...", "C", words).norm.on(CHECKED)
    x = np.random.default_rng(2).standard_normal((180, 24)).astype(np.float32)
    found = norm.forward(x=x, **{word: np.ones(24, np.float32) for word in words}).y
    np.testing.assert_allclose(found, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-4, atol=1e-5)
