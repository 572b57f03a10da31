"""Sums over rows of at most 8192 columns in several small blocks, on the checked host executor, which has
three multiprocessors: each block has several rows, the last slice is a part of one, and few rows leave blocks
idle.
"""

from __future__ import annotations

import pytest

from normgen.runtime.host import DEVICE
from normgen.runtime.launch import plan_launches
from tests.codegen.norms import bound, packaged
from tests.proof.subjects import BF16, F32, bundled_subject, case_of, prove

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


@pytest.mark.parametrize(("name", "rows", "width", "dtypes", "form", "cluster"), SMALL_BLOCKS)
def test_gradients_of_rows_in_small_blocks(name, rows, width, dtypes, form, cluster):
    package = packaged(name)
    binding = bound(package.backward, dtypes.name, rest=rows, D=width)
    launch = plan_launches(package.backward, binding, DEVICE, package.header).launches[0]
    assert (launch.entry.rpartition("_")[2], launch.cluster) == (form, cluster)
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, dtypes), directions=("backward",))
