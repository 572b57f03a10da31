"""Rings whose exchange of a row is on its way while the row before it is finished."""

from __future__ import annotations

import pytest

from tests.codegen.norms import H200, bound, packaged, schedules
from tests.proof.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove


def schedule(name, direction, dtype, length, alignment=16):
    record = getattr(packaged(name), direction)
    return schedules(record, bound(record, dtype, alignment=alignment, rest=4096, D=length), H200)[0][0]


@pytest.mark.parametrize(
    ("name", "direction", "dtype", "length", "cluster", "threads"),
    [
        ("rmsnorm", "backward", "bf16", 32768, 4, 512),
        ("rmsnorm", "backward", "f32", 32768, 8, 512),
        ("layernorm", "backward", "bf16", 65536, 8, 256),
        ("layernorm", "forward", "bf16", 131072, 8, 512),
        ("add_rmsnorm", "forward", "bf16", 131072, 16, 512),
        ("softmax", "backward", "bf16", 131072, 16, 512),
    ],
)
def test_wide_rows_are_skewed(name, direction, dtype, length, cluster, threads):
    chosen = schedule(name, direction, dtype, length)
    assert (chosen.form, chosen.cluster, chosen.threads) == ("skewed", cluster, threads)
    assert chosen.stages >= 5  # with fewer nothing is on its way while a row waits for its exchange


@pytest.mark.parametrize(
    ("name", "direction", "length", "alignment"),
    [
        ("rmsnorm", "backward", 8192, 16),  # one block has the row
        ("rmsnorm", "backward", 262144, 16),  # five slices of 64 KB find no place
        ("rmsnorm", "backward", 32768, 8),  # no bulk copies
        ("rmsnorm", "forward", 65536, 16),  # the shared memory of a block has the row
        ("softmax", "forward", 131072, 16),  # its exponentials would be computed twice
        ("gated_rmsnorm", "forward", 131072, 16),  # so would its sigmoids
    ],
)
def test_rows_that_are_not_skewed(name, direction, length, alignment):
    assert schedule(name, direction, "bf16", length, alignment).form != "skewed"


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("name", "rows", "width"),
    [
        ("rmsnorm", 40, 16384),
        ("layernorm", 23, 20000),  # the last block has a part of a slice
        ("add_rmsnorm", 17, 24584),
        ("log_softmax", 5, 36864),
        ("layernorm", 1, 70000),
    ],
)
def test_results(name, rows, width, dtypes):
    subject = bundled_subject(name)
    prove(subject, case_of(subject, rows, width, dtypes), CHECKED)
