"""Blocks that keep bands of an only segment while they meet are right, in both directions. (On the host the
first block of a band adds up the slices of all.)"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.resident.launch import segments
from normgen.verify.draw import Sample
from tests.codegen import residing
from tests.codegen.residing import BANDS, dealt, launched, lengths_of, run, subject
from tests.sampling import paired, sampled
from tests.verify.subjects import CHECKED, same_bits

BATCHNORM = "batchnorm_channels_last"
BOTH = ("forward", "backward")


@pytest.fixture
def deal_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Narrow bands in small blocks, however short a segment is; some of their rows are in registers, and some
    in shared memory."""

    def small(threads: int = 64, members: int = 4, warps: int = 24) -> None:
        monkeypatch.setattr(segments, "BAND_BYTES", 32)
        several = tuple(max(1, 32 * each // threads) for each in (warps, warps - 8))
        residing.deal_out(monkeypatch, threads, members, several)

    small()
    return small


# (channels, places): several bands, narrow vectors, slices that are short at the end, one column.
SHAPES = [(24, 130), (7, 210), (130, 45), (1, 700)]


@pytest.mark.usefixtures("deal_out")
@pytest.mark.parametrize(("shape", "dtypes"), paired(SHAPES, ("f32", "bf16", "f16", "bf16, params f32")))
def test_channels_that_come_last(shape: tuple[int, int], dtypes: str) -> None:
    channels, places = shape
    run(BATCHNORM, *BOTH, dtypes=dtypes, C=channels, rest=places)


@pytest.mark.parametrize("name", sampled(BANDS, *range(0, len(BANDS), 2)))
def test_other_norms(deal_out: Callable[..., None], name: str) -> None:
    deal_out(warps=16)
    lengths = lengths_of(subject(name), {"T": 3, "S": 37, "C": 48, "rest": 110})
    run(name, *(BOTH[:1] if "function" in name else BOTH), **lengths)


@pytest.mark.usefixtures("deal_out")
def test_other_memory() -> None:
    for how in (
        {"in_place": True, "offset": 1},
        {"given_out": True, "offset": 3, "pitch": "padded", "accumulate": True},
    ):
        run(BATCHNORM, *BOTH, dtypes="bf16", C=48, rest=90, **how)


@pytest.mark.parametrize(("threads", "members", "warps"), [(32, 100, 16), (128, 2, 28)])
def test_more_or_fewer_blocks(deal_out: Callable[..., None], threads: int, members: int, warps: int) -> None:
    """More members than bits of a word, and two; rows in registers alone, and in shared memory too."""
    deal_out(threads, members, warps)
    run(BATCHNORM, *BOTH, C=16, rest=900)


@pytest.mark.parametrize(("places", "dtypes"), [(1100, "f32"), (1537, "bf16")])
def test_rows_that_are_read_twice(monkeypatch: pytest.MonkeyPatch, places: int, dtypes: str) -> None:
    residing.read_twice(monkeypatch, 64, 2, 3, 14000)
    monkeypatch.setattr(segments, "BAND_BYTES", 32)
    for direction in BOTH:
        launch = launched(subject(BATCHNORM), direction, dtypes, C=48, rest=places)
        depth, again = dealt(launch, "DEPTH", "AGAIN")
        assert 0 < again < depth - 2
    far = {"x": Sample("normal", 1e6 if dtypes == "f32" else 100.0, 1.0)}
    for how in ({"in_place": False}, {"in_place": True}, {"samples": far}):
        run(BATCHNORM, *BOTH, dtypes=dtypes, C=48, rest=places, **how)


@pytest.mark.usefixtures("deal_out")
def test_the_same_bits_in_any_order_of_blocks_and_threads() -> None:
    """States are updated once, whoever comes first."""
    random = np.random.default_rng(1)
    x, dy = (random.standard_normal((3, 40, 48)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = random.standard_normal(48).astype(ml_dtypes.bfloat16)
    norm, found = subject(BATCHNORM).norm, []
    for executor in (CHECKED, HostExecutor(True, 1), HostExecutor(True, 2, 7)):
        states = {"running_mean": np.full(48, 3, np.float32), "running_var": np.full(48, 2, np.float32)}
        one = norm.on(executor)
        y, mu, rstd = one.forward(x=x, w=w, save=True, **states)
        found.append([y, mu, rstd, *states.values(), *one.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)])
    for some in zip(*found, strict=True):
        assert all(same_bits(np.asarray(some[0]), np.asarray(other)) for other in some[1:])
    exact = x.astype(float).reshape(-1, 48)
    assert np.allclose(found[0][3], 2.7 + 0.1 * exact.mean(0), rtol=1e-6)
    assert np.allclose(found[0][4], 1.8 + 0.1 * exact.var(0, ddof=1), rtol=1e-6)


@pytest.mark.usefixtures("deal_out")
def test_infinity_and_nan_stay_in_their_channel() -> None:
    x = np.random.default_rng(3).standard_normal((90, 24)).astype(np.float32)
    x[5, 3], x[40, 11], x[89, 17] = np.inf, np.nan, -np.inf
    made = subject(BATCHNORM).norm.on(CHECKED).forward(x=x, save=True)
    bad = [3, 11, 17]
    assert not np.isfinite(made.rstd[bad]).any() and np.isfinite(np.delete(made.rstd, bad)).all()
    assert np.isfinite(np.delete(made.y, bad, 1)).all()
