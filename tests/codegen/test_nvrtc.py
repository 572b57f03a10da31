"""NVRTC compiles what nvcc does: texts of every bundled spec, of every form, and of many kinds of calls."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.codegen.package import package
from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.dsl import load_definition
from normgen.launching.launch import Launch
from normgen.measure.clock import launch_of
from normgen.package.device_functions import inlined
from normgen.runtime.calls.utility_kernels import copy_launch, fill_launch
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.ways import first, of_form
from tests.fakes.machine import need_nvrtc
from tests.sampling import sampled
from tests.test_snapshot import ATTRS, CALLS, HOPPER, binding_of, lengths_of

# Of each spec one direction, in a kind of call after the other.
KINDS = [call[1:] for call in CALLS if call[0] is HOPPER]
SPECS = [
    (name, ("forward", "backward")[place % 2], *KINDS[place % len(KINDS)])
    for place, name in enumerate(bundled.names())
]
# Forms, of which those of rows are asked for: spec, direction, element type, length of a row, of other axes,
# elements between.
FORMS = {
    "clear": ("rmsnorm", "forward", "f32", 262144, 2, 0),
    "cooperative": ("rmsnorm", "forward", "f32", 262144, 2, 0),
    "row_tile": ("softmax", "forward", "bf16", 333, 5, 0),
    "split": ("batchnorm", "backward", "bf16", 4096, 9000, 0),
    "batch": ("batchnorm_channels_last", "forward", "bf16", 300, 8, 0),
    "resident": ("batchnorm_channels_last", "forward", "bf16", 4097, 300, 0),
    "overlapped": ("layernorm", "backward", "f32", 65536, 8, 0),
    "word_aligned": ("layernorm", "backward", "bf16", 4097, 300, 0),
    "direct": ("local_response_norm", "backward", "f16", 1030, 16, 2),
    "tiles": ("rmsnorm_fp8", "forward", "bf16", 4096, 8, 0),
    "second_stage": ("rmsnorm", "backward", "bf16", 4096, 9000, 0),
}


WITH = {"clear": "cooperative", "second_stage": "pipeline"}  # that have such a launch beside them


@pytest.fixture(autouse=True)
def _needs_nvrtc() -> None:
    need_nvrtc()


def launches(name: str, direction: str, dtype: str, size: int, rest: int, gap: int) -> list[Launch]:
    """What a call of a bundled spec launches; forward where it has no backward."""
    made = package(load_definition(bundled.read(name), ATTRS.get(name, {})))
    record = getattr(made, direction) or made.forward
    binding = binding_of(record, dtype, lengths_of(made, record, size, rest), gap)
    return list(plan_launches(record, binding, HOPPER).launches)


def check(launch: Launch) -> None:
    """The text compiles and has the entry."""
    assert f".entry {launch.entry}(" in Nvrtc().build(inlined(launch.source), "sm_90", "ptx").decode()


@pytest.mark.nvrtc
@pytest.mark.parametrize("call", sampled(SPECS, *range(1, len(SPECS), 20)))
def test_a_spec_compiles(call: tuple[str, str, str, int, int, int]) -> None:
    check(launches(*call)[0])


@pytest.mark.nvrtc
@pytest.mark.parametrize("form", sampled(FORMS, 0, 1, 3, 5, 6, 9))
def test_a_form_compiles(form: str) -> None:
    with first(of_form(WITH.get(form, form))):
        launched = launches(*FORMS[form])
    check(next(each for each in launched if each.entry.endswith(f"_{form}")))


@pytest.mark.nvrtc
def test_what_copies_fills_and_measures_compiles() -> None:
    check(copy_launch("x", "y", (3, 5, 7), (70, 14, 2), 2))
    check(fill_launch("x", 100, 4, 0))
    check(launch_of("spin", 1, 1, "q"))
