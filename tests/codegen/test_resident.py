"""Blocks that keep what they read of a segment while they meet: when that is planned, how it runs, and what
the compiler makes of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.errors import ToolchainMissing
from normgen.package.kernels import ResidentRecord
from normgen.runtime.planning.choose import Choice, alternatives, candidates, choose_strategy, chosen
from tests.codegen.holding import subject as named
from tests.codegen.norms import H200, bound
from tests.codegen.residing import GAINS, TEXTS, spec, subject
from tests.codegen.test_nvcc import DEVICES

# ------------------------------------------------------------------------------------------------- the plan


def planned(text: str) -> list[str]:
    definition = load_definition(Source("spec.norm", text), {})
    return [s.name for s in strategies(definition.program, definition.source, "n")]


@pytest.mark.parametrize("name", TEXTS)
def test_norms_that_have_the_strategy(name):
    (record,) = [s for s in subject(name).norm.package.forward.strategies if s.name == "resident"]
    (kernel,) = record.kernels
    assert (
        isinstance(kernel, ResidentRecord) and kernel.moments and not record.temporaries and record.selective
    )
    assert [form.form for form in kernel.forms] == ["resident", "clear"]


OTHERS = {
    "rows lie side by side": spec("B, (G C), ...", "B, G", "C, ...", *GAINS),
    "one segment": spec("..., (G C)", "G", "C, ...", *GAINS),
    "rows have gains": spec("B, S, (G C)", "B, G", "C, S", "param w[S]", "param b[S]"),
    "two operands": spec("B, ..., (G C)", "B, G", "C, ...", "input w[B, ..., (G C)]", "param b[(G C)]"),
    "what is applied has shorter rows": spec(
        "B, S, (G C), D", "B, G, C", "S, D", "param w[(G C), D] = 1", "param b[D] = 0"
    ),
    "sums besides": spec("B, ..., (G C)", "B, G", "C, ...", value="(x - mu) * max[C, ...](x)"),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_what_blocks_cannot_keep(text):
    assert "resident" not in planned(text)


def test_the_texts(golden):
    (kernel,) = [s.kernels[0] for s in named("groupnorm_channels_last", 2).norm.package.forward.strategies
                 if s.name == "resident"]  # fmt: skip
    golden("resident.cu", "\n".join(form.source for form in kernel.forms))


# ---------------------------------------------------------------------------------------------- the schedule


def resident(dtype: str, groups: int, device=H200, name="groupnorm_channels_last", **extents: int):
    """The strategy for a call, or nothing where it does not fit."""
    package = named(name, groups).norm.package
    binding = bound(package.forward, dtype, G=groups, **extents)
    found = alternatives(package.forward, binding, device, package.header)
    return next((a for a in found if a.strategy.name == "resident"), None)


# Of the bench's grid: element type, samples, groups, channels of one, pixels; blocks of a sample.
FITS = [
    ("bf16", 8, 32, 10, 4096, 32),  # two on a multiprocessor; 16 would have one each
    ("f32", 8, 32, 10, 4096, 32),
    ("bf16", 8, 32, 20, 1024, 16),
    ("bf16", 8, 64, 1, 65536, 32),
    ("bf16", 2, 32, 16, 65536, 127),  # 67 MB, of which blocks keep two thirds
    ("f32", 2, 32, 16, 65536, 128),  # 134 MB, of which they keep a third
    ("f32", 1, 32, 16, 262144, 0),
    ("bf16", 8, 32, 4, 100, 0),  # a block has it
]


@pytest.mark.parametrize(("dtype", "samples", "groups", "channels", "places", "members"), FITS)
def test_blocks_are_few_and_large(dtype, samples, groups, channels, places, members):
    found = resident(dtype, groups, B=samples, C=channels, rest=places)
    assert (found is not None) == bool(members)
    if found is not None:
        _, launch = found.plan.launches
        assert launch.grid[0] == samples * members
        assert launch.block[0] <= 640 and launch.shared <= H200.shared_per_block


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_when_it_should_be_fastest(dtype):
    package = named("groupnorm_channels_last", 32).norm.package

    def fastest(**extents: int) -> str:
        binding = bound(package.forward, dtype, G=32, **extents)
        found = alternatives(package.forward, binding, H200, package.header)
        return choose_strategy(found).strategy.name

    assert fastest(B=8, C=10, rest=4096) == fastest(B=32, C=10, rest=4096) == "resident"
    assert fastest(B=8, C=40, rest=256) == "whole"
    assert fastest(B=8, C=10, rest=1024) != "folded"  # whose kernel in between takes 2 to 3 us
    assert fastest(B=1, C=10, rest=4096) == "whole"  # few blocks


def test_what_blocks_do_not_hold_is_read_twice():
    launch = resident("bf16", 32, B=1, C=4, rest=262144).plan.launches[-1]
    found = dict(re.findall(r"constexpr int (DEPTH|SLOTS|AGAIN) = (\d+);", launch.source))
    assert found == {"DEPTH": "52", "SLOTS": "20", "AGAIN": "25"}  # and seven in registers, as measured


def test_neither_the_batch_nor_the_device_changes_the_text():
    texts = set()
    for samples, multiprocessors in ((1, 132), (8, 132), (64, 132), (8, 78), (8, 148)):
        device = replace(H200, multiprocessors=multiprocessors)
        found = resident("bf16", 32, device, B=samples, C=10, rest=4096)
        texts.add(found.plan.launches[-1].source)
    assert len(texts) == 1


def test_every_offer_can_be_chosen():
    package = named("groupnorm_channels_last", 32).norm.package
    binding = bound(package.forward, "bf16", B=8, G=32, C=10, rest=4096)
    (strategy,) = [s for s in package.forward.strategies if s.name == "resident"]
    (found,) = candidates(strategy, binding, H200, package.header)
    assert len(found) > 8 and len({c.knobs for c in found}) == len(found)
    for candidate in found:
        choice = Choice("resident", {candidate.kernel.name: candidate.knobs})
        alternative = chosen(package.forward, binding, H200, package.header, choice)
        assert alternative.plan.launches == candidate.lowered.launches
    usual = resident("bf16", 32, B=8, C=10, rest=4096)
    assert found[0].lowered.launches == usual.plan.launches


# ------------------------------------------------------------------------------------------------------ nvcc

# Bytes that some spill which apply an exponential.
SPILLED = {
    ("sm_80", "f32", (8, 32, 16, 4096)): 8,
    ("sm_80", "f32", (8, 32, 20, 1024)): 8,
    ("sm_80", "f32", (8, 64, 1, 65536)): 8,
    ("sm_90", "bf16", (8, 32, 16, 4096)): 20,
}
GRID = [
    (8, 32, 10, 4096), (8, 64, 1, 65536), (8, 32, 16, 4096), (4, 32, 3, 8192), (8, 32, 20, 1024),
    (2, 32, 16, 65536), (1, 32, 4, 262144),
]  # fmt: skip


@pytest.mark.nvcc
@pytest.mark.parametrize("shape", GRID, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("name", ["groupnorm_channels_last", "groupnorm_silu_channels_last"])
def test_blocks_that_keep_their_slices_spill_nothing(name, shape, dtype, arch):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    samples, groups, channels, places = shape
    found = resident(dtype, groups, DEVICES[arch], name, B=samples, C=channels, rest=places)
    if found is None:
        pytest.skip("a sample finds no place there")
    launch = found.plan.launches[-1]
    _, (usage,) = compile_text(launch.source, arch)
    blocks = re.search(r"MIN_BLOCKS = (\d+);", launch.source)
    allowed = SPILLED.get((arch, dtype, shape), 0) if "silu" in name else 0
    assert usage.spilled <= allowed and blocks is not None
    assert -(-usage.registers // 8) * 8 * launch.block[0] * int(blocks[1]) <= 65536
