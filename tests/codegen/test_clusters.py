"""Rings in clusters: sums of one value for all elements, segments that a cluster walks through one after
another, and kernels without sums over rows; on the checked host executor, which has three multiprocessors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.rows.launch import choose
from normgen.families.rows.launch.rings import long_rows
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import Case, element_types
from normgen.verify.expected import Subject
from tests.codegen.accumulating import subject
from tests.codegen.norms import H200, bound, host_launches, packaged
from tests.verify.subjects import BF16, CHECKED, F32, bundled_subject, case_of, prove, same_bits

EXTREMES = """norm centred_extremes
input  x[B, C, ...]
save   mu[B, C] = mean[...](x)
output top[C]: f32 = max[B, ...](x - mu)
output bottom[C]: f32 = min[B, ...](x - mu)
output total[C]: f32 = sum[B, ...](abs(x - mu))
output y[B, C, ...] = x - mu
"""


def image_case(found: Subject, batch: int, channels: int, rest: int, dtypes=F32) -> Case:
    extents = {"B": batch, "...": rest, "C": channels}
    return Case(extents, (rest,), element_types(found.definition, dtypes), dtypes.name)


def instances(device=H200, dtype="bf16", **extents: int) -> LaunchPlan:
    package = packaged("instancenorm")
    record = package.backward
    return plan_launches(record, bound(record, dtype, **extents), device, package.header, "fused")


@cache
def fused(name: str) -> Subject:
    """A bundled norm whose passes are one kernel each, whatever the others would take."""
    found = bundled_subject(name)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="fused")))


# ---------------------------------------------------------------------------------------- one value in all


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 7, 20000), (9, 5, 33000), (1, 5, 20001), (2, 1, 131080)], ids=str)
def test_sums_over_the_rows_of_every_segment(shape, dtypes):
    found = fused("instancenorm")
    batch, channels, rest = shape
    ring, _ = instances(HOST_MACHINE, dtypes.name, B=batch, C=channels, rest=rest).launches
    assert ring.entry.endswith("_ring") and ring.cluster > 1
    prove(found, image_case(found, batch, channels, rest, dtypes), directions=("backward",))


@pytest.mark.parametrize("wanted", ["dx", "dw", "db"])
def test_only_one_of_the_gradients(wanted):
    norm = fused("instancenorm").norm.on(CHECKED)
    random = np.random.default_rng(1)
    x, dy = random.standard_normal((2, 3, 2, 20000)).astype(np.float32)
    w = random.standard_normal(2).astype(np.float32)
    _, mu, rstd = norm.forward(x=x, w=w)
    every = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
    one = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd, wrt=(wanted[1:],))
    assert same_bits(np.asarray(getattr(one, wanted)), np.asarray(getattr(every, wanted)))
    assert [name for name in one._fields if getattr(one, name) is not None] == [wanted]


@pytest.mark.parametrize("shape", [(3, 2, 20000), (5, 5, 33000)], ids=str)
def test_maxima_minima_and_sums_of_a_cluster(shape):
    found = subject(EXTREMES)
    record = found.norm.package.forward
    batch, channels, rest = shape
    binding = bound(record, B=batch, C=channels, rest=rest)
    ring = plan_launches(record, binding, HOST_MACHINE, found.norm.package.header).launches[0]
    assert ring.entry.endswith("_ring") and ring.cluster > 1
    prove(found, image_case(found, batch, channels, rest))


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


# ---------------------------------------------------------------------------------------- segments


def test_clusters_share_the_rows_of_more_segments_than_run_together():
    ring, _ = instances(B=8, C=64, rest=65536).launches
    assert (ring.cluster, ring.grid[0]) == (8, 8 * 30)  # as many as run together, each with shares of several
    (shape,) = {shape for _, shape, _ in instances(B=8, C=64, rest=65536).workspace}
    assert shape == (2 * 64, 1)  # 128 shares of 4 rows for 30 clusters, not 64 of 8


def test_segments_for_few_clusters():
    ring, _ = instances(B=8, C=3, rest=65536).launches
    assert ring.grid[0] == 8 * 3 * 8  # every row a cluster
    ring, _ = instances(B=8, C=300, rest=65536).launches
    (shape,) = {shape for _, shape, _ in instances(B=8, C=300, rest=65536).workspace}
    assert ring.grid[0] == 240
    assert shape == (300, 1)


@pytest.mark.parametrize("dtypes", [F32, BF16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(3, 5, 20000), (7, 3, 40000), (6, 9, 600)], ids=str)
def test_gradients_of_every_sample_in_segments(shape, dtypes):
    found = bundled_subject("adaln_modulate")
    batch, steps, width = shape
    extents = {"B": batch, "S": steps, "D": width}
    types = element_types(found.definition, dtypes)
    prove(found, Case(extents, (), types, dtypes.name), directions=("backward",))


# ---------------------------------------------------------------------------------------- no sums over rows

# Norm, rows, columns: registers of a cluster, and rings where moments are taken.
LONG = [
    ("softmax", 9, 30000, BF16, "registers", 4),
    ("softmax", 20, 65544, BF16, "registers", 16),
    ("softmax", 2, 262144, F32, "registers", 16),
    ("log_softmax", 9, 30000, BF16, "registers", 4),
    ("rmsnorm", 20, 70000, BF16, "registers", 8),
    ("add_rmsnorm", 2, 131080, F32, "registers", 16),
    ("layernorm", 3, 16384, F32, "registers", 2),
    ("layernorm", 9, 30000, BF16, "ring", 1),
    ("layernorm", 20, 65536, BF16, "ring", 4),
    ("layernorm", 3, 32768, F32, "registers", 8),
    ("layernorm", 20, 65536, F32, "skewed", 8),
    ("layernorm", 2, 262144, F32, "ring", 16),
    ("rmsnorm", 20, 131072, BF16, "skewed", 8),
]
# In a ring: one block a row and clusters, rows in registers and read again.
IN_A_RING = [
    ("softmax", 9, 30000, BF16, 1),
    ("softmax", 7, 20000, F32, 1),
    ("softmax", 20, 65544, BF16, 8),
    ("log_softmax", 20, 70000, BF16, 8),
    ("rmsnorm", 20, 131072, BF16, 8),
]


@pytest.mark.parametrize(("name", "rows", "width", "dtypes", "form", "cluster"), LONG)
def test_rows_without_sums_over_them(name, rows, width, dtypes, form, cluster):
    (launch,) = host_launches(name, "forward", dtypes.name, rest=rows, D=width)
    assert (launch.entry.rpartition("_")[2], launch.cluster) == (form, cluster)
    found = bundled_subject(name)
    prove(found, case_of(found, rows, width, dtypes), directions=("forward",))


@pytest.fixture
def rings_first(monkeypatch):
    """Rings before all that would be taken."""
    usual = choose.tiers

    def tiers(shape, device):
        rings = long_rows(shape)
        return [*([ring] for ring in rings), *usual(shape, device)]

    monkeypatch.setattr(choose, "tiers", tiers)


@pytest.mark.parametrize(("name", "rows", "width", "dtypes", "cluster"), IN_A_RING)
def test_rows_in_a_ring_without_sums_over_them(name, rows, width, dtypes, cluster, rings_first):
    (ring,) = host_launches(name, "forward", dtypes.name, rest=rows, D=width)
    assert ring.entry.endswith("_ring")
    assert ring.cluster == cluster
    assert ring.grid[0] <= 6 * cluster
    found = bundled_subject(name)
    fresh = replace(found, norm=Norm(found.norm.package))
    prove(fresh, case_of(found, rows, width, dtypes), directions=("forward",))


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_a_ring_in_place(name, rings_first):
    x = np.random.default_rng(4).standard_normal((9, 20000)).astype(np.float32)
    norm = Norm(bundled_subject(name).norm.package).on(CHECKED)
    expected = np.asarray(norm.forward(x=x.copy()).y)
    made = norm.forward(x=x, out={"y": x})
    assert same_bits(expected, np.asarray(made.y))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_stays(value):
    x = np.random.default_rng(4).standard_normal((5, 66000)).astype(np.float32)
    x[2, 40000] = value
    y = np.asarray(bundled_subject("softmax").norm.on(CHECKED).forward(x=x).y)
    short = np.asarray(bundled_subject("softmax").norm.on(CHECKED).forward(x=x[2:3, 39990:40010].copy()).y)
    assert np.isfinite(np.delete(y, 2, axis=0)).all()
    assert np.array_equal(np.isnan(y[2, 39990:40010]), np.isnan(short[0]))
