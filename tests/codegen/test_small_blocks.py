"""Sums over rows of at most 8192 columns in several small blocks, on the checked host executor, which has
three multiprocessors: each block has several rows, the last slice is a part of one, and few rows leave blocks
idle.
"""

from __future__ import annotations

import pytest

from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.errors import ToolchainMissing
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, bound, host_launches, packaged, schedules
from tests.codegen.test_nvcc import DEVICES
from tests.verify.subjects import BF16, F32, bundled_subject, case_of, prove

# Norm, rows, columns, types: the form and the blocks of a row.
SMALL_BLOCKS = [
    ("rmsnorm", 50, 2048, BF16, "ring", 1),
    ("rmsnorm", 50, 1928, BF16, "ring", 1),
    ("rmsnorm", 40, 4096, BF16, "ring", 2),
    ("rmsnorm", 40, 3992, BF16, "ring", 2),
    ("rmsnorm", 40, 5000, BF16, "skewed", 2),
    ("rmsnorm", 40, 6104, BF16, "ring", 4),
    ("rmsnorm", 40, 6664, BF16, "ring", 4),
    ("rmsnorm", 40, 7672, BF16, "skewed", 4),
    ("add_rmsnorm", 23, 8192, BF16, "skewed", 4),
    ("rmsnorm", 2, 8192, BF16, "skewed", 4),
    ("rmsnorm", 23, 8200, BF16, "ring", 4),
    ("rmsnorm", 11, 12288, BF16, "ring", 4),
    ("layernorm", 23, 9216, BF16, "ring", 4),
    ("layernorm", 11, 9224, BF16, "ring", 4),
    ("rmsnorm", 50, 1536, F32, "skewed", 2),
    ("rmsnorm", 50, 2048, F32, "skewed", 2),
    ("rmsnorm", 40, 3000, F32, "skewed", 2),
    ("layernorm", 40, 3004, F32, "skewed", 2),
    ("layernorm", 1, 3000, F32, "skewed", 2),
    ("layernorm", 23, 7100, F32, "skewed", 2),
    ("add_rmsnorm", 23, 2300, F32, "skewed", 2),
    ("gated_rmsnorm", 23, 2048, F32, "skewed", 2),
    ("rmsnorm", 23, 8192, F32, "ring", 2),
    ("layernorm", 23, 8000, F32, "ring", 2),
]

# Rows of heads, one vector a thread: norm, rows, columns, types, threads of a row. The 18 blocks of 128
# threads, or 9 of 256, have places for fewer rows than there are, for more, and for one that not all have.
HEADS = [
    ("rmsnorm", 1, 64, BF16, 8),
    ("rmsnorm", 300, 64, BF16, 8),
    ("rmsnorm", 901, 64, BF16, 8),
    ("rmsnorm", 331, 128, BF16, 16),
    ("rmsnorm", 150, 256, BF16, 32),
    ("rmsnorm", 331, 32, F32, 8),
    ("rmsnorm", 331, 64, F32, 16),
    ("rmsnorm", 150, 128, F32, 32),
    ("layernorm", 901, 64, BF16, 8),
    ("layernorm", 331, 128, BF16, 16),
    ("layernorm", 150, 256, BF16, 32),
    ("rmsnorm_zero_centred", 331, 128, BF16, 16),
    ("rmsnorm", 40, 1024, BF16, 128),
    ("rmsnorm", 41, 512, F32, 128),
]

# Rows that may be read two elements at a time: norm, rows, columns, threads of a row, vectors of each.
PAIRS = [
    ("rmsnorm", 901, 66, 8, 5),
    ("layernorm", 331, 130, 16, 5),
    ("rmsnorm", 150, 258, 32, 5),
    ("layernorm", 150, 514, 32, 9),
    ("rmsnorm", 41, 770, 64, 7),
    ("layernorm", 41, 1026, 64, 9),
    ("rmsnorm", 23, 1538, 128, 7),
    ("layernorm", 23, 2050, 160, 7),
]

# Forward, 2-byte elements: norm, columns, threads of a row, vectors of each.
FEW_THREADS = [
    ("layernorm", 640, 16, 5),
    ("layernorm", 896, 16, 7),
    ("layernorm", 1032, 32, 5),
    ("layernorm", 1280, 32, 5),
    ("layernorm", 1408, 64, 3),
    ("layernorm", 1792, 32, 7),
    ("layernorm", 2056, 64, 5),
    ("rmsnorm", 1280, 96, 2),
    ("rmsnorm", 2056, 64, 5),
    ("softmax", 2056, 64, 5),
]


