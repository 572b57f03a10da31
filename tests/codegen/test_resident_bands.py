"""Blocks that keep bands of an only segment while they meet: statistics of channels that come last, over all
samples. When that is planned, how it runs, and that it is right in both directions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.package import package
from normgen.codegen.show import show_strategies
from normgen.codegen.strategies import PlannedStrategy, strategies
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.proof.draw import Sample
from normgen.proof.expected import Subject
from normgen.runtime import residence, resident_schedule, resident_sums_schedule
from normgen.runtime.errors import ToolchainMissing
from normgen.runtime.host import DEVICE, SHARED_PER_BLOCK, HostExecutor
from normgen.runtime.launch import Choice, alternatives, candidates, choose_strategy, chosen, plan_launches
from normgen.runtime.norm import Norm
from normgen.runtime.nvcc import compile_text, find_nvcc
from tests.codegen.holding import case
from tests.codegen.holding import subject as named
from tests.codegen.norms import H200, bound
from tests.codegen.residing import LESS, spec
from tests.codegen.test_nvcc import DEVICES
from tests.proof.subjects import CHECKED, prove, same_bits

GAINS = ("param w[C] = 1", "param b[C] = 0")
TEXTS = {
    "channels": spec("..., C", "C", "...", *GAINS),
    "frames": spec("T, S, C", "C", "T, S", *GAINS),
    "rows of two axes": spec("..., (G C)", "G, C", "...", "param w[(G C)] = 1", "param b[(G C)] = 0"),
    "no gains": spec("..., C", "C", "...", value="(x - mu) * rstd"),
    "an activation": spec("..., C", "C", "...", *GAINS, value="silu((x - mu) * rstd * w + b)"),
}
OTHERS = {
    "groups": spec("..., (G C)", "G", "C, ...", "param w[(G C)] = 1", "param b[(G C)] = 0"),
    "gains of some axes": spec("..., (G C)", "G, C", "...", "param w[G]", "param b[C]"),
    "rows have gains": spec("S, C", "C", "S", "param w[S]", "param b[S]"),
}
BATCHNORM = "batchnorm_channels_last"


def subject(name: str) -> Subject:
    """A norm whose strategy is this one, with plans of its own."""
    if name in TEXTS:
        definition = load_definition(Source(f"{name}.norm", TEXTS[name]), {})
        derived = None if "activation" in name else backward(definition)
        found = Subject(definition, derived, Norm(package(definition)), "resident")
    else:
        found = named(name, 0, "resident")
    planner = partial(plan_launches, strategy="resident")
    return replace(found, norm=Norm(found.norm.package, planner=planner))


# ------------------------------------------------------------------------------------------------- the plan


def planned(text: str) -> list[list[str]]:
    definition = load_definition(Source("spec.norm", text), {})
    programs = (definition.program, backward(definition))
    return [[s.name for s in strategies(p, definition.source, "n")] for p in programs]


@pytest.mark.parametrize("name", TEXTS)
def test_norms_that_have_bands(name):
    forward, derived = planned(TEXTS[name])
    assert "resident" in forward
    assert ("resident" in derived) == (name != "an activation")  # whose values are no sums with factors


@pytest.mark.parametrize("name", OTHERS)
def test_norms_that_have_none(name):
    assert not any("resident" in found for found in planned(OTHERS[name]))


def test_what_they_say_of_themselves():
    definition = load_definition(Source("spec.norm", TEXTS["channels"]), {})
    texts = []
    for program in (definition.program, backward(definition)):
        found = strategies(program, definition.source, "n")
        (plan,) = next(s.plans for s in found if s.name == "resident")
        texts.append(show_strategies((PlannedStrategy("resident", (plan,)),)))
    assert "  blocks keep their slices of x, and t1, t2, t3 of a band\n" in texts[0]
    assert "  members leave s1\n" in texts[1] and "finally" not in texts[1]
    assert "  writes dw = rstd * " in texts[1] and "  writes db = s3\n" in texts[1]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_how_they_run_is_said(direction):
    found, _ = of(direction, "bf16", 64 * 196, 512)
    assert any("a band in 16 blocks of " in note for note in found["resident"].plan.notes)


def test_gradients_of_gains_take_no_further_kernel():
    (strategy,) = [s for s in subject(BATCHNORM).norm.package.backward.strategies if s.name == "resident"]
    (kernel,) = strategy.kernels
    assert [form.form for form in kernel.forms] == ["resident_sums", "clear"]
    assert not kernel.columns and {o.tensor for o in kernel.finals} == {"dw", "db"}


def test_one_block_reads_what_it_updates():
    """The others' values of a state are not stored, and might be new already."""
    package = subject(BATCHNORM).norm.package
    (kernel,) = next(s.kernels for s in package.forward.strategies if s.name == "resident")
    text = kernel.forms[0].source
    assert "running_mean_ptr += band * LENGTH;" in text
    assert "READ_RUNNING_MEAN && home == 0 ? load_state(running_mean_ptr + column) : 0.f" in text
    assert "if (WANT_RUNNING_MEAN && home == 0) store_scalar<false>(running_mean_ptr + column, " in text


