"""Pipelines in clusters: sums of one value for all elements, segments that a cluster walks through one after
another, and kernels without sums over rows; on the checked host executor, which has three multiprocessors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.expected import Subject
from tests.codegen.alone import subject
from tests.codegen.holding import case
from tests.codegen.norms import H200, bound, offers, packaged
from tests.codegen.ways import first, of_form
from tests.verify.subjects import BF16, F32, bundled_subject, prove, same_bits

EXTREMES = """norm centred_extremes
input  x[B, C, ...]
save   mu[B, C] = mean[...](x)
output top[C]: f32 = max[B, ...](x - mu)
output bottom[C]: f32 = min[B, ...](x - mu)
output total[C]: f32 = sum[B, ...](abs(x - mu))
output y[B, C, ...] = x - mu
"""


@cache
def fused(name: str) -> Subject:
    """A bundled norm whose passes are one kernel each, whatever the others would take."""
    found = bundled_subject(name)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="fused")))


@pytest.mark.parametrize(
    ("norm", "direction", "dtypes", "shape"),
    [
        ("instancenorm", "backward", F32, (1, 5, 20001)),
        ("instancenorm", "backward", BF16, (4, 3, 33000)),
        (EXTREMES, "forward", F32, (3, 2, 20000)),
    ],
)
def test_sums_maxima_and_minima_over_the_rows_of_every_segment(norm, direction, dtypes, shape):
    found = subject(norm) if norm is EXTREMES else fused(norm)
    record = getattr(found.norm.package, direction)
    batch, channels, rest = shape
    binding = bound(record, dtypes.name, B=batch, C=channels, rest=rest)
    strategy = None if norm is EXTREMES else "fused"
    with first(of_form("pipeline", cluster=4)):
        pipeline = plan_launches(record, binding, HOST_MACHINE, strategy).launches[0]
        assert pipeline.entry.endswith("_pipeline") and pipeline.cluster > 1
        prove(found, case(found, dtypes.name, B=batch, C=channels, rest=rest), directions=(direction,))


def test_the_same_bits_in_any_order_of_clusters():
    norm = fused("instancenorm").norm
    random = np.random.default_rng(2)
    dy, x = random.standard_normal((2, 3, 5, 20000)).astype(np.float32)
    mu, rstd = (random.random((3, 5)).astype(np.float32) for _ in range(2))
    made = [
        norm.on(HostExecutor(True, *order)).backward(dy=dy, x=x, mu=mu, rstd=rstd)
        for order in ((0, 0), (1, 0), (2, 7))
    ]
    for name in ("dx", "dw", "db"):
        values = [np.asarray(getattr(one, name)) for one in made]
        assert all(same_bits(values[0], other) for other in values[1:])


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm", "softmax", "add_rmsnorm"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_bulk_copies_have_a_stage_to_arrive_in_while_another_is_read(norm: str, dtype: str) -> None:
    """Where shared memory has one stage alone, threads fetch their own vectors."""
    stages = {
        (each.bulk, each.stages)
        for record in filter(None, (packaged(norm).forward, packaged(norm).backward))
        for length in (70_000, 159_736, 200_000, 307_512)
        for each in offers(record, bound(record, dtype, rest=200, D=length), H200)
        if each.form == "pipeline"
    }
    assert (True, 1) not in stages and {(True, 2), (False, 1)} <= stages
