"""Schedules and launches: what is chosen for which sizes, and what calls share a compiled kernel."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.launching.call import Call
from normgen.launching.launch import Slot
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, ROWS, SMALL, bound, packaged, schedule_rows, schedules

DIRECTIONS = ("forward", "backward")


def schedule(name, direction, device=H200, dtype="bf16", **extents):
    record = getattr(packaged(name), direction)
    return schedules(record, bound(record, dtype, **extents), device)[0][0]


def launches(name, direction, device=H200, dtype="bf16", **extents):
    package = packaged(name)
    record = getattr(package, direction)
    return plan_launches(record, bound(record, dtype, **extents), device, package.header)


# Forms by the length of the row, bf16 on an H200, 32768 rows.
FORMS = [
    ("rmsnorm", "forward", 64, "registers", 4),
    ("rmsnorm", "forward", 128, "registers", 8),
    ("layernorm", "forward", 64, "registers", 4),
    ("layernorm", "forward", 128, "registers", 8),
    ("rmsnorm", "forward", 256, "registers", 16),
    ("softmax", "backward", 256, "registers", 32),
    ("rmsnorm", "forward", 512, "registers", 32),
    ("rmsnorm", "forward", 1024, "registers", 128),
    ("rmsnorm", "forward", 1536, "registers", 96),
    ("rmsnorm", "forward", 2048, "registers", 128),
    ("rmsnorm", "forward", 3000, "registers", 192),
    ("add_rmsnorm", "forward", 2048, "registers", 256),
    ("rmsnorm", "forward", 4096, "registers", 128),
    ("rmsnorm", "forward", 16384, "registers", 512),
    ("rmsnorm", "forward", 20000, "registers", 320),
    ("rmsnorm", "forward", 32768, "registers", 1024),
    ("rmsnorm", "forward", 65536, "registers", 2048),
    ("layernorm", "forward", 20000, "ring", 512),
    ("layernorm", "forward", 32768, "ring", 1024),
    ("layernorm", "forward", 65536, "ring", 1024),
    ("softmax", "forward", 3000, "registers", 192),
    ("softmax", "forward", 7168, "registers", 128),
    ("log_softmax", "forward", 7168, "registers", 224),
    ("softmax", "forward", 16384, "registers", 256),
    ("softmax", "forward", 32768, "registers", 512),
    ("softmax", "forward", 262144, "registers", 4096),
    ("rmsnorm", "forward", 98304, "registers", 2048),
    ("rmsnorm", "forward", 131072, "skewed", 4096),
    ("softmax", "backward", 65536, "registers", 2048),
    ("gated_rmsnorm", "forward", 262144, "registers", 4096),
    ("layernorm", "forward", 262144, "skewed", 4096),
    ("layernorm", "forward", 300000, "ring", 4096),
    ("layernorm", "forward", 1024, "registers", 32),
    ("layernorm", "forward", 4096, "registers", 128),
    ("layernorm", "forward", 16384, "registers", 512),
    ("rmsnorm", "backward", 64, "ring", 8),
    ("rmsnorm", "backward", 96, "ring", 8),
    ("layernorm", "backward", 128, "ring", 16),
    ("layernorm", "backward", 256, "ring", 32),
    ("rmsnorm", "backward", 512, "ring", 32),
    ("rmsnorm", "backward", 1024, "ring", 128),
    ("rmsnorm", "backward", 4608, "ring", 320),
    ("layernorm", "backward", 5120, "ring", 128),
    ("layernorm", "backward", 7168, "ring", 192),
    ("layernorm", "backward", 300000, "stream", 1024),
    ("softmax", "backward", 4096, "registers", 256),
]


@pytest.mark.parametrize(("name", "direction", "length", "form", "team"), FORMS)
def test_form_by_length(name, direction, length, form, team):
    chosen = schedule(name, direction, rest=32768, D=length)
    assert (chosen.form, chosen.team) == (form, team)


def test_long_rows_are_copied_to_shared_memory_while_they_fit():
    assert schedule("rmsnorm", "forward", rest=1024, D=32768, device=SMALL).staged
    assert schedule("rmsnorm", "forward", rest=1024, D=65536, device=SMALL).form == "stream"
    assert not schedule("rmsnorm", "forward", rest=1024, D=300000).staged


def test_clusters_from_sm_90_on():
    (launch,) = launches("layernorm", "forward", rest=1024, D=65536).launches
    assert (launch.cluster, launch.grid[0], launch.block[0]) == (4, 120, 256)
    assert "#define CLUSTER_DIMS __cluster_dims__(4, 1, 1)" in launch.source
    (launch,) = launches("add_rmsnorm", "forward", rest=1024, D=65536).launches
    assert (launch.cluster, launch.grid[0], launch.block[0]) == (16, 16 * 1024, 256)  # a cluster for each row
    (launch,) = launches("layernorm", "forward", rest=1024, D=65536, device=SMALL).launches
    assert launch.cluster == 1 and "__cluster_dims__" not in launch.source.partition("extern")[0]


# The form, elements of a thread, threads of a block, blocks of a row, stages; whether what rows share is
# loaded late.
LONG_ROWS = [
    ("rmsnorm", "bf16", 32768, ("registers", 32, 128, 8, 0, False)),
    ("rmsnorm", "bf16", 65536, ("registers", 32, 256, 8, 0, False)),
    ("rmsnorm", "bf16", 98304, ("registers", 48, 256, 8, 0, True)),
    ("rmsnorm", "f32", 16384, ("registers", 16, 128, 8, 0, False)),
    ("rmsnorm", "f32", 65536, ("registers", 16, 256, 16, 0, False)),
    ("rmsnorm", "f32", 131072, ("registers", 32, 256, 16, 0, False)),
    ("rmsnorm", "f32", 262144, ("spread", 64, 512, 1, 0, False)),
    ("l2norm", "f32", 262144, ("registers", 32, 512, 16, 0, False)),
    ("add_rmsnorm", "bf16", 32768, ("stream", 32, 1024, 1, 0, False)),
    ("add_rmsnorm", "bf16", 65536, ("registers", 16, 256, 16, 0, False)),
    ("add_rmsnorm", "f32", 131072, ("registers", 16, 512, 16, 0, False)),
    ("add_rmsnorm", "f32", 262144, ("spread", 32, 512, 1, 0, False)),
    ("layernorm", "bf16", 32768, ("ring", 32, 1024, 1, 1, True)),
    ("layernorm", "bf16", 65536, ("ring", 64, 256, 4, 3, False)),
    ("layernorm", "f32", 16384, ("registers", 32, 256, 2, 0, True)),
    ("layernorm", "f32", 32768, ("registers", 32, 128, 8, 0, False)),
    ("layernorm", "f32", 65536, ("skewed", 16, 512, 8, 6, False)),
    ("layernorm", "f32", 131072, ("skewed", 16, 512, 16, 6, False)),
    ("layernorm", "f32", 262144, ("ring", 64, 256, 16, 2, False)),
]


@pytest.mark.parametrize(("name", "dtype", "length", "expected"), LONG_ROWS)
def test_long_rows(name, dtype, length, expected):
    s = schedule(name, "forward", dtype=dtype, rest=1024, D=length)
    assert (s.form, s.items * s.vector, s.threads, s.cluster, s.stages, s.late) == expected


# The form, elements of a thread, threads of a block, blocks of a row, stages; whether slices are read again.
LONG_SUMS = [
    ("rmsnorm", "bf16", 16384, ("skewed", 16, 128, 8, 6, True)),
    ("rmsnorm", "bf16", 32768, ("skewed", 16, 128, 16, 6, True)),
    ("rmsnorm", "bf16", 65536, ("ring", 24, 192, 16, 3, False)),
    ("rmsnorm", "bf16", 131072, ("ring", 32, 256, 16, 3, False)),
    ("rmsnorm", "bf16", 250000, ("ring", 64, 256, 16, 2, True)),
    ("layernorm", "bf16", 12000, ("ring", 32, 96, 4, 4, False)),
    ("layernorm", "bf16", 8192, ("ring", 24, 192, 2, 2, False)),
    ("layernorm", "bf16", 16384, ("skewed", 32, 128, 4, 6, True)),
    ("layernorm", "bf16", 32768, ("skewed", 32, 128, 8, 6, True)),
    ("layernorm", "bf16", 65536, ("skewed", 32, 256, 8, 6, True)),
    ("layernorm", "bf16", 250000, ("ring", 64, 256, 16, 2, True)),
    ("rmsnorm", "f32", 65536, ("skewed", 32, 128, 16, 6, True)),
    ("layernorm", "f32", 16384, ("skewed", 32, 128, 4, 6, True)),
    ("layernorm", "f32", 131072, ("ring", 32, 256, 16, 2, False)),
    ("rmsnorm", "f32", 250000, ("ring", 44, 384, 16, 1, True)),
    ("layernorm", "f32", 250000, ("ring", 64, 256, 16, 1, True)),
]


@pytest.mark.parametrize(("name", "dtype", "length", "expected"), LONG_SUMS)
def test_slices_of_long_rows_arrive_as_bulk_copies(name, dtype, length, expected):
    s = schedule(name, "backward", dtype=dtype, rest=1024, D=length)
    assert (s.form, s.items * s.vector, s.threads, s.cluster, s.stages, s.reload) == expected
    assert s.bulk


# The form, elements of a thread, threads of a block, blocks of a row and of a multiprocessor.
SHORT_SUMS = [
    ("rmsnorm", "bf16", 2048, ("ring", 24, 96, 1, 4)),
    ("rmsnorm", "bf16", 3000, ("ring", 16, 384, 1, 1)),
    ("rmsnorm", "bf16", 4096, ("ring", 24, 96, 2, 3)),
    ("rmsnorm", "bf16", 5120, ("skewed", 16, 160, 2, 2)),
    ("rmsnorm", "bf16", 5632, ("skewed", 16, 192, 2, 2)),
    ("rmsnorm", "bf16", 6144, ("ring", 24, 64, 4, 4)),
    ("rmsnorm", "bf16", 7168, ("ring", 32, 64, 4, 4)),
    ("rmsnorm", "bf16", 8192, ("skewed", 16, 128, 4, 3)),
    ("add_rmsnorm", "bf16", 4096, ("ring", 24, 96, 2, 3)),
    ("add_rmsnorm", "bf16", 5120, ("ring", 16, 160, 2, 3)),
    ("rmsnorm", "f32", 1024, ("ring", 8, 128, 1, 4)),
    ("rmsnorm", "f32", 2048, ("skewed", 8, 128, 2, 3)),
    ("rmsnorm", "f32", 3000, ("skewed", 8, 192, 2, 2)),
    ("rmsnorm", "f32", 4096, ("ring", 8, 512, 1, 1)),
    ("rmsnorm", "f32", 7168, ("skewed", 8, 448, 2, 1)),
    ("rmsnorm", "f32", 8192, ("ring", 8, 512, 2, 1)),
    ("add_rmsnorm", "f32", 7168, ("ring", 8, 896, 1, 1)),
    ("layernorm", "f32", 2048, ("ring", 8, 256, 1, 2)),
    ("layernorm", "f32", 3000, ("skewed", 8, 192, 2, 2)),
    ("layernorm", "f32", 5120, ("ring", 16, 160, 2, 2)),
    ("layernorm", "f32", 8192, ("ring", 8, 512, 2, 1)),
]


@pytest.mark.parametrize(("name", "dtype", "length", "expected"), SHORT_SUMS)
def test_sums_over_short_rows_have_small_blocks(name, dtype, length, expected):
    s = schedule(name, "backward", dtype=dtype, rest=32768, D=length)
    assert (s.form, s.items * s.vector, s.threads, s.cluster, s.blocks) == expected


@pytest.mark.parametrize(
    ("dtype", "length", "expected"),
    [("f32", 65536, ("registers", 2048)), ("bf16", 32768, ("ring", 512))],
)
def test_long_rows_without_weights_are_not_ahead_of_one_another(dtype, length, expected):
    record = packaged("instancenorm").forward
    kernel = record.strategies[0].kernels[0]
    call = Call(bound(record, dtype, B=8, C=64, rest=length), H200, "")
    chosen, _ = schedule_rows(kernel, call)
    assert (chosen.form, chosen.team) == expected


def test_sums_over_short_rows_have_one_block_where_there_are_no_clusters():
    for dtype in ("bf16", "f32"):
        for length in (2048, 4096, 5120, 8192):
            s = schedule("rmsnorm", "backward", dtype=dtype, rest=32768, D=length, device=SMALL)
            assert s.cluster == 1


@pytest.mark.parametrize(
    ("channels", "dtype", "team", "elements", "teams"),
    [
        (96, "bf16", 12, 8, 16),
        (320, "bf16", 40, 8, 4),
        (320, "f32", 80, 4, 2),
        (512, "bf16", 64, 8, 4),
        (640, "bf16", 80, 8, 2),
        (1280, "bf16", 80, 16, 2),
        (1280, "f32", 80, 16, 2),
    ],
)
def test_channels_last_have_teams_of_which_every_thread_has_its_share(channels, dtype, team, elements, teams):
    record = packaged("batchnorm_channels_last").forward
    kernel = next(k for s in record.strategies for k in s.kernels if "statistics" in k.name)
    binding = bound(record, dtype, rest=50176, C=channels)
    s = schedule_rows(kernel, Call(binding, H200, ""))[0]
    assert (s.team, s.items * s.vector, s.teams) == (team, elements, teams)


@pytest.mark.parametrize(
    ("device", "groups", "elements", "threads", "blocks"),
    [
        (H200, 256, 64, 64, 10),
        (H200, 512, 64, 128, 5),
        (H200, 384, 64, 96, 6),
        (H200, 320, 32, 160, 4),  # 80 threads of 64 would be no whole warps
        (H200, 128, 32, 64, 10),
        (SMALL, 256, 32, 128, 5),
    ],
)
def test_rows_of_bytes_have_more_elements_a_thread_and_many_threads(
    device, groups, elements, threads, blocks
):
    record = packaged("rmsnorm_fp8").forward
    call = Call(bound(record, "bf16", rest=16384, G=groups, E=16), device, "")
    chosen, _ = schedule_rows(record.strategies[0].kernels[0], call)
    assert (chosen.form, chosen.items * chosen.vector) == ("ring", elements)
    assert (chosen.threads, chosen.teams, chosen.blocks) == (threads, 1, blocks)


def test_full_registers_of_one_large_block():
    assert schedule("l2norm", "forward", dtype="f32", rest=4096, D=32768).threads == 1024
    assert schedule("l2norm", "forward", dtype="f32", rest=4096, D=16384).team == 512


def test_one_copy_in_shared_memory_is_worked_on_by_all_threads():
    assert schedule("rmsnorm", "forward", rest=4096, D=32768, device=SMALL).threads == 1024
    assert schedule("add_rmsnorm", "forward", dtype="f32", rest=8192, D=16384).threads == 1024


def test_a_schedule_that_was_not_taken_has_a_reason():
    record = packaged("layernorm").backward
    older = replace(H200, arch="sm_80")
    ((chosen, rejected),) = schedules(record, bound(record, "bf16", rest=64, D=16384), older)
    assert chosen.reload
    assert rejected
    assert all(r.reason for r in rejected)


def test_a_kernel_begins_with_the_rows_that_the_one_before_it_read_last():
    def backwards(name, direction, **extents):
        return [
            "BACKWARDS = true" in launch.source for launch in launches(name, direction, **extents).launches
        ]

    assert backwards("rmsnorm", "forward", rest=4096, D=4096) == [False]
    for direction in DIRECTIONS:
        *before, last = backwards("batchnorm", direction, B=256, C=16, rest=1 << 18)
        assert last and not any(before)


SIZES = st.sampled_from([1, 2, 3, 7, 8, 31, 32, 33, 100, 1000, 1023, 1024, 4097, 5120, 16384, 65537, 1 << 20])


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([n for n in ROWS if n not in ("qk_norm", "adaln_modulate")]),
    direction=st.sampled_from(DIRECTIONS),
    length=SIZES,
    rows=st.integers(1, 1 << 20),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    device=st.sampled_from([H200, SMALL]),
)
def test_every_schedule_fits_its_device(name, direction, length, rows, dtype, device):
    package = packaged(name)
    record = getattr(package, direction)
    binding = bound(record, dtype, rest=rows, D=length)
    for s, _ in schedules(record, binding, device):
        assert 1 <= s.threads <= 1024
        assert s.threads % 32 == 0
        # where nothing is exchanged, a team need not be lanes that can hand values to one another
        assert s.form == "batch" or s.team in (1, 2, 4, 8, 16) or s.team % 32 == 0
        assert s.vector * s.team * s.items >= length or s.form in ("stream", "split")
        assert length % s.vector == 0 or s.shifted
        assert s.shared <= device.shared_per_block
    plan = plan_launches(record, binding, device, package.header)
    for launch in plan.launches:
        assert len(launch.format) == len(launch.values)
        values = [1 if isinstance(v, Slot) else v for v in launch.values]
        struct.pack(launch.format, *values)
        assert max(launch.grid) < 2**31
        assert launch.grid[1] <= 65535


def test_batches_share_their_kernels():
    texts = set()
    for direction in DIRECTIONS:
        for rows in (
            1,
            2,
            3,
            5,
            8,
            16,
            33,
            64,
            100,
            127,
            128,
            200,
            256,
            500,
            512,
            777,
            1000,
            1024,
            4096,
            10000,
        ):
            texts |= {x.source for x in launches("layernorm", direction, rest=rows, D=1024).launches}
    # forward of few rows, whose blocks have all registers, and of others; backward, and the partials
    assert len(texts) == 4


def test_offsets_of_rows_have_64_bits_and_their_numbers_do_where_there_are_that_many():
    (small,) = launches("rmsnorm", "forward", rest=1 << 10, D=1024).launches
    (large,) = launches("rmsnorm", "forward", rest=1 << 22, D=1024).launches
    (huge,) = launches("rmsnorm", "forward", rest=1 << 32, D=8).launches
    assert "row_offset<offset_t>(row, x_stride_rest)" in small.source
    assert all("using offset_t = long long;" in each.source for each in (small, large, huge))
    assert "using index_t = int;" in small.source and "using index_t = int;" in large.source
    assert "using index_t = long long;" in huge.source
    assert (small.format, large.format, huge.format) == ("PPPPiiifi", "PPPPiiifi", "PPPPqqqfq")


def test_narrow_vectors_where_addresses_or_strides_are_odd():
    record = packaged("rmsnorm").forward

    def width(**how):
        ((chosen, _),) = schedules(record, bound(record, "bf16", rest=8, D=1024, **how), H200)
        return chosen.vector

    assert width() == 8
    assert width(alignment=8) == 4
    assert width(alignment=2) == 1
    assert width(padding=4) == 4
    assert width(padding=1) == 8  # a shifted row


def test_vectors_are_as_wide_as_the_narrowest_operand_allows():
    record = packaged("rmsnorm").forward
    ((chosen, _),) = schedules(record, bound(record, "f32", rest=8, D=1024, dtypes={"x": "bf16"}), H200)
    assert chosen.vector == 8


def test_what_is_not_wanted_costs_nothing():
    record = packaged("rmsnorm").backward
    full = plan_launches(record, bound(record, rest=64, D=512), H200)
    only_dx = plan_launches(record, bound(record, rest=64, D=512, without=("dw",)), H200)
    assert len(full.launches) == 2
    assert [x[0] for x in full.workspace] == ["rmsnorm_backward.dw_sum"]
    assert len(only_dx.launches) == 1
    assert not only_dx.workspace


def test_partials_cover_the_launched_grid():
    for rows in (1, 2, 263, 264, 265, 100000):
        plan = launches("layernorm", "backward", rest=rows, D=4096)
        for _, shape, dtype in plan.workspace:
            assert shape == (plan.launches[0].grid[0], 4096)
            assert dtype == "f32"


def test_segments_divide_the_grid():
    plan = launches("adaln_modulate", "backward", B=8, S=512, D=1024)
    blocks = plan.launches[0].grid[0]
    assert blocks % 8 == 0
    assert {shape for _, shape, _ in plan.workspace} == {(blocks, 1024)}
    many = launches("adaln_modulate", "backward", B=1000, S=3, D=1024)
    assert many.launches[0].grid[0] == 1000