# ---------------------------------------------------------------------------------------------- the schedule


def of(direction: str, dtype: str, places: int, channels: int, device=H200):
    """The strategies for a call, and which of them is taken."""
    package = subject(BATCHNORM).norm.package
    record = package.forward if direction == "forward" else package.backward
    found = alternatives(record, bound(record, dtype, C=channels, rest=places), device, package.header)
    return {a.strategy.name: a for a in found}, choose_strategy(found).strategy.name


def dealt(alternative) -> tuple[int, ...]:
    """Columns of a band, its blocks, their threads, rows of a team and those that are read twice."""
    launch = next(x for x in alternative.plan.launches if x.entry.endswith("_resident"))
    numbers = dict(re.findall(r"constexpr int (\w+) = (\d+);", launch.source))
    names = ("LENGTH", "MEMBERS", "THREADS", "DEPTH", "AGAIN")
    return tuple(int(numbers[name]) for name in names)


# As measured: the fastest of 5 to 16 ways, or within 4 % of it.
WAYS = [
    ("forward", "bf16", 256 * 196, 512, (64, 16, 512, 49, 16)),
    ("forward", "f32", 256 * 196, 512, (32, 16, 512, 49, 9)),
    ("forward", "bf16", 64 * 196, 512, (64, 16, 256, 25, 0)),
    ("forward", "f32", 64 * 196, 512, (32, 8, 512, 25, 0)),
    ("forward", "bf16", 32 * 784, 256, (64, 32, 256, 25, 0)),
    ("forward", "bf16", 256 * 49, 2048, (64, 4, 512, 49, 16)),
    ("forward", "bf16", 128 * 3136, 64, (64, 128, 512, 49, 16)),
    ("forward", "bf16", 32 * 49, 512, (64, 10, 256, 5, 0)),
    ("forward", "bf16", 64 * 3136, 64, (64, 126, 512, 25, 0)),
    ("backward", "bf16", 256 * 196, 512, (64, 32, 512, 25, 6)),
    ("backward", "f32", 256 * 196, 512, (32, 32, 512, 25, 3)),
    ("backward", "bf16", 64 * 196, 512, (64, 16, 512, 13, 0)),
    ("backward", "f32", 32 * 784, 256, (32, 16, 512, 25, 3)),
    ("backward", "bf16", 128 * 3136, 64, (64, 128, 512, 49, 30)),
]


@pytest.mark.parametrize(("direction", "dtype", "places", "channels", "expected"), WAYS)
def test_bands_are_in_place_at_once_or_read_little_twice(direction, dtype, places, channels, expected):
    found, taken = of(direction, dtype, places, channels)
    assert dealt(found["resident"]) == expected and taken == "resident"


