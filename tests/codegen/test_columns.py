"""The columns family: what is planned, how it is scheduled, and what kernels compute on the checked host
executor, against float64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from normgen import bundled
from normgen.diagnostics import Source
from normgen.families.columns.compile.plan import plan_columns
from normgen.families.columns.launch import family
from normgen.families.columns.launch.family import Columns
from normgen.families.columns.launch.schedule import ColumnSchedule, ColumnShape
from normgen.families.columns.launch.space import starts
from normgen.kernel.group import Misfit
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.package.kernels import ColumnsRecord
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.draw import Sample
from normgen.verify.expected import Subject
from tests.codegen.alone import defined, planned
from tests.codegen.holding import case
from tests.codegen.norms import H200, SMALL, bound, usual_launches
from tests.host.mutation import Altered
from tests.sampling import paired
from tests.verify.subjects import prove, same_bits, subject_of

# A scale and a shift for each image and channel: their gradients are sums over the pixels of one image.
MODULATED = """norm modulated
attr eps >= 0 = 1e-5
input x[B, C, H, W]
input scale[B, C]
input shift[B, C]
save rstd[B, H, W] = rsqrt(mean[C](x^2) + eps)
output y[B, C, H, W] = x * rstd * (1 + scale) + shift
"""
# Operands over every kind of axes: pixels, rows of pixels, images. Only the forward is one kernel.
MASKED = """norm masked
attr eps >= 0 = 1e-5
input x[B, C, H, W]
input weight[C, H, W]
input gain[B]
param mask[H, W] = 1
param tint[W] = 0
param shade[C, H] = 1
save rstd[B, H, W] = rsqrt(mean[C](x^2) * gain^2 + eps)
output y[B, C, H, W] = (x * weight * rstd * mask + tint) * shade
"""
# The gradients of numbers are sums over everything.
SCALED = """norm scaled
attr eps >= 0 = 1e-5
input x[B, C, ...]
param alpha[] = 1
param beta[] = 0
save rstd[B, ...] = rsqrt(mean[C](x^2) + eps)
output y[B, C, ...] = x * rstd * alpha + beta
"""
# The gradient of a number is a sum over columns of what each of them has once.
POOLED = """norm pooled
input x[B, C, ...]
param beta[] = 1
let z = exp(mean[C](x) * 0.25)
output y[B, ...] = beta * z
"""


@cache
def subject(norm: str) -> Subject:
    """A bundled norm, or a text, whose passes are one kernel each."""
    found = subject_of(bundled.read(norm) or Source("spec.norm", norm))
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="fused")))


def kernel_of(norm: str, direction: str) -> ColumnsRecord:
    (kernel,) = getattr(subject(norm).norm.package, direction).strategies[0].kernels
    assert isinstance(kernel, ColumnsRecord)
    return kernel


MISFITS = [
    ("input x[B, D]\noutput y[B, D] = x / sum[D](x)", "without the innermost, D"),
    ("input x[B, C, W]\noutput y[B, C, W] = x / sum[B](x) / sum[C](x)", r"not over \[B\], \[C\]"),
    ("input x[B, C, W]\noutput y[B, C, W] = x * 2", "no reduction"),
    ("input x[B, C, W]\ninput z[W, B]\noutput y[B, C, W] = x * z / sum[C](x)", "W as its innermost axes"),
    (
        "input x[B, C, W]\nlet t[] = sum[B, C, W](x * sum[C](x))\noutput y[B, C, W] = x * sum[C](x) * t",
        "does not have the axes of the sums",
    ),
    (
        "input x[B, C, D, W]\noutput y[B, C, D, W] = x / sum[C](x)\noutput z[C, B] = sum[D, W](x)",
        "in the order",
    ),
]


@pytest.mark.parametrize(("body", "reason"), MISFITS, ids=lambda v: str(v)[-30:])
def test_misfit(body, reason):
    with pytest.raises(Misfit, match=reason):
        planned(defined(f"norm misfit\n{body}\n"), plan_columns)


# So few registers that no column is held in them.
STARVED = replace(HOST_MACHINE, multiprocessors=1, registers_per_multiprocessor=2560)
# A maximum and a sum, which are one exchange where columns stream and two where they do not.
SOFTMAX = bundled.read("softmax2d").text.replace("H, W", "...")
EXTENT = st.sampled_from([1, 2, 3, 7, 8, 33, 49, 64, 151, 196, 1000, 3136, 4096, 20000, 65536])


@settings(max_examples=300, deadline=None)
@given(
    text=st.sampled_from(["layernorm2d", "rmsnorm2d", SOFTMAX]),
    direction=st.sampled_from(["forward", "backward"]),
    outer=st.sampled_from([1, 2, 32, 70000]),
    reduced=EXTENT,
    across=EXTENT,
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    device=st.sampled_from([H200, SMALL, HOST_MACHINE, STARVED]),
    alignment=st.sampled_from([2, 4, 8, 16]),
)
@example(SOFTMAX, "forward", 8, 5000, 65536, "bf16", H200, 16)
def test_every_schedule_fits_its_device(text, direction, outer, reduced, across, dtype, device, alignment):
    assume(outer * reduced * across < 2**40)
    assume(device is not STARVED or outer * across < 2**31)  # it has one column a block
    record = getattr(subject(text).norm.package, direction)
    kernel = kernel_of(text, direction)
    binding = bound(record, dtype, alignment=max(alignment, 4), B=outer, C=reduced, rest=across)
    call = Call(binding, device, "")
    schedule = next(Columns().space(kernel, call))
    assert 32 <= schedule.threads <= 1024
    assert schedule.threads % 32 == 0
    assert across % schedule.vector == 0 or schedule.realigned
    assert schedule.team * schedule.items >= reduced
    assert schedule.lanes <= 32 or not kernel.columns
    assert schedule.threads * schedule.registers <= device.registers_per_multiprocessor
    planned = Columns().lower(kernel, call, schedule)
    first, *rest = planned.launches
    values = int(re.search(r"ColumnExchange<LANES, TEAM, VEC, (\d+)> exchange", first.source)[1])
    if schedule.team > 1:
        assert 4 * (schedule.team + 1) * values * schedule.vector * schedule.lanes <= 48 * 1024
    assert len(rest) == bool(kernel.columns)
    assert first.grid[1:] == (1, 1)
    assert all(max(x.grid) < 2**31 for x in planned.launches)
    if kernel.columns:
        (partial_pitch,) = {column.partial(reduced) for column in kernel.columns}
        assert {shape for _, shape, _ in planned.workspace} == {(first.grid[0], partial_pitch)}
    else:
        chunks = outer * -(-across // schedule.vector)
        assert (first.grid[0] - 1) * schedule.lanes < chunks <= first.grid[0] * schedule.lanes


def test_offsets_have_64_bits_where_the_tensor_needs_them():
    record, kernel = subject("softmax2d").norm.package.forward, kernel_of("softmax2d", "forward")
    for batch, index in ((1, "int"), (1 << 10, "long long")):
        call = Call(bound(record, B=batch, C=64, H=256, W=256), H200, "")
        (launch,) = usual_launches(kernel, call)
        assert f"using index_t = {index};" in launch.source
        assert ("q" in launch.format) == (index == "long long")


# One multiprocessor, so that blocks walk several tiles; on one the next is on its way where there is one, on
# another no column is held in registers.
ONE = replace(HOST_MACHINE, multiprocessors=1)
STREAMS = replace(ONE, name="streams")
AHEAD = replace(ONE, name="ahead")
DEVICES = (ONE, AHEAD, STREAMS)


@contextmanager
def running_on(device: Machine, order: int = 0) -> Iterator[Altered]:
    """An executor, on whose device columns stream or come ahead if it says so."""
    usual = family.pick

    def wanted(s: ColumnSchedule, shape: ColumnShape) -> bool:
        if device is STREAMS:
            return not s.holds
        return device is not AHEAD or s.ahead or not shape.persistent

    def picked(*given: Any) -> ColumnSchedule:
        shape = family.shape_of(*given[1:3])
        return next(s for s in (usual(*given), *starts(shape)) if wanted(s, shape))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "pick", picked)
        yield Altered(device, order)


def check(text, device, samples=None, directions=("forward", "backward"), **extents) -> Altered:
    found = subject(text)
    fresh = replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy="fused")))
    with running_on(device) as executor:
        prove(fresh, case(found, **extents), executor, samples, directions=directions)
    return executor


SIZES = {
    MODULATED: {"B": 3, "C": 7, "H": 11, "W": 6},
    MASKED: {"B": 3, "C": 70, "H": 11, "W": 6},
    SCALED: {"B": 3, "C": 70, "rest": 66},
    POOLED: {"B": 3, "C": 7, "rest": 66},
}


@pytest.mark.parametrize(("text", "device"), paired(SIZES, (ONE, AHEAD, STREAMS, HOST_MACHINE)))
def test_operands_and_sums_over_any_axes(text, device):
    directions = ("forward",) if text is MASKED else ("forward", "backward")
    executor = check(text, device, directions=directions, **SIZES[text])
    if device is STREAMS and text is not POOLED:
        assert all(entry.endswith(("_multipass", "_second_stage")) for entry, _ in executor.history)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_large_mean_and_small_deviation(device):
    check("layernorm2d", device, {"x": Sample("normal", 1e6, 1.0)}, B=2, C=77, rest=9)


def test_sums_over_columns_walk_tiles():
    """A block that takes several tiles, the last of them partly empty."""
    extents = {"B": 7, "C": 20, "rest": 999}
    for device in (ONE, STREAMS):
        check("layernorm2d", device, directions=("backward",), **extents)
    record, kernel = subject("layernorm2d").norm.package.backward, kernel_of("layernorm2d", "backward")
    call = Call(bound(record, **extents), ONE, "")
    schedule = next(Columns().space(kernel, call))
    grid = Columns().lower(kernel, call, schedule).launches[0].grid[0]
    assert 3 * grid * schedule.lanes * schedule.vector < 7 * 999


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_results_are_the_same_bits_in_any_order_and_batch_and_over_operands(device):
    random = np.random.default_rng(3)
    x, dy = random.normal(size=(2, 5, 33, 130)).astype(np.float32)
    w, b = random.normal(size=(2, 33)).astype(np.float32)
    every = []
    for order in (0, 1, 2):
        with running_on(device, order) as executor:
            norm = Norm(subject("layernorm2d").norm.package).on(executor)
            y, mu, rstd = norm.forward(x=x, w=w, b=b)
            dx, dw, db = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
            every.append((y, mu, rstd, dx, dw, db))
            one = norm.forward(x=x[2:3], w=w, b=b)
            assert same_bits(one.y, y[2:3])
            alone = norm.backward(dy=dy[2:3], x=x[2:3], w=w, mu=mu[2:3], rstd=rstd[2:3])
            assert same_bits(alone.dx, dx[2:3])
            dx = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd, wrt=("x",)).dx
            over = dy.copy()
            norm.backward(dy=over, x=x, w=w, mu=mu, rstd=rstd, wrt=("x",), out={"dx": over})
            assert same_bits(over, dx)
            over = x.copy()
            norm.forward(x=over, w=w, b=b, out={"y": over})
            assert same_bits(over, y)
    assert all(same_bits(a, b) for other in every[1:] for a, b in zip(every[0], other, strict=True))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_the_stated_bytes_are_the_moved_ones(device):
    for direction in ("forward", "backward"):
        record = getattr(subject("layernorm2d").norm.package, direction)
        kernel, extents = kernel_of("layernorm2d", direction), {"B": 4, "C": 40, "rest": 32}
        with running_on(device):
            call = Call(bound(record, **extents), device, "")
            stated = Columns().moved(kernel, call, next(Columns().space(kernel, call)))
        executor = check("layernorm2d", device, directions=(direction,), **extents)
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
