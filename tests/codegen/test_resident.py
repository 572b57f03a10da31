"""Blocks that keep what they read of a segment while they meet, in both directions and in bands: when that is
planned, and what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import family_of
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.resident.launch import segments
from normgen.ir.grad import backward
from normgen.launching.machine import HOST_MACHINE
from normgen.package.kernels import ResidentRecord
from normgen.runtime.planning.choose import Choice, alternatives, candidates, chosen
from tests.codegen import banding
from tests.codegen.holding import subject as named
from tests.codegen.norms import H200, bound
from tests.codegen.residing import GAINS, SUMS, TEXTS, adding, spec, subject
from tests.sampling import sampled

LAST = "groupnorm_channels_last"


def planned(text: str) -> tuple[bool, bool]:
    """Whether a forward has the strategy, and its backward."""
    definition = load_definition(Source("spec.norm", text), {})
    programs = (definition.program, backward(definition))
    forward, derived = (
        "resident" in [s.name for s in strategies(p, definition.source, "n")] for p in programs
    )
    return forward, derived


@pytest.mark.parametrize("name", TEXTS)
def test_forwards_that_have_the_strategy(name: str) -> None:
    (record,) = [s for s in subject(name).norm.package.forward.strategies if s.name == "resident"]
    (kernel,) = record.kernels
    assert isinstance(kernel, ResidentRecord) and kernel.moments
    assert record.selective and not record.temporaries
    assert [form.form for form in kernel.forms] == ["resident", "clear"]


@pytest.mark.parametrize("name", SUMS)
def test_backwards_that_have_the_strategy(name: str) -> None:
    (record,) = [s for s in adding(name).norm.package.backward.strategies if s.name == "resident"]
    (kernel,) = record.kernels
    assert isinstance(kernel, ResidentRecord) and not kernel.moments
    assert record.selective and not record.temporaries
    finals = ["second_stage"] if kernel.finals else []
    assert [form.form for form in kernel.forms] == ["resident_sums", "clear", *finals]


PLAIN = ("B, ..., (G C)", "B, G", "C, ...")
SCALED = "(x - mu) * rstd * s"
# Whether the forward of a norm has the strategy, and the backward.
PLANNED = {
    "rows lie side by side": (spec("B, (G C), ...", "B, G", "C, ...", *GAINS), False, False),
    "one segment": (spec("..., (G C)", "G", "C, ...", *GAINS), False, False),
    "rows have gains": (
        spec("B, S, (G C)", "B, G", "C, S", "param w[S]", "param b[S]"), False, False,
    ),
    "two operands": (spec(*PLAIN, "input w[B, ..., (G C)]", "param b[(G C)]"), False, True),
    "what is applied has shorter rows": (
        spec("B, S, (G C), D", "B, G, C", "S, D", "param w[(G C), D] = 1", "param b[D] = 0"), False, False,
    ),
    "sums besides": (spec(*PLAIN, value="(x - mu) * max[C, ...](x)"), False, False),
    "gains of groups": (spec(*PLAIN, "param w[G] = 1", "param b[C] = 0"), True, False),
    "gains inside a function": (spec(*PLAIN, *GAINS, value="silu((x - mu) * rstd * w + b)"), True, False),
    "gains of instances": (spec("B, ..., C", "B, C", "...", "input s[B, C]", value=SCALED), True, False),
    "gains of samples": (spec(*PLAIN, "input s[B, (G C)]", value=SCALED), True, False),
    **{f"bands: {name}": (text, True, name != "an activation") for name, text in banding.TEXTS.items()},
    "bands: some axes": (spec("..., (G C)", "G, C", "...", "param w[G]", "param b[C]"), False, False),
    "bands: rows have gains": (spec("S, C", "C", "S", "param w[S]", "param b[S]"), False, False),
}  # fmt: skip


@pytest.mark.parametrize(("text", "forward", "derived"), PLANNED.values(), ids=PLANNED)
def test_norms_that_have_it_in_either_direction(text: str, forward: bool, derived: bool) -> None:
    assert planned(text) == (forward, derived)


def shown(text: str) -> list[str]:
    """What the strategy says of itself, forward and backward."""
    definition = load_definition(Source("spec.norm", text), {})
    texts = []
    for program in (definition.program, backward(definition)):
        found = strategies(program, definition.source, "n")
        (plan,) = next(s.plans for s in found if s.name == "resident")
        texts.append(family_of(plan).show(plan))
    return texts


def test_what_it_says_of_itself() -> None:
    _, derived = shown(SUMS["instances"])
    assert "  blocks keep their slices of dy, x\n  over rows s1[B, C] = sum[...](dy)\n" in derived
    assert "  members leave s3\n  t1 = s1\n" in derived and "%" not in derived
    assert "  to sum[B](t1) a slice adds s1\n  finally writes dw = " in derived
    forward, derived = shown(banding.TEXTS["channels"])
    assert "  blocks keep their slices of x, and t1, t2, t3 of a band\n" in forward
    assert "  members leave s1\n" in derived and "finally" not in derived
    assert "  writes dw = rstd * " in derived and "  writes db = s3\n" in derived


@pytest.mark.parametrize(
    ("file", "direction"), [("resident.cu", "forward"), ("resident.backward.cu", "backward")]
)
def test_the_texts(file: str, direction: str, golden: Callable[[str, str], None]) -> None:
    record = getattr(named(LAST, 2).norm.package, direction)
    (kernel,) = [s.kernels[0] for s in record.strategies if s.name == "resident"]
    golden(file, "\n".join(form.source for form in kernel.forms))


def test_one_block_of_a_band_reads_and_writes_what_is_updated() -> None:
    """The others' values of a state are not stored, and might be new already. And gradients of gains take no
    further kernel."""
    package = banding.subject(banding.BATCHNORM).norm.package
    (kernel,) = next(s.kernels for s in package.forward.strategies if s.name == "resident")
    text = kernel.forms[0].source
    assert "READ_RUNNING_MEAN && home == 0 ? load_state(running_mean_ptr + column) : 0.f" in text
    stored = r"if \(WANT_RUNNING_MEAN && home == 0\) \{?\s*store_scalar<false>\(\s*running_mean_ptr \+ column"
    assert re.search(stored, text)
    (kernel,) = next(s.kernels for s in package.backward.strategies if s.name == "resident")
    assert [form.form for form in kernel.forms] == ["resident_sums", "clear"]
    assert not kernel.columns and {o.tensor for o in kernel.finals} == {"dw", "db"}


# ---------------------------------------------------------------------------------------------- the schedule

CALLS = {
    "forward": (LAST, 32, {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    "backward": (LAST, 32, {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    "forward, bands": (banding.BATCHNORM, 0, {"C": 512, "rest": 64 * 196}),
    "backward, bands": (banding.BATCHNORM, 0, {"C": 512, "rest": 64 * 196}),
}


@pytest.mark.parametrize("call", CALLS)
def test_neither_the_batch_nor_the_device_changes_the_text(call: str) -> None:
    name, groups, extents = CALLS[call]
    package = named(name, groups).norm.package
    record = getattr(package, call.partition(",")[0])
    texts = set()
    for samples, multiprocessors in ((8, 132), (64, 132), (8, 78), (8, 148)):
        device = replace(H200, multiprocessors=multiprocessors)
        sizes = extents | ({"B": samples} if "B" in extents else {})
        found = alternatives(record, bound(record, "bf16", **sizes), device)
        plan = next(a.plan for a in found if a.strategy.name == "resident")
        texts |= {each.source for each in plan.launches if each.entry.endswith("_resident")}
    assert len(texts) == 1


@pytest.mark.parametrize("call", sampled(CALLS, 0, 3))
def test_every_offer_can_be_chosen(call: str) -> None:
    name, groups, extents = CALLS[call]
    package = named(name, groups).norm.package
    record = getattr(package, call.partition(",")[0])
    binding = bound(record, "bf16", **extents)
    (strategy,) = [s for s in record.strategies if s.name == "resident"]
    (found,) = candidates(strategy, binding, H200)
    assert len(found) > 6 and len({c.knobs for c in found}) == len(found)
    for candidate in found:
        choice = Choice("resident", {candidate.kernel.name: candidate.knobs})
        alternative = chosen(record, binding, H200, choice)
        assert alternative is not None and alternative.plan.launches == candidate.lowered.launches


@pytest.mark.parametrize(
    ("length", "itemsize", "expected"),
    [(512, 2, 64), (512, 4, 32), (320, 2, 64), (192, 4, 32), (1000, 2, 200), (24, 4, 24), (509, 2, 509)],
)
def test_bands_share_no_sectors_if_they_can(length: int, itemsize: int, expected: int) -> None:
    assert segments.band_of(length, itemsize) == expected


@pytest.mark.parametrize(("places", "channels"), [(64, 512), (20000, 509)])
def test_what_is_not_dealt_out(places: int, channels: int) -> None:
    """Few rows, which a block has, and rows that have no bands."""
    package = banding.subject(banding.BATCHNORM).norm.package
    for record in (package.forward, package.backward):
        binding = bound(record, "f32", C=channels, rest=places)
        found = alternatives(record, binding, HOST_MACHINE)
        assert "resident" not in {a.strategy.name for a in found}
