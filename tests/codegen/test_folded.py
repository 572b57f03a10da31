"""Moments of neighbours that blocks merge before they leave them: when that is planned and taken, and that it
is right.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.rows.compile.plan import plan_folded
from normgen.kernel.group import Misfit
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.alone import defined, emitted, planned
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound
from tests.codegen.ways import first, of_form
from tests.sampling import paired
from tests.verify.subjects import CHECKED, prove, same_bits

MOMENTS = """norm stats
attr groups: int = 2
axis G = groups
input  x[{axes}]
save   mu[{kept}]   = mean[{over}](x)
output var[{kept}]: f32 = mean[{over}]((x - mu)^2)
"""

# Axes of x, of its statistics, and of what they are over: what numbers rows, a row, what of it is folded, and
# what a block stays within.
PLANS = [
    ("B, ..., (G C)", "B, G", "C, ...", "B ...", "G C", "C", "B"),
    ("B, ..., (G C)", "G", "B, C, ...", "B ...", "G C", "C", ""),
    ("A, B, C, D", "B, C", "A, D", "A B", "C D", "D", "B"),
    ("B, S, (G C), D", "B, G, C", "S, D", "B S", "G C D", "D", "B"),
    ("B, S, (G C), D", "B, G", "S, C, D", "B S", "G C D", "C D", "B"),
]


@pytest.mark.parametrize(("axes", "kept", "over", "rows", "row", "folded", "segment"), PLANS)
def test_rows_of_which_blocks_merge_neighbours(axes, kept, over, rows, row, folded, segment):
    definition = defined(MOMENTS.format(axes=axes, kept=kept, over=over))
    plan = planned(definition, plan_folded)
    assert (plan.kept, plan.inner) == (tuple(rows.split()), tuple(row.split()))
    assert (plan.folded, plan.segment) == (tuple(folded.split()), tuple(segment.split()))
    assert not plan.levels and not plan.results
    assert [f.form for f in emitted(definition, plan_folded).forms] == ["pipeline", "second_stage"]


@pytest.mark.parametrize(
    "output",
    [
        "y[B, C]: f32 = mean[S, D]((x - mean[S, D](x))^2) + v",  # needs what has an axis of the row
        "y[B, C, D]: f32 = mean[S]((x - mean[S](x))^2)",  # every element of a row has its own
        "y[B, S]: f32 = mean[C, D]((x - mean[C, D](x))^2)",  # one row has all
        "y[B, S, C]: f32 = mean[D]((x - mean[D](x))^2)",  # nothing over rows
        "y[B, C]: f32 = sum[S, D](x^2)",  # no moments
        "y[B, S, C, D]: f32 = x - mean[S, D](x)",
    ],
)
def test_what_has_no_neighbours_to_merge(output):
    definition = defined(f"norm n\ninput x[B, S, C, D]\ninput v[C]\noutput {output}\n")
    with pytest.raises(Misfit):
        planned(definition, plan_folded)


def test_batches_of_any_size_have_texts_that_one_call_knows():
    """Few of them."""
    package = subject("groupnorm_channels_last", groups=32).norm.package

    def planned(samples: int, places: int):
        binding = bound(package.forward, "bf16", B=samples, G=32, C=10, rest=places)
        return plan_launches(package.forward, binding, H200, "folded")

    first = planned(1, 4096)
    known = {launch.source for launch in first.alike() if launch.entry == first.launches[0].entry}
    texts = {
        planned(*sizes).launches[0].source
        for sizes in ((1, 4096), (2, 900), (8, 4096), (24, 2500), (300, 4096))
    }
    assert texts <= known and len(texts) <= 4


# (samples, groups, channels of one, places): groups of parts of a vector, of several vectors, of no whole
# number of either; more groups than threads, one vector a thread and several; fewer rows than thread groups;
# rows that are no whole vectors.
SHAPES = [
    (1, 1, 24, 77), (1, 3, 5, 130), (65, 2, 4, 3), (1, 333, 7, 11), (1, 2, 1500, 9), (1, 1200, 1, 5),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dtypes"), paired(SHAPES, ["f32", "bf16", "bf16, params f32"]))
def test_groups_of_channels_that_come_last(shape, dtypes):
    samples, groups, channels, places = shape
    found = subject("groupnorm_channels_last", groups=groups, strategy="folded")
    made = case(found, dtypes, B=samples, C=channels, rest=places)
    prove(found, made, CHECKED, directions=("forward",))


@pytest.mark.parametrize(("channels", "within"), [(3, 1e4), (8, 0.0)])
def test_groups_that_are_far_from_their_neighbours(channels, within):
    """A vector has channels of several groups, each with a mean of its own; so may the channels of one."""
    random, groups = np.random.default_rng(4), 5
    means = 1e6 * random.permutation(groups)[:, None] + within * random.permutation(channels)
    x = (means + random.standard_normal((2, 60, groups, channels))).astype(np.float32)
    found = subject("groupnorm_channels_last", groups=groups, strategy="folded")
    made = found.norm.on(CHECKED).forward(x=x.reshape(2, 60, -1), save=True)
    exact = x.astype(np.float64)
    assert np.allclose(made.mu, exact.mean((1, 3)), rtol=1.2e-7, atol=1e-6)
    assert np.allclose(made.rstd, (exact.var((1, 3)) + 1e-5) ** -0.5, rtol=2e-6, atol=0)


def test_rows_that_begin_anywhere():
    found = subject("groupnorm_channels_last", groups=3, strategy="folded")
    record = found.norm.package.forward
    binding = bound(record, "bf16", G=3, B=2, C=105, rest=40)
    made = case(found, "bf16", B=2, C=105, rest=40)
    with first(of_form("pipeline", realigned=True)):
        statistics = plan_launches(record, binding, HOST_MACHINE, "folded").launches[0]
        assert "RealignedRow<" in statistics.source
        prove(found, replace(made, offset=1), CHECKED, directions=("forward",))


def test_the_same_bits_in_any_order_of_blocks_and_threads():
    x = np.random.default_rng(1).standard_normal((2, 50, 130)).astype(ml_dtypes.bfloat16)
    found = subject("groupnorm_channels_last", groups=13, strategy="folded")
    orders = ((0, 0), (1, 0), (2, 1), (2, 2))
    every = [found.norm.on(HostExecutor(True, *order)).forward(x=x, save=True) for order in orders]
    for name in ("y", "mu", "rstd"):
        first = getattr(every[0], name)
        assert all(same_bits(first, getattr(other, name)) for other in every[1:])
