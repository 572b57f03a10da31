"""Norms whose axes are spread over ranks as one kernel, which tells its peers of each row."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.codegen.ranks import local_definition, told_record, wanted_part
from normgen.devices.cuda import nvrtc
from normgen.ir.grad import backward
from normgen.launching.machine import USUAL_MACHINE
from normgen.launching.quantities import WAITED
from normgen.package.device_functions import inlined
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import candidates, fastest, predicted
from normgen.runtime.planning.registry import family_of
from tests.codegen.norms import source_of
from tests.ir.specs import bundled


def told(name, axis="D", ranks=2, direction="forward", wanted=None):
    runs = local_definition(bundled(name), (axis,), ranks)
    definition, axes = runs.definition, runs.axes
    program = definition.program if direction == "forward" else backward(definition)
    if wanted:
        program = wanted_part(program, wanted)
    return told_record(definition, program, axes, (), ranks)


@pytest.mark.parametrize(
    ("name", "values"),
    [("rmsnorm", 1), ("add_rmsnorm", 1), ("gated_rmsnorm", 1), ("layernorm", 3), ("softmax", 2)],
)
def test_rows_are_told_in_the_middle_of_a_kernel(name, values):
    """After the sums of a rank, before what needs those of all."""
    record = told(name, ranks=3)
    (kernel,) = record.package.forward.kernels
    (form,) = kernel.forms
    assert form.form == "registers" and kernel.selective and len(record.told) == values
    before, line, after = source_of(form).partition("peers.exchange(")
    assert line and f"<3, {values}, TEAM, THREADS>" in before
    assert "told.value[0][2]" in after and "told.value" not in before and "store_" not in before


@pytest.mark.parametrize(
    ("name", "axis", "direction"),
    [
        ("batchnorm", "B", "forward"),  # updates states
        ("batchnorm", "B", "backward"),  # has no rows that lie in one piece
        ("rmsnorm", "...", "forward"),  # tells nothing
    ],
)
def test_others_have_no_such_kernel(name, axis, direction):
    assert told(name, axis, direction=direction) is None


@pytest.mark.parametrize(
    ("name", "wanted", "handed", "rest"),
    [
        ("rmsnorm", ("dx",), 0, ()),
        ("rmsnorm", ("dx", "dw"), 0, ("dw",)),
        ("layernorm", ("dx", "dw", "db"), 1, ("dw", "db")),  # the mean is corrected by what is told
        ("softmax", ("dx",), 0, ()),
    ],
)
def test_what_is_accumulated_over_rows_is_left_to_other_kernels(name, wanted, handed, rest):
    record = told(name, direction="backward", wanted=wanted)
    (kernel,) = record.package.forward.kernels
    assert [form.form for form in kernel.forms] == ["registers"] and len(record.handed) == handed
    found = () if record.rest is None else record.rest.package.forward.writes
    assert tuple(each.name for each in found) == rest


def test_sums_over_rows_alone_tell_nothing_of_rows():
    assert told("rmsnorm", direction="backward", wanted=("dw",)) is None


def test_a_row_is_told_by_one_block():
    """Blocks of a cluster would each have to take the same row."""
    record = told("layernorm")
    norm = Norm(record.package)
    bound = bind_sizes(norm.dispatcher("forward").direction, {"...": 16, "D": 8192}, "bf16", 16)
    (strategy,) = record.package.forward.strategies
    (offered,) = candidates(strategy, bound.binding, USUAL_MACHINE)
    assert {(each.schedule.form, each.schedule.cluster) for each in offered} == {("registers", 1)}


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "softmax"])
@pytest.mark.parametrize("length", [1536, 4096, 10000])
def test_kernels_that_wait_for_peers_have_more_rows_on_their_way(name, length):
    """All rows that are there wait together, so that the fewer at once the more often all wait."""
    package = told(name).package
    direction, record = Norm(package).dispatcher("forward").direction, package.forward
    binding = bind_sizes(direction, {"...": 8192, "D": length}, "bf16").binding
    (taken,) = fastest(record, binding, USUAL_MACHINE).kernels
    (every,) = candidates(record.strategies[0], binding, USUAL_MACHINE)
    us, schedules = np.array(predicted(every)), [each.schedule for each in every]
    waited = family_of(taken.kernel).quantities(taken.kernel, taken.call, schedules)[WAITED][: len(us)]
    at_once = [each.blocks * each.teams for each in schedules]
    assert at_once[int(us.argmin())] >= at_once[int((us - waited).argmin())]
    assert min(waited) > 0 and us[schedules.index(taken.schedule)] <= 1.1 * min(us)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("ranks", "length"), [(2, 4096), (3, 100), (8, 7)])
def test_kernels_compile_without_a_warning(ranks, length, arch):
    for name in ("rmsnorm", "layernorm", "softmax"):
        norm = Norm(told(name, ranks=ranks).package)
        dispatcher = norm.dispatcher("forward")
        bound = bind_sizes(dispatcher.direction, {"...": 16, "D": length}, "bf16", 2)
        (launch,) = dispatcher.assembler.plan(bound, USUAL_MACHINE, None).launches
        with nvrtc._compiled(inlined(launch.source), arch, nvrtc.OPTIONS) as program:
            said = nvrtc._read(nvrtc.find_nvrtc().api, program, "ProgramLog")
        assert not said.rstrip(b"\0"), said.decode()
