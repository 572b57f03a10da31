"""Schedules and launches: what is chosen for which sizes, and what calls share a compiled kernel."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.families.rows.launch.family import Rows
from normgen.launching.call import Call
from normgen.launching.launch import Slot
from normgen.launching.machine import usual_machine
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, ROWS, SMALL, bound, offers, packaged, schedules

SIZES = st.sampled_from([1, 2, 3, 7, 8, 31, 32, 33, 100, 1000, 1023, 1024, 4097, 5120, 16384, 65537, 1 << 20])


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([n for n in ROWS if n not in ("qk_norm", "adaln_modulate")]),
    direction=st.sampled_from(["forward", "backward"]),
    length=SIZES,
    rows=st.integers(1, 1 << 20),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    device=st.sampled_from([H200, SMALL, *map(usual_machine, ("sm_89", "sm_120"))]),
)
def test_every_schedule_fits_its_device(name, direction, length, rows, dtype, device):
    package = packaged(name)
    record = getattr(package, direction)
    binding = bound(record, dtype, rest=rows, D=length)
    for s in schedules(record, binding, device):
        assert 1 <= s.threads <= 1024 and s.cluster <= device.max_cluster
        assert s.threads * max(1, s.blocks) <= device.threads_per_multiprocessor
        assert s.threads % 32 == 0
        # where nothing is exchanged, a thread group need not be lanes that can hand values to one another
        assert s.form in ("batch", "pipeline") or s.team in (1, 2, 4, 8, 16) or s.team % 32 == 0
        assert s.vector * s.team * s.items >= length or s.form == "multipass"
        assert length % s.vector == 0 or s.realigned
        assert s.shared <= device.shared_per_block
    plan = plan_launches(record, binding, device)
    for launch in plan.launches:
        assert len(launch.format) == len(launch.values)
        values = [1 if isinstance(v, Slot) else v for v in launch.values]
        struct.pack(launch.format, *values)
        assert max(launch.grid) < 2**31
        assert launch.grid[1] <= 65535


def test_narrow_vectors_where_addresses_or_strides_are_odd():
    record = packaged("rmsnorm").forward

    def width(**how):
        return max(each.vector for each in offers(record, bound(record, "bf16", rest=8, D=1024, **how), H200))

    assert width() == 8
    assert width(alignment=8) == 4
    assert width(alignment=2) == 1
    assert width(padding=4) == 4
    assert width(padding=1) == 8  # a realigned row


def test_what_is_not_wanted_costs_nothing():
    record = packaged("rmsnorm").backward
    full = plan_launches(record, bound(record, rest=64, D=512), H200)
    only_dx = plan_launches(record, bound(record, rest=64, D=512, without=("dw",)), H200)
    assert len(full.launches) == 2
    assert [x[0] for x in full.workspace] == ["rmsnorm_backward.dw_sum"]
    assert len(only_dx.launches) == 1
    assert not only_dx.workspace


# The most blocks of a cluster, and threads of a multiprocessor: of an unknown architecture the least.
@pytest.mark.parametrize(
    ("arch", "cluster", "threads"),
    [("sm_80", 1, 2048), ("sm_120", 8, 1536), ("sm_75", 1, 1536), ("sm_130", 8, 1536)],
)
def test_clusters_are_as_large_as_an_architecture_has_them(arch, cluster, threads):
    facts = usual_machine(arch)
    assert (facts.max_cluster, facts.threads_per_multiprocessor) == (cluster, threads)
    record = packaged("softmax").forward
    (kernel,) = record.strategies[0].kernels
    offered = Rows().space(kernel, Call(bound(record, "bf16", rest=4096, D=131072), facts, ""))
    assert max(schedule.cluster for schedule in offered) == cluster
