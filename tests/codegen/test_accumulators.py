"""Statistics over rows on the checked host executor: sums, maxima, minima, moments, states."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.kernel.group import Misfit
from normgen.verify.cases import Case, element_types
from normgen.verify.draw import Sample
from tests.codegen.alone import defined, emitted, planned, subject
from tests.sampling import paired
from tests.verify.subjects import BF16, CHECKED, F32, PLAIN, prove, same_bits

MOMENTS = """norm stats
attr eps >= 0 = 1e-5
input  x[{axes}]
save   mu[C]   = mean[B, ...](x)
save   rstd[C] = rsqrt(mean[B, ...]((x - mu)^2) + eps)
output spread[C]: f32 = sqrt(mean[B, ...]((x - mu)^2))
"""
NARROW, WIDE = MOMENTS.format(axes="B, C, ..."), MOMENTS.format(axes="B, ..., C")
EXTREMES = """norm extremes
input  x[{axes}]
output top[C]: f32 = max[B, ...](x)
output bottom[C]: f32 = min[B, ...](x)
output both[C]: f32 = max[B, ...](abs(x)) + sum[B, ...](x)
"""


@pytest.mark.parametrize(
    "output",
    [
        "y[D]: f32 = sum[N](exp(x - max[N](x)))",  # a maximum that a sum needs is no accumulator
        "y[N, D] = x - mean[N](x)",  # an accumulator that elements need is no final
    ],
)
def test_misfit(output):
    with pytest.raises(Misfit, match="reduces over"):
        planned(defined(f"norm n\ninput x[N, D]\noutput {output}\n"))


# ------------------------------------------------------------------------------------------------ moments

SHAPES = [(1, (1,), 1), (65540, (1,), 8), (300, (3,), 5), (1, (40000,), 1), (2, (40, 50), 2)]
FAR = {"x": Sample("normal", 1e6, 1.0)}


def case_of(found, shape, dtypes=F32, **how) -> Case:
    batch, rest, channels = shape
    extents = {"B": batch, "...": prod(rest), "C": channels}
    return Case(extents, rest, element_types(found.definition, dtypes), dtypes.name, **how)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", [NARROW, WIDE], ids=["narrow", "wide"])
def test_moments_far_from_zero(text, shape):
    found = subject(text)
    prove(found, case_of(found, shape), PLAIN if shape[0] > 60000 else CHECKED, FAR)


def statistics(text, x, executor=CHECKED):
    made = subject(text).norm.on(executor).forward(x=x, save=True)
    return {name: np.asarray(getattr(made, name)) for name in made._fields}


def channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


LAYOUTS = [(NARROW, lambda x: x), (WIDE, channels_last)]


@pytest.mark.parametrize(("text", "laid"), LAYOUTS, ids=["narrow", "wide"])
def test_an_unlucky_first_value_costs_nothing(text, laid):
    x = (1e6 + np.random.default_rng(5).standard_normal((64, 3, 33))).astype(np.float32)
    x[0, :, 0] = 0, 1e6, -1e6
    exact = x.astype(np.float64)
    made = statistics(text, laid(x))
    assert np.allclose(made["mu"], exact.mean((0, 2)), rtol=1.2e-7, atol=0)
    assert np.allclose(made["spread"], exact.std((0, 2)), rtol=2e-6, atol=0)


# In a channel: what is among its values, and the mean that the formulas give; the deviation is no number.
SPECIAL = [
    ([np.inf], np.inf),
    ([-np.inf], -np.inf),
    ([np.inf, np.inf], np.inf),
    ([np.inf, -np.inf], np.nan),
    ([np.nan], np.nan),
    ([np.nan, np.inf], np.nan),
]


@pytest.mark.parametrize(("text", "laid"), LAYOUTS, ids=["narrow", "wide"])
def test_infinity_and_nan(text, laid):
    """At the first place of a channel, within it, and at its last."""
    usual = np.random.default_rng(3).standard_normal((40, len(SPECIAL) + 1, 21)).astype(np.float32)
    for at in (0, 1, -1):
        x = usual.copy()
        for channel, (values, _) in enumerate(SPECIAL):
            for k, value in enumerate(values):
                x[at, channel, at - k] = value
        made = statistics(text, laid(x))
        assert np.array_equal(made["mu"][:-1], [mean for _, mean in SPECIAL], equal_nan=True)
        assert np.all(np.isnan(made["spread"][:-1]))
        assert np.allclose(made["spread"][-1], usual[:, -1].std(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize(("text", "laid"), LAYOUTS, ids=["narrow", "wide"])
def test_the_same_bits_in_any_order_of_blocks_and_threads(text, laid):
    x = laid(np.random.default_rng(1).standard_normal((50, 6, 130)).astype(ml_dtypes.bfloat16))
    every = [statistics(text, x, HostExecutor(True, *order)) for order in ((0, 0), (1, 0), (2, 1), (2, 2))]
    for name, values in every[0].items():
        assert all(same_bits(values, other[name]) for other in every[1:])


# ------------------------------------------------------------------------------------------------ others


@pytest.mark.parametrize(("axes", "shape"), paired(["B, C, ...", "B, ..., C"], SHAPES[2:]))
def test_maxima_minima_and_sums(axes, shape):
    found = subject(EXTREMES.format(axes=axes))
    prove(found, case_of(found, shape, BF16), samples={"x": Sample("normal", -5.0, 1.0)})


def test_states_that_read_each_other_read_what_was_there():
    text = """norm swapped
    input x[B, C]
    state a[C] = 0
    state b[C] = 0
    output m[C]: f32 = max[B](x)
    update a = b + sum[B](x)
    update b = a + max[B](x)
    """
    assert emitted(defined(text)).groups == 1
    x = np.random.default_rng(2).standard_normal((9, 70)).astype(np.float32)
    a, b = np.arange(70, dtype=np.float32), 100 - np.arange(70, dtype=np.float32)
    old = a.copy(), b.copy()
    subject(text).norm.on(CHECKED).forward(x=x, a=a, b=b)
    assert np.allclose(a, old[1] + x.sum(0), atol=1e-4)
    assert np.allclose(b, old[0] + x.max(0), atol=1e-4)