# Sums over rows that blocks of 256 threads would share unevenly: norm, rows, columns, threads of a row, rows
# of a block, blocks of a multiprocessor.
DEALT = [
    ("layernorm", 203, 640, 64, 2, 4),
    ("layernorm", 100, 1032, 96, 5, 1),
    ("layernorm", 101, 1536, 96, 5, 1),
    ("layernorm", 50, 2560, 160, 3, 1),
    ("layernorm", 31, 3584, 224, 2, 1),
    ("layernorm", 30, 4096, 256, 2, 1),
    ("layernorm", 19, 6144, 192, 2, 1),
    ("rmsnorm", 70, 1280, 96, 1, 6),
]


@pytest.mark.parametrize(("name", "rows", "width", "dtypes", "form", "cluster"), SMALL_BLOCKS)
def test_gradients_of_rows_in_small_blocks(name, rows, width, dtypes, form, cluster):
    launch = host_launches(name, "backward", dtypes.name, rest=rows, D=width)[0]
    assert (launch.entry.rpartition("_")[2], launch.cluster) == (form, cluster)
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, dtypes), directions=("backward",))


@pytest.mark.parametrize(("name", "rows", "width", "dtypes", "team"), HEADS)
def test_gradients_of_heads(name, rows, width, dtypes, team):
    launch = host_launches(name, "backward", dtypes.name, rest=rows, D=width)[0]
    assert (launch.entry.rpartition("_")[2], launch.block[0]) == ("ring", max(128, 2 * team))
    assert f"constexpr int TEAM = {team};" in launch.source and "constexpr int ITEMS = 1;" in launch.source
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, dtypes), directions=("backward",))


@pytest.mark.parametrize(("name", "rows", "width", "team", "teams", "blocks"), DEALT)
def test_gradients_of_rows_that_are_dealt_out(name, rows, width, team, teams, blocks):
    record = packaged(name).backward
    chosen, _ = schedules(record, bound(record, "bf16", rest=4096, D=width), H200)[0]
    assert (chosen.form, chosen.team, chosen.teams, chosen.blocks) == ("ring", team, teams, blocks)
    assert chosen.stages == 2
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, BF16), directions=("backward",))


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "width"), [(name, width) for name, _, width, *_ in DEALT])
@pytest.mark.parametrize("arch", DEVICES)
def test_rows_that_are_dealt_out_spill_nothing(name, width, arch):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    package = packaged(name)
    binding = bound(package.backward, "bf16", rest=4096, D=width)
    launch = plan_launches(package.backward, binding, DEVICES[arch], package.header).launches[0]
    (usage,) = compile_text(launch.source, arch)[1]
    assert usage.spilled == 0


@pytest.mark.parametrize(("name", "rows", "width", "team", "items"), PAIRS)
def test_gradients_of_pairs_of_elements(name, rows, width, team, items):
    launch = host_launches(name, "backward", "bf16", rest=rows, D=width)[0]
    assert launch.entry.rpartition("_")[2] == "ring" and "constexpr int VEC = 2;" in launch.source
    assert f"constexpr int TEAM = {team};" in launch.source
    assert f"constexpr int ITEMS = {items};" in launch.source
    again = name == "layernorm" and (items > 7 or team > 64)  # two sums leave a row no registers
    assert f"constexpr bool RELOAD = {str(again).lower()};" in launch.source
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, BF16), directions=("backward",))


@pytest.mark.parametrize(("name", "width", "team", "items"), FEW_THREADS)
def test_rows_in_few_threads(name, width, team, items):
    record = packaged(name).forward
    chosen, _ = schedules(record, bound(record, "bf16", rest=4096, D=width), H200)[0]
    assert (chosen.form, chosen.team, chosen.items) == ("registers", team, items)
    assert chosen.late == (name != "softmax")
    found = bundled_subject(name)
    prove(found, case_of(found, 7, width, BF16), directions=("forward",))


@pytest.mark.nvcc
@pytest.mark.parametrize("width", [640, 896, 1280, 1535, 1664, 1792])
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_moments_in_few_threads_spill_nothing(width, arch):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    package = packaged("layernorm")
    binding = bound(package.forward, "bf16", rest=4096, D=width)
    (launch,) = plan_launches(package.forward, binding, DEVICES[arch], package.header).launches
    (usage,) = compile_text(launch.source, arch)[1]
    assert usage.spilled == 0
