"""What columns kernels compute on the checked host executor, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.families.columns.launch.lower import Columns
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS, DtypeSet
from normgen.verify.draw import Sample
from tests.codegen.columns_cases import (
    AHEAD,
    FIRST_AXIS,
    FORMS,
    GROUPED,
    LAYERNORM2D,
    MASKED,
    MODULATED,
    ONE,
    POOLED,
    RMSNORM2D,
    SCALED,
    SOFTMAX2D,
    STREAMS,
    On,
    check,
    kernel_of,
    lengths,
    outcomes,
    packaged,
    running_on,
)
from tests.codegen.norms import bound

BF16, F16 = DTYPE_SETS[1], DTYPE_SETS[3]
# ------------------------------------------------------------------------------------------------ execution

# Covers I in {1, 3, 7, 8, 33, 1000}, R in {1, 2, 7, 64, 151, 1000} and O in {1, 2, 5}, with element types.
SIZES = [
    (1, 1, 1000, DTYPE_SETS[0]),
    (2, 2, 33, BF16),
    (5, 7, 8, DTYPE_SETS[2]),
    (1, 64, 7, F16),
    (2, 151, 8, DTYPE_SETS[6]),
    (5, 1000, 1, DTYPE_SETS[0]),
    (2, 1000, 3, BF16),
    (5, 151, 33, DTYPE_SETS[8]),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}x{s[2]}")
@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D, RMSNORM2D, FIRST_AXIS], ids=lambda t: t.split()[1])
def test_kernels_agree_with_float64(text, size):
    *extents, dtypes = size
    check(text, HOST_MACHINE, lengths(text, *extents), dtypes=dtypes)


@pytest.mark.parametrize("text", [MODULATED, MASKED, SCALED, POOLED, GROUPED], ids=lambda t: t.split()[1])
@pytest.mark.parametrize("size", [(3, 7, 22), (2, 70, 66)], ids=str)
@pytest.mark.parametrize(
    "device", [HOST_MACHINE, ONE, AHEAD, STREAMS], ids=["usual", "one", "ahead", "stream"]
)
def test_operands_and_sums_over_any_axes(text, size, device):
    check(text, device, lengths(text, *size))


@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D, FIRST_AXIS], ids=lambda t: t.split()[1])
@pytest.mark.parametrize("size", [(1, 1, 3), (3, 200, 33), (2, 70, 2000)], ids=str)
def test_columns_that_stream(text, size):
    entries = check(text, STREAMS, lengths(text, *size), dtypes=BF16)
    assert {e.rsplit("_", 1)[1] for e in entries} <= {"stream", "finalise"}


def test_long_columns_stream():
    entries = check(SOFTMAX2D, HOST_MACHINE, lengths(SOFTMAX2D, 1, 20000, 2))
    assert all(e.endswith("_stream") for e in entries)


LAYOUTS = [
    {"offset": 1},
    {"padded": True},
    {"offset": 3, "padded": True},
    {"absent": ("w",)},
    {"absent": ("w", "b")},
    {"accumulate": True},
    {"given_out": True, "offset": 1},
    {"save": False},
]


@pytest.mark.parametrize("how", LAYOUTS, ids=lambda h: "-".join(f"{k}" for k in h))
@FORMS
def test_layouts(how, device):
    check(LAYERNORM2D, device, lengths(LAYERNORM2D, 2, 20, 40), dtypes=BF16, **how)


@FORMS
@pytest.mark.parametrize("absent", [("mask",), ("tint", "shade"), ("mask", "tint", "shade")], ids="-".join)
def test_absent_operands_of_any_axes(absent, device):
    check(MASKED, device, lengths(MASKED, 3, 7, 22), absent=absent)


@FORMS
@pytest.mark.parametrize("reduced", [5, 77, 300])
def test_large_mean_and_small_deviation(device, reduced):
    samples = {"x": Sample("normal", 1e6, 1.0)}
    check(LAYERNORM2D, device, lengths(LAYERNORM2D, 2, reduced, 9), samples=samples)


@FORMS
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_within_its_column(device, value):
    x = np.linspace(-2, 2, 2 * 9 * 10, dtype=np.float32).reshape(2, 9, 2, 5)
    with running_on(device) as executor:
        norm = Norm(packaged(SOFTMAX2D)).on(executor)
        y = norm.forward(x=x).y
        x[1, 4, 0, 2] = value
        z = norm.forward(x=x).y
    touched = np.zeros_like(x, dtype=bool)
    touched[1, :, 0, 2] = True
    np.testing.assert_array_equal(z[~touched], y[~touched])
    column = x[1, :, 0, 2].astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(column - column.max())
        np.testing.assert_allclose(z[1, :, 0, 2], e / e.sum(), rtol=1e-6)


def test_sums_over_columns_walk_tiles():
    """A block that takes several tiles, the last of them partly empty."""
    executor = On(ONE)
    for found in outcomes(LAYERNORM2D, executor, {"B": 7, "C": 20, "...": 999}, directions=("backward",)):
        assert found.comparison.ok
    record = packaged(LAYERNORM2D).backward
    (kernel,) = record.kernels
    call = Call(bound(record, B=7, C=20, rest=999), ONE, "")
    schedule = next(Columns().space(kernel, call))
    (_, grid), _ = executor.entries
    assert 3 * grid * schedule.lanes * schedule.vector < 7 * 999


@FORMS
def test_results_are_the_same_bits_in_any_order_and_batch(device):
    random = np.random.default_rng(3)
    x = random.normal(size=(5, 33, 130)).astype(np.float32)
    dy = random.normal(size=x.shape).astype(np.float32)
    w, b = random.normal(size=(2, 33)).astype(np.float32)
    bits = set()
    for order in (0, 1, 2):
        with running_on(device, order) as executor:
            norm = Norm(packaged(LAYERNORM2D)).on(executor)
            y, mu, rstd = norm.forward(x=x, w=w, b=b)
            dx, dw, db = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
            bits.add(b"".join(a.tobytes() for a in (y, mu, rstd, dx, dw, db)))
            one = norm.forward(x=x[2:3], w=w, b=b)
            assert one.y.tobytes() == y[2:3].tobytes()
            alone = norm.backward(dy=dy[2:3], x=x[2:3], w=w, mu=mu[2:3], rstd=rstd[2:3])
            assert alone.dx.tobytes() == dx[2:3].tobytes()
    assert len(bits) == 1


@FORMS
@pytest.mark.parametrize("order", [0, 1, 2])
def test_results_over_operands(device, order):
    random = np.random.default_rng(4)
    x = random.normal(size=(3, 33, 13)).astype(np.float32)
    dy = random.normal(size=x.shape).astype(np.float32)
    with running_on(device, order) as executor:
        norm = Norm(packaged(LAYERNORM2D)).on(executor)
        y, mu, rstd = norm.forward(x=x)
        dx = norm.backward(dy=dy, x=x, mu=mu, rstd=rstd, wrt=("x",)).dx
        over = dy.copy()
        norm.backward(dy=over, x=x, mu=mu, rstd=rstd, wrt=("x",), out={"dx": over})
        np.testing.assert_array_equal(over, dx)
        over = x.copy()
        norm.forward(x=over, out={"y": over})
        np.testing.assert_array_equal(over, y)


SMALL_SIZE = st.sampled_from([1, 2, 3, 5, 8, 17, 32, 40])


@settings(max_examples=12, deadline=None)
@given(
    outer=st.integers(1, 3),
    reduced=SMALL_SIZE,
    across=SMALL_SIZE,
    offset=st.integers(0, 3),
    padded=st.booleans(),
    dtypes=st.sampled_from(DTYPE_SETS[:3]),
    device=st.sampled_from([ONE, AHEAD, STREAMS]),
)
def test_any_call(outer, reduced, across, offset, padded, dtypes: DtypeSet, device):
    check(LAYERNORM2D, device, lengths(LAYERNORM2D, outer, reduced, across),
          dtypes=dtypes, offset=offset, padded=padded)  # fmt: skip


@FORMS
@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D], ids=lambda t: t.split()[1])
def test_the_stated_bytes_are_the_moved_ones(text, device):
    extents = {"H": 4, "W": 8} if text is SOFTMAX2D else {"rest": 32}
    sizes = {"B": 4, "C": 40} | ({"H": 4, "W": 8} if text is SOFTMAX2D else {"...": 32})
    for direction in ("forward", "backward"):
        record, kernel = getattr(packaged(text), direction), kernel_of(text, direction)
        with running_on(device) as executor:
            call = Call(bound(record, B=4, C=40, **extents), device, "")
            stated = Columns().cost(kernel, call, next(Columns().space(kernel, call))).moved
            outcomes(text, executor, sizes, directions=(direction,))
        moved: dict[str, int] = {}
        distinct: dict[str, int] = {}
        for _, traffic in executor.history:
            for seen in traffic:
                name = seen.name.removesuffix("_ptr")
                moved[name] = moved.get(name, 0) + seen.read + seen.written
                distinct[name] = distinct.get(name, 0) + seen.distinct_read + seen.distinct_written
        shared = {"w", "b", *(("mu", "rstd") if direction == "backward" else ())}
        for array, count in stated.items():
            name = array.partition(".")[2] + "_partial" if "." in array else array
            assert count == (distinct if name in shared else moved)[name], array
