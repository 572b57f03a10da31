"""Blocks that keep what they read of a segment while they meet are right, forward, where moments meet, and
backward, where sums do. On the host blocks run one after the other, so that the first of a segment adds up
the slices of all: helping is what runs there, and on a GPU the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.resident.launch import residence
from normgen.launching.launch import Launch
from normgen.verify.draw import Sample
from normgen.verify.expected import Subject
from tests.codegen import residing
from tests.codegen.holding import case
from tests.codegen.residing import (
    LENGTHS,
    LESS,
    SUMS,
    TEXTS,
    adding,
    backward_launched,
    clashing,
    dealt,
    fresh,
    launched,
    ruled,
)
from tests.sampling import paired, sampled
from tests.verify.subjects import CHECKED, prove, same_bits

GROUPS = "groupnorm_channels_last"


@dataclass(frozen=True)
class Kind:
    """A direction: its norms, its launch, and blocks so small that several share a segment."""

    direction: str
    rules: str
    warps: int
    slice: int
    room: int  # bytes of shared memory, where rows are read twice
    subject: Callable[..., Subject]
    launched: Callable[..., Launch]
    texts: dict[str, str]

    def deal_out(
        self, patch: pytest.MonkeyPatch, threads: int = 64, members: int = 4, depth: int = 96, warps: int = 0
    ) -> None:
        """Some of the rows of a block are in registers, and some in shared memory."""
        ruled(patch, self.rules, ways=((threads, 32 * (warps or self.warps) // threads),))
        for name, value in {"LEAST_SLICE": self.slice, "MEMBERS": members, "DEPTH_BYTES": depth}.items():
            patch.setattr(residence, name, value)

    def run(self, name: str, groups: int, dtypes: str = "f32", samples: Any = None, **how: Any) -> None:
        """By this strategy, and no other. `how`: lengths of axes, and fields of the case."""
        found, executor = self.subject(name, groups), HostExecutor(checked=True)
        extents = {axis: n for axis, n in how.items() if axis == "rest" or axis[0].isupper()}
        rest = {field: value for field, value in how.items() if field not in extents}
        made = replace(case(found, dtypes, **extents), **rest)
        prove(found, made, executor, samples, directions=(self.direction,))
        entries = {entry for entry, _ in executor.history if entry != "normgen_copy"}
        ends = {entry.partition(f"_{self.direction}_")[2] for entry in entries}
        assert "resident" in ends and ends <= {"resident", "resident_second_stage"}


FORWARD = Kind("forward", "MOMENTS", 28, 256, 14000, fresh, launched, TEXTS)
BACKWARD = Kind("backward", "SUMS", 20, 512, 27800, adding, backward_launched, SUMS)


@pytest.fixture(params=[FORWARD, BACKWARD], ids=lambda kind: kind.direction)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    request.param.deal_out(monkeypatch)
    yield request.param


# (samples, groups, channels of one, places): groups of one channel, of parts of a vector, of several vectors,
# of no whole number of either; more groups than threads; slices that are short at the end; narrow vectors.
SHAPES = [
    (2, 32, 10, 70), (1, 32, 1, 33), (3, 4, 16, 50), (1, 5, 3, 90), (1, 3, 5, 130), (2, 16, 2, 65),
    (1, 1, 24, 77), (2, 7, 9, 41), (1, 100, 4, 19), (1, 11, 17, 31),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtypes"), paired(SHAPES, ("f32", "bf16", "f16", "bf16, params f32")))
def test_groups_of_channels_that_come_last(kind: Kind, shape: tuple[int, ...], dtypes: str) -> None:
    samples, groups, channels, places = shape
    kind.run(GROUPS, groups, dtypes, B=samples, C=channels, rest=places)


def lengths_of(found: Subject, lengths: dict[str, int]) -> dict[str, int]:
    axes = {a.name for a in found.norm.package.axes}
    return {n: k for n, k in lengths.items() if n in axes or (n == "rest" and "..." in axes)}


@pytest.mark.parametrize("dtypes", sampled(("f32", "bf16"), 0))
@pytest.mark.parametrize("name", sorted({*TEXTS, *SUMS}))
def test_other_norms(kind: Kind, name: str, dtypes: str) -> None:
    if name in kind.texts:
        kind.run(name, 0, dtypes, **lengths_of(kind.subject(name), LENGTHS))


MORE = ({"accumulate": True}, {"wrt": ("x",)}, {"wrt": ("x", "w")}, {"wrt": ("x", "b")})


@pytest.mark.parametrize("less", [*LESS, *MORE], ids=str)
def test_less_or_more(kind: Kind, less: dict[str, Any]) -> None:
    if (kind is FORWARD and less not in LESS) or (kind is BACKWARD and "save" in less):
        pytest.skip("of the other direction")
    kind.run(GROUPS, 4, "bf16", B=2, C=6, rest=90, **less)


@pytest.mark.parametrize("wrt", [("w",), ("w", "b")], ids=str)
def test_what_blocks_keep_nothing_for(monkeypatch: pytest.MonkeyPatch, wrt: tuple[str, ...]) -> None:
    """Without the result of every element it is another strategy's."""
    BACKWARD.deal_out(monkeypatch)
    found, executor = adding(GROUPS, 4), HostExecutor(checked=True)
    made = replace(case(found, "f32", B=2, C=6, rest=90), wrt=wrt)
    prove(found, made, executor, directions=("backward",))
    assert not any("resident" in entry for entry, _ in executor.history)


