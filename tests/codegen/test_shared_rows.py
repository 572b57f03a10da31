"""Rows that blocks share."""

from __future__ import annotations

import pytest

from normgen.families.rows.compile.plan import plan_shared
from normgen.kernel.group import Misfit
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.alone import defined, planned, subject
from tests.codegen.norms import H200, bound
from tests.codegen.test_accumulators import FAR, NARROW, SHAPES, case_of
from tests.verify.subjects import BF16, F32, prove


def test_how_a_row_is_split_is_no_matter_of_the_text():
    record, texts = subject(NARROW).norm.package.forward, set()
    for batch, channels in ((1, 1), (7, 3), (64, 64)):
        plan = plan_launches(record, bound(record, "bf16", B=batch, C=channels, rest=50176), H200)
        texts.add(plan.launches[0].source)
    assert len(texts) == 1


# ------------------------------------------------------------------------------------------------ shared rows

INSTANCES = """norm instances
attr eps >= 0 = 1e-5
input  x[B, C, ...]
save   mu[B, C]   = mean[...](x)
save   rstd[B, C] = rsqrt(mean[...]((x - mu)^2) + eps)
output top[B, C]: f32 = max[...](abs(x))
"""


@pytest.mark.parametrize("shape", SHAPES[:8:4], ids=str)
def test_blocks_share_the_rows_of_a_reduction(shape):
    found = subject(INSTANCES, planner=plan_shared)
    for dtypes in (F32, BF16):
        prove(found, case_of(found, shape, dtypes))
    prove(found, case_of(found, shape, offset=1), samples=FAR)


@pytest.mark.parametrize(
    "output", ["y[B, C] = x - mean[C](x)", "y[B]: f32 = sum[C](exp(x - max[C](x)))", "y[B, C] = x * 2"]
)
def test_rows_that_more_than_reductions_need_are_not_shared(output):
    with pytest.raises(Misfit):
        planned(defined(f"norm other\ninput x[B, C]\noutput {output}\n"), planner=plan_shared)
