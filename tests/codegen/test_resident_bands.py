"""Blocks that keep bands of an only segment while they meet: when that is planned, how it runs, and what the
compiler makes of it."""

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
from normgen.families.resident.launch import segments
from normgen.ir.grad import backward
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.planning.choose import Choice, alternatives, candidates, chosen
from tests.codegen.banding import BATCHNORM, TEXTS, dealt, of, subject
from tests.codegen.norms import H200, bound
from tests.codegen.residing import spec
from tests.codegen.test_nvcc import DEVICES

OTHERS = {
    "groups": spec("..., (G C)", "G", "C, ...", "param w[(G C)] = 1", "param b[(G C)] = 0"),
    "gains of some axes": spec("..., (G C)", "G, C", "...", "param w[G]", "param b[C]"),
    "rows have gains": spec("S, C", "C", "S", "param w[S]", "param b[S]"),
}

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
        texts.append(family_of(plan).show(plan))
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
    assert segments.band_of(length, itemsize) == expected


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
    assert len(found) > 6 and len({c.knobs for c in found}) == len(found)
    for candidate in found:
        choice = Choice("resident", {candidate.kernel.name: candidate.knobs})
        alternative = chosen(record, binding, H200, package.header, choice)
        assert alternative.plan.launches == candidate.lowered.launches


@pytest.mark.parametrize(("places", "channels"), [(64, 512), (20000, 509)])
def test_what_is_not_dealt_out(places, channels):
    """Few rows, which a block has, and rows that have no bands."""
    package = subject(BATCHNORM).norm.package
    for record in (package.forward, package.backward):
        found = alternatives(
            record, bound(record, "f32", C=channels, rest=places), HOST_MACHINE, package.header
        )
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