# Bytes of a thread, warps of a multiprocessor forward and backward, a thread group's rows, those in shared
# memory.
HELD = [(16, 28, 24, 1, 0), (96, 16, 16, 6, 0), (96, 32, 24, 6, 3)]


@pytest.mark.parametrize(("held", "threads"), paired(HELD, (32, 128)))
def test_rows_in_registers_and_in_shared_memory(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, held: tuple[int, ...], threads: int
) -> None:
    """One row a thread in as many blocks as that takes, and all rows of a segment in two."""
    depth, forward, backward, rows, places = held
    kind.deal_out(monkeypatch, threads, 2, depth, forward if kind is FORWARD else backward)
    kind.run(GROUPS, 4, B=2, C=8, rest=300)
    text = kind.launched(kind.subject(GROUPS, 4), "f32", B=2, G=4, C=8, rest=300).source
    assert f"DEPTH = {rows};" in text and f"SLOTS = {places};" in text


def test_more_than_a_word_of_members(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    kind.deal_out(monkeypatch, 32, 100, 16)
    kind.run(GROUPS, 2, B=2, C=8, rest=700)
    assert kind.launched(kind.subject(GROUPS, 2), "f32", B=2, G=2, C=8, rest=700).grid[0] > 160


@pytest.mark.parametrize("channels", sampled((36, 40), 0))
def test_several_vectors_of_a_row_in_a_thread(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    kind.deal_out(monkeypatch, 32, 3, 128, 28 if kind is FORWARD else 16)
    kind.run(GROUPS, 5, B=2, C=channels, rest=21)


# Threads of a block, rows of a thread group in registers, rows of a sample; of a thread group in all, in
# shared memory and read twice: fewer that are read twice than places in shared memory, and more; the last
# slice short, and not.
TWICE = [
    (64, 2, 300, (25, 12, 11)),
    (64, 1, 387, (33, 12, 20)),
    (64, 2, 220, (19, 12, 5)),
    (128, 1, 200, (9, 5, 3)),
]


@pytest.mark.parametrize(("twice", "dtypes"), paired(TWICE, ("f32", "bf16")))
def test_rows_that_are_read_twice(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, twice: tuple[Any, ...], dtypes: str
) -> None:
    threads, held, rest, expected = twice
    residing.read_twice(monkeypatch, kind.rules, threads, held, 3, kind.room)
    for over in (False, True):
        kind.run(GROUPS, 4, dtypes, B=2, C=16, rest=rest, in_place=over)
    far = {"x": Sample("normal", 1e6 if dtypes == "f32" else 100.0, 1.0)}
    kind.run(GROUPS, 4, dtypes, far, B=2, C=16, rest=rest)
    assert dealt(kind.launched(kind.subject(GROUPS, 4), "f32", B=2, G=4, C=16, rest=rest)) == expected


@pytest.mark.parametrize("name", sampled(sorted({*TEXTS, *SUMS}), 0, 3))
def test_other_norms_whose_rows_are_read_twice(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name not in kind.texts:
        return
    residing.read_twice(monkeypatch, kind.rules, 64, 2, 2, 4200 if kind is FORWARD else 8000)
    found = kind.subject(name)
    lengths = lengths_of(found, LENGTHS | {"S": 67 if kind is FORWARD else 167, "rest": 403})
    kind.run(name, 0, **lengths)
    extents = lengths | {a.name: a.extent for a in found.norm.package.axes if a.extent is not None}
    assert dealt(kind.launched(found, "f32", **extents))[2] > 0


# --------------------------------------------------------------------------------------------- special values

FAR = {"x": Sample("normal", 1e6, 1.0)}


@pytest.mark.parametrize("shape", [(1, 3, 5, 600), (1, 16, 1, 300)], ids=str)
def test_a_mean_that_is_large_beside_the_deviation(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    samples, groups, channels, places = shape
    kind.deal_out(monkeypatch, warps=28 if kind is FORWARD else 16)
    kind.run(GROUPS, groups, samples=FAR, B=samples, C=channels, rest=places)


@pytest.mark.parametrize(
    "samples", [{"x": Sample("normal", 0.0, 1e17)}, {"dy": Sample("normal", 1e4, 1.0)}], ids=str
)
@pytest.mark.parametrize("name", [GROUPS, "instances"])
def test_cubes_out_of_range_and_cotangents_far_from_zero(
    monkeypatch: pytest.MonkeyPatch, name: str, samples: dict[str, Sample]
) -> None:
    BACKWARD.deal_out(monkeypatch)
    BACKWARD.run(name, 4 if name == GROUPS else 0, samples=samples, B=2, C=6, rest=200)


@pytest.mark.parametrize(("channels", "within"), paired((1, 3, 8, 10), (0.0, 1e4)))
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
    made = fresh(GROUPS, groups).norm.on(CHECKED).forward(x=x.reshape(2, 60, -1), save=True)
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


@pytest.mark.parametrize(("channels", "first"), paired((3, 8, 10), (0, 17, 36)))
def test_infinity_and_nan_stay_in_their_group(
    monkeypatch: pytest.MonkeyPatch, channels: int, first: int
) -> None:
    """In the first slice, within, in the last."""
    FORWARD.deal_out(monkeypatch)
    groups = len(SPECIAL) + 1
    x = np.random.default_rng(3).standard_normal((1, 40, groups * channels)).astype(np.float32)
    exact = x.reshape(40, groups, channels).astype(np.float64)
    for group, (values, _) in enumerate(SPECIAL):
        for k, value in enumerate(values):
            x[0, first + k, group * channels + k] = value
    made = fresh(GROUPS, groups).norm.on(CHECKED).forward(x=x, save=True)
    assert np.array_equal(made.mu[0, :-1], [mean for _, mean in SPECIAL], equal_nan=True)
    assert np.isnan(made.rstd[0, :-1]).all()
    assert np.allclose(made.rstd[0, -1], (exact[:, -1].var() + 1e-5) ** -0.5, rtol=1e-5)
    assert np.isfinite(made.y[0, :, -channels:]).all()


# --------------------------------------------------------------------------------- blocks that meet, and bits


def arrays(kind: Kind, samples: int, places: int, channels: int, groups: int) -> dict[str, Any]:
    random = np.random.default_rng(1)
    shape = (samples, places, channels)
    given = {name: random.standard_normal(shape).astype(ml_dtypes.bfloat16) for name in ("dy", "x")}
    given["w"] = random.standard_normal(channels).astype(ml_dtypes.bfloat16)
    given["mu"] = random.standard_normal((samples, groups)).astype(np.float32) / 10
    given["rstd"] = random.uniform(0.5, 2, (samples, groups)).astype(np.float32)
    return given if kind is BACKWARD else {name: given[name] for name in ("x", "w")}


def call(kind: Kind, norm: Any, given: dict[str, Any], **how: Any) -> list[np.ndarray]:
    return [np.asarray(each) for each in getattr(norm, kind.direction)(**given, **how)]


@pytest.mark.parametrize("order", [(1, 0), (2, 1), (2, 7)], ids=str)
def test_the_same_bits_in_any_order_of_blocks_and_threads_and_in_place(
    kind: Kind, order: tuple[int, int]
) -> None:
    """Slices that others have helped with are overwritten by their owners."""
    given, norm = arrays(kind, 2, 50, 130, 13), kind.subject(GROUPS, 13).norm
    apart = call(kind, norm.on(CHECKED), given)
    for over in ("x", "dy") if kind is BACKWARD else ("x",):
        own = {name: array.copy() for name, array in given.items()}
        out = {"dx" if kind is BACKWARD else "y": own[over]}
        made = call(kind, norm.on(HostExecutor(True, *order)), own, out=out)
        assert all(same_bits(one, other) for one, other in zip(apart, made, strict=True))


def test_bits_do_not_depend_on_the_batch(kind: Kind) -> None:
    given, norm = arrays(kind, 5, 90, 40, 4), kind.subject(GROUPS, 4).norm.on(CHECKED)
    together = call(kind, norm, given)[0]
    for sample in range(5):
        one = {n: array if n == "w" else array[sample : sample + 1] for n, array in given.items()}
        assert same_bits(call(kind, norm, one)[0], together[sample : sample + 1])


def test_blocks_help_those_that_do_not_run(kind: Kind) -> None:
    """The first block finds the parts of all others, and reads all of its segment; those then read their
    own."""
    found, executor = kind.subject(GROUPS, 4), HostExecutor(checked=True)
    given = arrays(kind, 1, 128, 64, 4)
    call(kind, found.norm.on(executor), given)
    members = kind.launched(found, "bf16", B=1, G=4, C=16, rest=128).grid[0]
    traffic = next(t for entry, t in executor.history if entry.endswith("_resident"))
    for name in given.keys() & {"x", "dy"}:
        read = {t.name: t.read for t in traffic}[f"{name}_ptr"]
        # its own slice twice, the others' once, and each of the others its own
        assert members == 4 and read == given[name].nbytes * (1 + 1 / members + (members - 1) / members)


def test_scratch_memory_may_hold_anything(kind: Kind) -> None:
    """What tells blocks which parts are there is cleared by the call itself, each time."""
    norm, given = kind.subject(GROUPS, 4).norm.on(CHECKED), arrays(kind, 2, 64, 40, 4)
    needed = norm.workspace(kind.direction, {"B": 2, "C": 10, "...": 64}, "bf16", device=CHECKED.device)
    scratch = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
    (words,) = [name for name in scratch if name.endswith("_resident.words")]
    scratch[words].view(np.uint32)[:] = 0xFFFFFFFF
    usual = call(kind, norm, given)
    for _ in range(2):
        again = call(kind, norm, given, workspace=scratch)
        assert all(same_bits(one, other) for one, other in zip(usual, again, strict=True))


# Names that the texts use themselves.
WORDS = (
    "room", "columns", "own", "totals", "table", "mine", "meeting", "home", "zero", "scratch", "parts",
    "slice", "segment", "t1", "words", "published", "factor_1", "sum_1", "value_1", "all",
)  # fmt: skip


def test_operands_of_such_names(kind: Kind) -> None:
    norm = clashing("B, ..., (G C)", "B, G", "C, ...", "(G C)", WORDS).norm.on(CHECKED)
    given = arrays(kind, 2, 90, 12, 2)
    w = given.pop("w") * 0 + 1
    named = dict.fromkeys(WORDS, w)
    wrt, alike = ({"wrt": ("x", "own")}, {"wrt": ("x", "w")}) if kind is BACKWARD else ({}, {})
    made = call(kind, norm, given | named, **wrt)
    same = call(kind, kind.subject(GROUPS, 2).norm.on(CHECKED), given | {"w": w}, **alike)
    results = [each for each in made if each.dtype != object and each.size > 1]
    for one, other in zip(results, same, strict=False):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-2, atol=1e-1)
