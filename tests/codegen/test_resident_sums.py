"""Blocks that keep what they read of a segment while their sums meet: when that is planned, how it runs, and
what the compiler makes of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import family_of
from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.errors import ToolchainMissing
from normgen.ir.grad import backward
from normgen.package.kernels import ResidentRecord
from normgen.runtime.planning.choose import Choice, alternatives, candidates, choose_strategy, chosen
from tests.codegen.holding import subject as named
from tests.codegen.norms import H200, bound
from tests.codegen.residing import GAINS, SUMS, adding, spec
from tests.codegen.test_nvcc import DEVICES

# ------------------------------------------------------------------------------------------------- the plan


def planned(text: str) -> list[str]:
    definition = load_definition(Source("spec.norm", text), {})
    return [s.name for s in strategies(backward(definition), definition.source, "n")]


@pytest.mark.parametrize("name", SUMS)
def test_norms_that_have_the_strategy(name):
    (record,) = [s for s in adding(name).norm.package.backward.strategies if s.name == "resident"]
    (kernel,) = record.kernels
    assert isinstance(kernel, ResidentRecord) and not kernel.moments
    assert record.selective and not record.temporaries
    finals = ["finalise"] if kernel.finals else []
    assert [form.form for form in kernel.forms] == ["resident_sums", "clear", *finals]


def test_what_it_says_of_itself():
    definition = load_definition(Source("spec.norm", SUMS["instances"]), {})
    found = strategies(backward(definition), definition.source, "n")
    (plan,) = next(s.plans for s in found if s.name == "resident")
    text = family_of(plan).show(plan)
    assert "  blocks keep their slices of dy, x\n  over rows s1[B, C] = sum[...](dy)\n" in text
    assert "  members leave s3\n  t1 = s1\n" in text and "%" not in text
    assert "  to sum[B](t1) a slice adds s1\n  finally writes dw = " in text


OTHERS = {
    "rows lie side by side": spec("B, (G C), ...", "B, G", "C, ...", *GAINS),
    "one segment": spec("..., (G C)", "G", "C, ...", *GAINS),
    "rows have gains": spec("B, S, (G C)", "B, G", "C, S", "param w[S]", "param b[S]"),
    "gains of groups": spec("B, ..., (G C)", "B, G", "C, ...", "param w[G] = 1", "param b[C] = 0"),
    "gains inside a function": spec(
        "B, ..., (G C)", "B, G", "C, ...", *GAINS, value="silu((x - mu) * rstd * w + b)"
    ),
    "gains of instances": spec("B, ..., C", "B, C", "...", "input s[B, C]", value="(x - mu) * rstd * s"),
    "gains of samples": spec(
        "B, ..., (G C)", "B, G", "C, ...", "input s[B, (G C)]", value="(x - mu) * rstd * s"
    ),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_blocks_cannot_keep(text):
    assert "resident" not in planned(text)


def test_the_texts(golden):
    (kernel,) = [s.kernels[0] for s in named("groupnorm_channels_last", 2).norm.package.backward.strategies
                 if s.name == "resident"]  # fmt: skip
    golden("resident.backward.cu", "\n".join(form.source for form in kernel.forms))


# ---------------------------------------------------------------------------------------------- the schedule


def resident(dtype: str, groups: int, device=H200, **extents: int):
    """The strategy for a call, or nothing where it does not fit."""
    package = named("groupnorm_channels_last", groups).norm.package
    binding = bound(package.backward, dtype, G=groups, **extents)
    found = alternatives(package.backward, binding, device, package.header)
    return next((a for a in found if a.strategy.name == "resident"), None)


def kernel_of(found):
    return next(launch for launch in found.plan.launches if launch.entry.endswith("_resident"))


# Of the bench's grid: element type, samples, groups, channels of one, pixels; blocks of a sample.
FITS = [
    ("bf16", 8, 32, 10, 4096, 16),
    ("f32", 8, 32, 10, 4096, 32),
    ("bf16", 8, 64, 1, 65536, 64),
    ("f32", 8, 64, 1, 65536, 64),  # of which blocks keep two thirds
    ("bf16", 8, 32, 4, 100, 0),  # a block has it
]


@pytest.mark.parametrize(("dtype", "samples", "groups", "channels", "places", "members"), FITS)
def test_blocks_are_few_and_large(dtype, samples, groups, channels, places, members):
    found = resident(dtype, groups, B=samples, C=channels, rest=places)
    assert (found is not None) == bool(members)
    if found is not None:
        launch = kernel_of(found)
        assert launch.grid[0] == samples * members
        assert launch.block[0] <= 640 and launch.shared <= H200.shared_per_block


# Of the bench's grid and beside it: what was measured faster (a team holds the groups of 16 x 16 images).
TAKEN = [
    ("bf16", 8, 32, 10, 64 * 64, "resident"),
    ("f32", 8, 32, 10, 64 * 64, "resident"),
    ("bf16", 2, 32, 10, 64 * 64, "resident"),
    ("bf16", 16, 32, 10, 64 * 64, "resident"),
    ("bf16", 2, 32, 16, 256 * 256, "resident"),
    ("f32", 2, 32, 16, 256 * 256, "resident"),
    ("bf16", 1, 32, 4, 512 * 512, "resident"),
    ("f32", 1, 32, 4, 512 * 512, "resident"),
    ("bf16", 8, 64, 1, 256 * 256, "resident"),
    ("f32", 8, 64, 1, 256 * 256, "resident"),
    ("bf16", 8, 32, 40, 16 * 16, "whole"),
    ("f32", 8, 32, 40, 16 * 16, "whole"),
]


@pytest.mark.parametrize(("dtype", "samples", "groups", "channels", "places", "strategy"), TAKEN)
def test_what_backwards_take(dtype, samples, groups, channels, places, strategy):
    package = named("groupnorm_channels_last", groups).norm.package
    binding = bound(package.backward, dtype, B=samples, G=groups, C=channels, rest=places)
    found = choose_strategy(alternatives(package.backward, binding, H200, package.header))
    assert found.strategy.name == strategy
    if strategy == "resident":
        assert [x.entry.rpartition("_")[2] for x in found.plan.repeated] == ["resident", "finalise"]


def test_neither_the_batch_nor_the_device_changes_the_text():
    texts = set()
    for samples, multiprocessors in ((1, 132), (8, 132), (64, 132), (8, 78), (8, 148)):
        device = replace(H200, multiprocessors=multiprocessors)
        texts.add(kernel_of(resident("bf16", 32, device, B=samples, C=10, rest=4096)).source)
    assert len(texts) == 1


def test_every_offer_can_be_chosen():
    package = named("groupnorm_channels_last", 32).norm.package
    binding = bound(package.backward, "bf16", B=8, G=32, C=10, rest=4096)
    (strategy,) = [s for s in package.backward.strategies if s.name == "resident"]
    (found,) = candidates(strategy, binding, H200, package.header)
    assert len(found) > 8 and len({c.knobs for c in found}) == len(found)
    for candidate in found:
        choice = Choice("resident", {candidate.kernel.name: candidate.knobs})
        alternative = chosen(package.backward, binding, H200, package.header, choice)
        assert alternative.plan.launches == candidate.lowered.launches


# ------------------------------------------------------------------------------------------------------ nvcc

GRID = [
    (8, 32, 10, 4096), (8, 64, 1, 65536), (8, 32, 16, 4096), (4, 32, 3, 8192), (8, 32, 20, 1024),
    (2, 32, 16, 65536), (1, 32, 4, 262144),
]  # fmt: skip


@pytest.mark.nvcc
@pytest.mark.parametrize("shape", GRID, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("arch", DEVICES)
def test_blocks_that_keep_their_slices_spill_nothing(shape, dtype, arch):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    samples, groups, channels, places = shape
    found = resident(dtype, groups, DEVICES[arch], B=samples, C=channels, rest=places)
    if found is None:
        pytest.skip("a sample finds no place there")
    launch = kernel_of(found)
    _, (usage,) = compile_text(launch.source, arch)
    blocks = re.search(r"MIN_BLOCKS = (\d+);", launch.source)
    assert usage.spilled == 0 and blocks is not None
    assert -(-usage.registers // 8) * 8 * launch.block[0] * int(blocks[1]) <= 65536
