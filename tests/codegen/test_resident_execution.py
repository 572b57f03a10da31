"""Blocks that keep what they read of a segment while they meet are right, forward, where moments meet, and
backward, where sums do. On the host blocks run one after the other, so that the first of a segment adds up
the slices of all: helping is what runs there, and on a GPU the exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.verify.draw import Sample
from tests.codegen import residing
from tests.codegen.residing import BACKWARDS, FORWARDS, LENGTHS, dealt, launched, lengths_of, subject
from tests.sampling import paired, sampled
from tests.verify.subjects import CHECKED, same_bits

GROUPS = "groupnorm_channels_last"


@dataclass(frozen=True)
class Kind:
    """A direction: its norms, and blocks so small that several share a segment."""

    direction: str
    texts: dict[str, str]
    warps: int
    room: int  # bytes of shared memory, where rows are read twice

    def deal_out(
        self, patch: pytest.MonkeyPatch, threads: int = 64, members: int = 4, depth: int = 96, warps: int = 0
    ) -> None:
        """Some of the rows of a block are in registers, and some in shared memory."""
        blocks = 32 * (warps or self.warps) // threads
        # Where so many have no registers for a row, fewer have.
        residing.deal_out(patch, threads, members, (blocks,) if warps else (blocks, blocks // 2), depth)

    def run(self, name: str, groups: int, **how: Any) -> None:
        residing.run(name, self.direction, groups=groups, **how)


FORWARD = Kind("forward", FORWARDS, 28, 14000)
BACKWARD = Kind("backward", BACKWARDS, 20, 27800)


@pytest.fixture(params=[FORWARD, BACKWARD], ids=lambda kind: kind.direction)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    request.param.deal_out(monkeypatch)
    yield request.param


# (samples, groups, channels of one, places): groups of one channel, of several vectors, of no whole number of
# vectors; more groups than threads; slices that are short at the end; narrow vectors.
SHAPES = [(1, 32, 1, 33), (2, 4, 16, 50), (1, 5, 3, 90), (1, 100, 4, 19), (2, 7, 9, 41)]


@pytest.mark.parametrize(("shape", "dtypes"), paired(SHAPES, ("f32", "bf16", "f16", "bf16, params f32")))
def test_groups_of_channels_that_come_last(kind: Kind, shape: tuple[int, ...], dtypes: str) -> None:
    samples, groups, channels, places = shape
    kind.run(GROUPS, groups, dtypes=dtypes, B=samples, C=channels, rest=places)


NORMS = {f"{kind.direction}-{name}": (kind, name) for kind in (FORWARD, BACKWARD) for name in kind.texts}


@pytest.mark.parametrize(("kind", "name"), NORMS.values(), indirect=["kind"], ids=NORMS)
def test_other_norms(kind: Kind, name: str) -> None:
    kind.run(name, 0, **lengths_of(subject(name), LENGTHS))


def test_other_memory(kind: Kind) -> None:
    for how in (
        {"in_place": True, "offset": 1},
        {"given_out": True, "offset": 3, "pitch": "padded", "accumulate": True},
    ):
        kind.run(GROUPS, 4, dtypes="bf16", B=2, C=6, rest=90, **how)


# Bytes of a thread, warps of a multiprocessor forward and backward, a thread group's rows, those in shared
# memory; and threads of a block.
HELD = [(16, 28, 24, 1, 0, 32), (96, 16, 16, 6, 0, 128), (96, 32, 24, 6, 3, 32)]


@pytest.mark.parametrize("held", sampled(HELD, *range(0, len(HELD), 2)))
def test_rows_in_registers_and_in_shared_memory(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, held: tuple[int, ...]
) -> None:
    """One row a thread in as many blocks as that takes, and all rows of a segment in two."""
    depth, forward, backward, rows, places, threads = held
    kind.deal_out(monkeypatch, threads, 2, depth, forward if kind is FORWARD else backward)
    kind.run(GROUPS, 4, B=2, C=8, rest=300)
    launch = launched(subject(GROUPS, 4), kind.direction, B=2, G=4, C=8, rest=300)
    assert dealt(launch, "DEPTH", "SLOTS") == (rows, places)


def test_more_than_a_word_of_members(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    kind.deal_out(monkeypatch, 32, 100, 16)
    kind.run(GROUPS, 2, B=2, C=8, rest=700)
    assert launched(subject(GROUPS, 2), kind.direction, B=2, G=2, C=8, rest=700).grid[0] > 160


# Threads of a block, rows of a thread group in registers, rows of a sample; of a thread group in all, in
# shared memory and read twice: more that are read twice than places in shared memory, and fewer.
TWICE = [(64, 1, 387, (33, 12, 20), "f32"), (128, 1, 387, (9, 5, 3), "bf16")]


@pytest.mark.parametrize("twice", sampled(TWICE, *range(0, len(TWICE), 2)))
def test_rows_that_are_read_twice(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, twice: tuple[Any, ...]
) -> None:
    threads, held, rest, expected, dtypes = twice
    residing.read_twice(monkeypatch, threads, held, 3, kind.room)
    far = {"x": Sample("normal", 1e6 if dtypes == "f32" else 100.0, 1.0)}
    for how in ({"in_place": False}, {"in_place": True}, {"samples": far}):
        kind.run(GROUPS, 4, dtypes=dtypes, B=2, C=16, rest=rest, **how)
    text = launched(subject(GROUPS, 4), kind.direction, dtypes, B=2, G=4, C=16, rest=rest)
    assert dealt(text, "DEPTH", "SLOTS", "AGAIN") == expected


# --------------------------------------------------------------------------------------------- special values


def test_a_mean_that_is_large_beside_the_deviation(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    kind.deal_out(monkeypatch, warps=28 if kind is FORWARD else 16)
    kind.run(GROUPS, 3, samples={"x": Sample("normal", 1e6, 1.0)}, B=1, C=5, rest=600)


def test_cubes_out_of_range_and_cotangents_far_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    BACKWARD.deal_out(monkeypatch)
    for samples in ({"x": Sample("normal", 0.0, 1e17)}, {"dy": Sample("normal", 1e4, 1.0)}):
        BACKWARD.run(GROUPS, 4, samples=samples, B=2, C=6, rest=200)


@pytest.mark.parametrize(("channels", "within"), [(3, 1e4), (8, 0.0)])
def test_groups_that_are_far_from_their_neighbours(
    monkeypatch: pytest.MonkeyPatch, channels: int, within: float
) -> None:
    """A vector has channels of several groups, each with a mean of its own; so may the channels of one. And
    the first rows of some threads are unlike all others."""
    FORWARD.deal_out(monkeypatch)
    random, groups = np.random.default_rng(4), 5
    means = 1e6 * random.permutation(groups)[:, None] + within * random.permutation(channels)
    x = (means + random.standard_normal((2, 60, groups, channels))).astype(np.float32)
    x[:, :4] += 100
    made = subject(GROUPS, groups).norm.on(CHECKED).forward(x=x.reshape(2, 60, -1), save=True)
    exact = x.astype(np.float64)
    assert np.allclose(made.mu, exact.mean((1, 3)), rtol=1.2e-7, atol=1e-6)
    assert np.allclose(made.rstd, (exact.var((1, 3)) + 1e-5) ** -0.5, rtol=2e-6, atol=0)


# What is among the values of a group, and the mean that the formulas give.
SPECIAL = {(np.inf,): np.inf, (np.inf, np.inf): np.inf, (np.inf, -np.inf): np.nan, (np.nan, np.inf): np.nan}


def test_infinity_and_nan_stay_in_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first slice, within, in the last."""
    FORWARD.deal_out(monkeypatch)
    groups, channels = len(SPECIAL) + 1, 3
    for first in (0, 17, 36):
        x = np.random.default_rng(3).standard_normal((1, 40, groups * channels)).astype(np.float32)
        exact = x.reshape(40, groups, channels).astype(np.float64)
        for group, values in enumerate(SPECIAL):
            for k, value in enumerate(values):
                x[0, first + k, group * channels + k] = value
        made = subject(GROUPS, groups).norm.on(CHECKED).forward(x=x, save=True)
        assert np.array_equal(made.mu[0, :-1], [*SPECIAL.values()], equal_nan=True)
        assert np.isnan(made.rstd[0, :-1]).all()
        assert np.allclose(made.rstd[0, -1], (exact[:, -1].var() + 1e-5) ** -0.5, rtol=1e-5)
        assert np.isfinite(made.y[0, :, -channels:]).all()


