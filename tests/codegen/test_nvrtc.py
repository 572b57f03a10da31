"""NVRTC compiles what nvcc does: texts of every bundled spec, of every form, and of many kinds of calls."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.launching.launch import Launch, LaunchPlan
from normgen.measure.clock import launch_of
from normgen.package.device_functions import inlined
from normgen.runtime.calls.utility_kernels import copy_launch, fill_launch
from normgen.runtime.planning.choose import alternatives
from tests.codegen.norms import packaged
from tests.codegen.ways import first, of_form
from tests.covering import CALLS, HOPPER, Call
from tests.sampling import sampled

# Of each spec one direction, in a kind of call after the other.
KINDS = [call for device, call in CALLS if device is HOPPER]
SPECS = [
    (name, ("forward", "backward")[place % 2], KINDS[place % len(KINDS)])
    for place, name in enumerate(bundled.names())
]
# Forms, of which those of rows are asked for: spec, direction, call.
FORMS = {
    "clear": ("rmsnorm", "forward", Call("f32", 262144, 2)),
    "cooperative": ("rmsnorm", "forward", Call("f32", 262144, 2)),
    "row_tile": ("softmax", "forward", Call("bf16", 333, 5)),
    "multipass": ("batchnorm", "backward", Call("bf16", 4096, 9000)),
    "batch": ("batchnorm_channels_last", "forward", Call("bf16", 300, 8)),
    "resident": ("batchnorm_channels_last", "forward", Call("bf16", 4097, 300)),
    "word_aligned": ("layernorm", "backward", Call("bf16", 4097, 300)),
    "direct": ("local_response_norm", "backward", Call("f16", 1030, 16, 2)),
    "tiles": ("rmsnorm_fp8", "forward", Call("bf16", 4096, 8)),
    "second_stage": ("rmsnorm", "backward", Call("bf16", 4096, 9000)),
}


WITH = {"clear": "cooperative", "second_stage": "pipeline"}  # that have such a launch beside them


def plans(name: str, direction: str, call: Call) -> list[LaunchPlan]:
    """What each strategy launches in a call of a bundled spec; forward where it has no backward."""
    made = packaged(name)
    record = getattr(made, direction) or made.forward
    return [each.plan for each in alternatives(record, call.binding(made, record), HOPPER)]


def check(launch: Launch) -> None:
    """The text compiles and has the entry."""
    assert f".entry {launch.entry}(" in Nvrtc().build(inlined(launch.source), "sm_90", "ptx").decode()


@pytest.mark.nvrtc
@pytest.mark.parametrize("call", sampled(SPECS, *range(1, len(SPECS), 20)))
def test_a_spec_compiles(call: tuple[str, str, Call]) -> None:
    for plan in plans(*call):
        check(plan.launches[0])


@pytest.mark.nvrtc
@pytest.mark.parametrize("form", sampled(FORMS, 0, 1, 3, 5, 6, 9))
def test_a_form_compiles(form: str) -> None:
    with first(of_form(WITH.get(form, form))):
        launches = [launch for plan in plans(*FORMS[form]) for launch in plan.launches]
    check(next(each for each in launches if each.entry.endswith(f"_{form}")))


@pytest.mark.nvrtc
def test_what_copies_fills_and_measures_compiles() -> None:
    check(copy_launch("x", "y", (3, 5, 7), (70, 14, 2), 2))
    check(fill_launch("x", 100, 4, 0))
    check(launch_of("spin", 1, 1, "q"))
