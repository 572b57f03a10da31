"""What columns kernels compute on the checked host executor, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.families.columns.launch.lower import Columns
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS
from normgen.verify.draw import Sample
from tests.codegen.columns_cases import (
    AHEAD,
    DEVICES,
    FIRST_AXIS,
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
from tests.sampling import paired

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


@pytest.mark.parametrize(("size", "text"), paired(SIZES, (SOFTMAX2D, LAYERNORM2D, RMSNORM2D, FIRST_AXIS)))
def test_kernels_agree_with_float64(size, text):
    *extents, dtypes = size
    check(text, HOST_MACHINE, lengths(text, *extents), dtypes=dtypes)


@pytest.mark.parametrize(
    ("text", "size", "device"),
    paired(
        (MODULATED, MASKED, SCALED, POOLED, GROUPED),
        ((3, 7, 22), (2, 70, 66)),
        (ONE, AHEAD, STREAMS, HOST_MACHINE),
    ),
)
def test_operands_and_sums_over_any_axes(text, size, device):
    check(text, device, lengths(text, *size))


@pytest.mark.parametrize(
    ("text", "size"),
    paired((SOFTMAX2D, LAYERNORM2D, FIRST_AXIS), ((1, 1, 3), (3, 200, 33), (2, 70, 2000))),
)
def test_columns_that_stream(text, size):
    entries = check(text, STREAMS, lengths(text, *size), dtypes=BF16)
    assert all(entry.endswith(("_multipass", "_second_stage")) for entry in entries)


def test_long_columns_stream():
    entries = check(SOFTMAX2D, HOST_MACHINE, lengths(SOFTMAX2D, 1, 20000, 2))
    assert all(e.endswith("_multipass") for e in entries)


@pytest.mark.parametrize(("device", "reduced"), paired(DEVICES, (5, 77, 300)))
def test_large_mean_and_small_deviation(device, reduced):
    samples = {"x": Sample("normal", 1e6, 1.0)}
    check(LAYERNORM2D, device, lengths(LAYERNORM2D, 2, reduced, 9), samples=samples)


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


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
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


@pytest.mark.parametrize(("device", "order"), paired(DEVICES, (0, 1, 2)))
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


@pytest.mark.parametrize(("text", "device"), paired((SOFTMAX2D, LAYERNORM2D), DEVICES))
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