# --------------------------------------------------------------------------------- blocks that meet, and bits


def arrays(kind: Kind, samples: int, places: int, channels: int, groups: int) -> dict[str, Any]:
    random = np.random.default_rng(1)
    shapes = {"dy": (samples, places, channels), "x": (samples, places, channels), "w": (channels,)}
    given = {n: random.standard_normal(shape).astype(ml_dtypes.bfloat16) for n, shape in shapes.items()}
    if kind is FORWARD:
        return {"x": given["x"], "w": given["w"]}
    mu, rstd = random.uniform(0.5, 2, (2, samples, groups)).astype(np.float32)
    return given | {"mu": mu, "rstd": rstd}


def call(kind: Kind, norm: Any, given: dict[str, Any], **how: Any) -> list[np.ndarray]:
    return [np.asarray(each) for each in getattr(norm, kind.direction)(**given, **how)]


def all_same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return all(same_bits(one, other) for one, other in zip(some, others, strict=True))


def test_the_same_bits_whatever_the_order_the_memory_and_the_batch(kind: Kind) -> None:
    """Slices that others have helped with are overwritten by their owners, in place too. What tells blocks
    which parts are there is cleared by the call itself, each time."""
    given, norm = arrays(kind, 2, 50, 130, 13), subject(GROUPS, 13).norm
    usual = call(kind, norm.on(CHECKED), given)
    for order in ((1, 0), (2, 7)):
        for over in ("x", "dy") if kind is BACKWARD else ("x",):
            own = {name: array.copy() for name, array in given.items()}
            out = {"dx" if kind is BACKWARD else "y": own[over]}
            assert all_same(usual, call(kind, norm.on(HostExecutor(True, *order)), own, out=out))
    for sample in range(2):
        one = {n: array if n == "w" else array[sample : sample + 1] for n, array in given.items()}
        assert same_bits(call(kind, norm.on(CHECKED), one)[0], usual[0][sample : sample + 1])
    needed = norm.on(CHECKED).workspace(
        kind.direction, {"B": 2, "C": 10, "...": 50}, "bf16", device=CHECKED.device
    )
    scratch = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    (words,) = [name for name in scratch if name.endswith("_resident.words")]
    scratch[words].view(np.uint32)[:] = 0xFFFFFFFF
    for _ in range(2):
        assert all_same(usual, call(kind, norm.on(CHECKED), given, workspace=scratch))


def test_blocks_help_those_that_do_not_run(kind: Kind) -> None:
    """The first block finds the parts of all others, and reads all of its segment; those then read their
    own."""
    found, executor = subject(GROUPS, 4), HostExecutor(checked=True)
    given = arrays(kind, 1, 128, 64, 4)
    call(kind, found.norm.on(executor), given)
    members = launched(found, kind.direction, "bf16", B=1, G=4, C=16, rest=128).grid[0]
    traffic = next(t for entry, t in executor.history if entry.endswith("_resident"))
    for name in given.keys() & {"x", "dy"}:
        read = {t.name: t.read for t in traffic}[f"{name}_ptr"]
        # its own slice twice, the others' once, and each of the others its own
        assert members == 4 and read == given[name].nbytes * (1 + 1 / members + (members - 1) / members)
