"""Blocks that keep what they read of a segment while they meet, in both directions and in bands: when that is
planned, and what it says of itself."""

from __future__ import annotations

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.registry import family_of
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.resident.launch import segments
from normgen.ir.grad import backward
from normgen.ir.program import Program
from normgen.launching.machine import HOST_MACHINE
from normgen.package.records import PassRecord
from normgen.runtime.planning.choose import alternatives, plan_launches
from tests.codegen.norms import H200, bound
from tests.codegen.residing import BACKWARDS, BANDS, FORWARDS, GAINS, GROUPED, INSTANCES, spec, subject

LAST, BATCHNORM = "groupnorm_channels_last", "batchnorm_channels_last"


def plans(text: str) -> list[dict[str, tuple[object, ...]]]:
    """The strategies of a forward and of its backward, with their plans."""
    definition = load_definition(Source("spec.norm", text), {})
    programs: tuple[Program, ...] = (definition.program, backward(definition))
    return [{s.name: s.plans for s in strategies(p, definition, "n")} for p in programs]


def forms(record: PassRecord) -> list[str]:
    """Of the kernel of the strategy."""
    (found,) = [s for s in record.strategies if s.name == "resident"]
    (kernel,) = found.kernels
    assert found.selective and not found.temporaries
    return [form.form for form in kernel.forms]


def test_kernels_of_the_strategy() -> None:
    both = subject("instances").norm.package
    assert both.backward and forms(both.forward) == ["resident", "clear"]
    assert forms(both.backward) == ["resident_sums", "clear", "second_stage"]
    backward = subject("no gains").norm.package.backward
    assert backward and forms(backward) == ["resident_sums", "clear"]


# Whether the forward of a norm has the strategy, and the backward.
PLANNED = {
    "rows lie side by side": (spec("B, (G C), ...", "B, G", "C, ...", *GAINS), False, False),
    "one segment": (spec("..., (G C)", "G", "C, ...", *GAINS), False, False),
    "rows have gains": (
        spec("B, S, (G C)", "B, G", "C, S", "param w[S]", "param b[S]"), False, False,
    ),
    "two operands": (spec(*GROUPED, "input w[B, ..., (G C)]", "param b[(G C)]"), False, True),
    "what is applied has shorter rows": (
        spec("B, S, (G C), D", "B, G, C", "S, D", "param w[(G C), D] = 1", "param b[D] = 0"), False, False,
    ),
    "sums besides": (spec(*GROUPED, value="(x - mu) * max[C, ...](x)"), False, False),
    "gains of groups": (FORWARDS["gains of groups"], True, False),
    "gains of instances": (spec(*INSTANCES, "input s[B, C]", value="(x - mu) * rstd * s"), True, False),
    **{name: (text, True, "function" not in name) for name, text in BANDS.items()},
    "some axes of bands": (spec("..., (G C)", "G, C", "...", "param w[G]", "param b[C]"), False, False),
    "rows of bands have gains": (spec("S, C", "C", "S", "param w[S]", "param b[S]"), False, False),
}  # fmt: skip


@pytest.mark.parametrize(("text", "forward", "derived"), PLANNED.values(), ids=PLANNED)
def test_norms_that_have_it_in_either_direction(text: str, forward: bool, derived: bool) -> None:
    assert ["resident" in found for found in plans(text)] == [forward, derived]


def test_what_it_says_of_itself() -> None:
    shown = []
    for text in (BACKWARDS["instances"], BANDS["bands of frames"]):
        for found in plans(text):
            (plan,) = found["resident"]
            shown.append(family_of(plan).show(plan))
    _, derived, bands, derived_bands = shown
    assert "  blocks keep their slices of dy, x\n  over rows s1[B, C] = sum[...](dy)\n" in derived
    assert "  members leave s3\n  t1 = s1\n" in derived and "%" not in derived
    assert "  to sum[B](t1) a slice adds s1\n  finally writes dw = " in derived
    assert "  blocks keep their slices of x, and t1, t2, t3 of a band\n" in bands
    assert "  members leave s1\n" in derived_bands and "finally" not in derived_bands
    assert "  writes dw = rstd * " in derived_bands and "  writes db = s3\n" in derived_bands


# ---------------------------------------------------------------------------------------------- the schedule


def test_nearly_as_many_samples_have_the_same_text() -> None:
    package = subject(LAST, 32).norm.package
    for record in (package.forward, package.backward):
        texts = set()
        for samples in (9, 20, 31):
            binding = bound(record, "bf16", B=samples, G=32, C=10, rest=4096)
            plan = plan_launches(record, binding, H200, "resident")
            texts |= {each.source for each in plan.launches if each.entry.endswith("_resident")}
        assert len(texts) == 1


def test_bands_share_no_sectors_if_they_can() -> None:
    lengths = ((512, 2), (512, 4), (192, 4), (1000, 2), (24, 4), (509, 2))
    assert [segments.band_of(*each) for each in lengths] == [64, 32, 32, 200, 24, 509]


@pytest.mark.parametrize(("places", "channels"), [(1, 512), (20000, 509)])
def test_what_is_not_dealt_out(places: int, channels: int) -> None:
    """One row, which a block has, and rows that have no bands."""
    package = subject(BATCHNORM).norm.package
    for record in (package.forward, package.backward):
        binding = bound(record, "f32", C=channels, rest=places)
        found = alternatives(record, binding, HOST_MACHINE)
        assert "resident" not in {a.strategy.name for a in found}