# Tensors of which a band finds no place, or which take so many rounds that reading twice is as fast.
LARGE = [
    ("bf16", 256 * 3136, 256, "split", "split"),
    ("f32", 256 * 3136, 256, "split", "split"),
    ("bf16", 256 * 12544, 64, "split", "split"),
    ("f32", 256 * 3136, 64, "split", "split"),
    ("bf16", 256 * 784, 512, "resident", "split"),
]


@pytest.mark.parametrize(("dtype", "places", "channels", "forward", "derived"), LARGE)
def test_large_tensors_are_read_twice(dtype, places, channels, forward, derived):
    assert of("forward", dtype, places, channels)[1] == forward
    assert of("backward", dtype, places, channels)[1] == derived


@pytest.mark.parametrize(
    ("length", "itemsize", "expected"),
    [(512, 2, 64), (512, 4, 32), (320, 2, 64), (96, 2, 96), (192, 4, 32), (1000, 2, 200), (64, 2, 64),
     (24, 4, 24), (80, 4, 40), (130, 4, 65), (250, 4, 50), (509, 2, 509)],
)  # fmt: skip
def test_bands_share_no_sectors_if_they_can(length, itemsize, expected):
    assert residence.band_of(length, itemsize) == expected


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_device_changes_no_text(direction):
    texts = set()
    for multiprocessors in (132, 78, 148):
        device = replace(H200, multiprocessors=multiprocessors)
        found, _ = of(direction, "bf16", 64 * 196, 512, device)
        texts.add(found["resident"].plan.launches[-1].source)
    assert len(texts) == 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_offer_can_be_chosen(direction):
    package = subject(BATCHNORM).norm.package
    record = package.forward if direction == "forward" else package.backward
    binding = bound(record, "bf16", C=512, rest=12544)
    (strategy,) = [s for s in record.strategies if s.name == "resident"]
    (found,) = candidates(strategy, binding, H200, package.header)
    assert len(found) > 6 and len({c.offer.knobs for c in found}) == len(found)
    for candidate in found:
        choice = Choice("resident", {candidate.kernel.name: candidate.offer.knobs})
        alternative = chosen(record, binding, H200, package.header, choice)
        assert alternative.plan.launches == candidate.planned.launches


# ---------------------------------------------------------------------------------------------- what it gives


@pytest.fixture
def dealt_out(monkeypatch):
    """Narrow bands in small blocks, however short a segment is; some of their rows are in registers, and some
    in shared memory."""

    def small(threads: int = 64, blocks: int = 12, depth: int = 96, warps: int = 24) -> None:
        for name, value in {
            "BAND_BYTES": 32, "BANDED_BLOCKS": blocks, "BANDED_SLICE": 256, "DEPTH_BYTES": depth
        }.items():  # fmt: skip
            monkeypatch.setattr(residence, name, value)
        monkeypatch.setattr(resident_schedule, "BAND_WAYS", ((threads, 32 * warps // threads),))
        fewer = max(1, 32 * (warps - 8) // threads)
        monkeypatch.setattr(resident_sums_schedule, "BAND_WAYS", ((threads, fewer),))

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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16", "f16", "bf16, params f32"])
def test_channels_that_come_last(dealt_out, shape, dtypes):
    channels, places = shape
    run(BATCHNORM, dtypes, C=channels, rest=places)


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize("name", TEXTS)
def test_other_norms(dealt_out, name, dtypes):
    axes = {a.name for a in subject(name).norm.package.axes}
    lengths = {"T": 3, "S": 37, "C": 48, "rest": 110}
    lengths = {n: k for n, k in lengths.items() if n in axes or (n == "rest" and "..." in axes)}
    directions = ("forward",) if "activation" in name else ("forward", "backward")
    dealt_out(warps=16)
    run(name, dtypes, directions=directions, **lengths)


@pytest.mark.parametrize("less", LESS, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
def test_less_or_more(dealt_out, less, dtypes):
    run(BATCHNORM, dtypes, less=less, C=48, rest=90)


@pytest.mark.parametrize("less", [{"accumulate": True}, {"wrt": ("x",)}, {"wrt": ("x", "w")}], ids=str)
def test_less_or_more_of_gradients(dealt_out, less):
    for dtypes in ("f32", "bf16"):
        run(BATCHNORM, dtypes, less=less, directions=("backward",), C=48, rest=90)


@pytest.mark.parametrize(("threads", "blocks"), [(32, 200), (128, 6)])
@pytest.mark.parametrize("warps", [16, 28])
def test_more_or_fewer_blocks(dealt_out, threads, blocks, warps):
    """More members than bits of a word, and two; rows in registers alone, and in shared memory too."""
    dealt_out(threads, blocks, 96, warps)
    run(BATCHNORM, "f32", C=16, rest=900)


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize("places", [1100, 1537, 1456])
def test_rows_that_are_read_twice(monkeypatch, places, dtypes):
    values = {"MOST_MEMBERS": 3, "DEPTH": 2, "STATIC_SHARED": SHARED_PER_BLOCK - 14000}
    values |= {"BAND_BYTES": 32, "BANDED_BLOCKS": 18}
    for name, value in values.items():
        monkeypatch.setattr(residence, name, value)
    for schedule in (resident_schedule, resident_sums_schedule):
        monkeypatch.setattr(schedule, "BAND_WAYS", ())
        monkeypatch.setattr(schedule, "LONG_BAND_WAYS", (64,))
    for direction in ("forward", "backward"):
        found, _ = of(direction, dtypes, places, 48, DEVICE)
        *_, depth, again = dealt(found["resident"])
        assert 0 < again < depth - 2
    for over in (False, True):
        run(BATCHNORM, dtypes, less={"in_place": over}, C=48, rest=places)
    run(BATCHNORM, dtypes, {"x": Sample("normal", 1e6 if dtypes == "f32" else 100.0, 1.0)}, C=48, rest=places)


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 1), (2, 2), (2, 7)], ids=str)
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
    words = ("band", "segment", "home", "table", "totals", "columns", "factors", "words", "met")
    params = [f"param {word}[C] = 1" for word in words]
    text = spec("..., C", "C", "...", *params, value=f"(x - mu) * rstd * {' * '.join(words)}")
    definition = load_definition(Source("clash.norm", text), {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy="resident")).on(CHECKED)
    x = np.random.default_rng(2).standard_normal((180, 24)).astype(np.float32)
    found = norm.forward(x=x, **{word: np.ones(24, np.float32) for word in words}).y
    np.testing.assert_allclose(found, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("places", "channels"), [(64, 512), (20000, 509)])
def test_what_is_not_dealt_out(places, channels):
    """Few rows, which a block has, and rows that have no bands."""
    package = subject(BATCHNORM).norm.package
    for record in (package.forward, package.backward):
        found = alternatives(record, bound(record, "f32", C=channels, rest=places), DEVICE, package.header)
        assert "resident" not in {a.strategy.name for a in found}


# ------------------------------------------------------------------------------------------------------ nvcc


@pytest.mark.nvcc
@pytest.mark.parametrize(("direction", "dtype", "places", "channels"), [way[:4] for way in WAYS])
@pytest.mark.parametrize("arch", DEVICES)
def test_blocks_that_keep_bands_spill_nothing(direction, dtype, places, channels, arch):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    found, _ = of(direction, dtype, places, channels, DEVICES[arch])
    if "resident" not in found:
        pytest.skip("a band finds no place there")
    launch = found["resident"].plan.launches[-1]
    _, (usage,) = compile_text(launch.source, arch)
    blocks = re.search(r"MIN_BLOCKS = (\d+);", launch.source)
    assert usage.spilled == 0 and blocks is not None
    assert -(-usage.registers // 8) * 8 * launch.block[0] * int(blocks[1]) <= 65536
