"""The columns family: what is planned, how it is scheduled, and what its kernels compute."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normgen.codegen.group import Misfit
from normgen.proof.cases import DTYPE_SETS, DtypeSet
from normgen.proof.draw import Sample
from normgen.runtime.calling import Call
from normgen.runtime.columns import columns_launches, shape_of
from normgen.runtime.columns_schedule import choose
from normgen.runtime.host import DEVICE, HostExecutor, HostFault
from normgen.runtime.host_load import HostFunction
from normgen.runtime.norm import Norm
from normgen.runtime.records import ColumnsRecord, Device, Launch
from tests.codegen.columns_cases import (
    FIRST_AXIS,
    GROUPED,
    LAYERNORM2D,
    MASKED,
    MODULATED,
    RMSNORM2D,
    SCALED,
    SOFTMAX2D,
    outcomes,
    packaged,
    plan_of,
)
from tests.codegen.norms import H200, SMALL, bound
from tests.host.mutation import barrier_mutants

BF16, F16 = DTYPE_SETS[1], DTYPE_SETS[3]
# One multiprocessor, so that blocks walk several tiles; on another no column is held in registers.
ONE = replace(DEVICE, multiprocessors=1)
STREAMS = replace(ONE, name="streams")
STARVED = replace(ONE, registers_per_multiprocessor=2560)
FORMS = pytest.mark.parametrize("device", [ONE, STREAMS], ids=["registers", "stream"])


class On(HostExecutor):
    """Runs on a device of any kind, and keeps the launches."""

    def __init__(self, device: Device, checked: bool = True, order: int = 0) -> None:
        super().__init__(checked, order, maximum_steps=10**7)
        self._device = device
        self.entries: list[tuple[str, int]] = []

    @property
    def device(self) -> Device:
        return self._device

    def launch(self, function, launch: Launch, packed, buffers, stream) -> None:  # type: ignore[no-untyped-def]
        self.entries.append((launch.entry, launch.grid[0]))
        super().launch(function, launch, packed, buffers, stream)


@contextmanager
def running_on(device: Device, order: int = 0) -> Iterator[On]:
    """An executor, with columns streaming if the device says so."""
    with pytest.MonkeyPatch.context() as patch:
        if device is STREAMS:
            patch.setattr("normgen.runtime.columns_schedule._REGISTERS", 0)
        yield On(device, order=order)


# ------------------------------------------------------------------------------------------------ planning

# spec, direction: O, R, I, sums of each level, moments, (kept axes, wide) of each sum over columns, segment
PLANS = [
    (SOFTMAX2D, "forward", "B", "C", "H W", [1, 1], False, [], ""),
    (SOFTMAX2D, "backward", "B", "C", "H W", [1], False, [], ""),
    (LAYERNORM2D, "forward", "B", "C", "...", [1, 2], True, [], ""),
    (LAYERNORM2D, "backward", "B", "C", "...", [3], False, [("", True), ("", True)], ""),
    (RMSNORM2D, "backward", "B", "C", "...", [1], False, [("", True)], ""),
    (FIRST_AXIS, "forward", "", "N", "D", [1, 1], False, [], ""),
    (MODULATED, "backward", "B", "C", "H W", [1], False, [("B", True), ("B", True)], "B"),
    (MASKED, "forward", "B", "C", "H W", [1], False, [], ""),
    (SCALED, "backward", "B", "C", "...", [1], False, [("", False)], ""),
    (GROUPED, "backward", "B", "G E", "W", [1], False, [("", True)], ""),
]


@pytest.mark.parametrize(
    ("text", "direction", "outer", "reduced", "across", "levels", "moments", "sums", "segment"),
    PLANS,
    ids=[f"{p[0].split()[1]}-{p[1]}" for p in PLANS],
)
def test_plan(text, direction, outer, reduced, across, levels, moments, sums, segment):
    plan = plan_of(text, direction)
    assert (plan.outer, plan.reduced, plan.across) == tuple(
        tuple(x.split()) for x in (outer, reduced, across)
    )
    assert [len(level.sums) for level in plan.parts.levels] == levels
    assert (plan.parts.moments is not None) == moments
    assert sorted((" ".join(c.kept), c.wide) for c in plan.parts.columns) == sorted(sums)
    assert plan.parts.segment == tuple(segment.split())


MISFITS = [
    ("input x[B, D]\noutput y[B, D] = x / sum[D](x)", "other than the innermost, D"),
    ("input x[B, C, W]\noutput y[B, C, W] = x / sum[B](x) / sum[C](x)", r"there are: \[B\], \[C\]"),
    ("input x[B, C, W]\noutput y[B, C, W] = x * 2", "nothing is reduced"),
    ("input x[B, C, W]\ninput z[W, B]\noutput y[B, C, W] = x * z / sum[C](x)", "W as its innermost axes"),
    (
        "input x[B, C, H, W]\ninput z[C, W, H]\noutput y[B, C, H, W] = x * z / sum[C](x)",
        "H, W in another order",
    ),
    ("input x[B, C, W]\noutput y[C, W] = sum[B](x / sum[C](x))", r"there are: \[B\], \[C\]"),
    (
        "input x[B, C, W]\nlet t[] = sum[B, C, W](x * sum[C](x))\noutput y[B, C, W] = x * sum[C](x) * t",
        "has not the axes of the sums",
    ),
    (
        "input x[B, C, D, W]\noutput y[B, C, D, W] = x / sum[C](x)\noutput z[C, B] = sum[D, W](x)",
        "in the order",
    ),
]


@pytest.mark.parametrize(("body", "reason"), MISFITS, ids=lambda v: str(v)[-30:])
def test_misfit(body, reason):
    with pytest.raises(Misfit, match=reason):
        plan_of(f"norm misfit\n{body}\n", "forward")


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


def lengths(text: str, outer: int, reduced: int, across: int) -> dict[str, int]:
    if text is FIRST_AXIS:
        return {"N": reduced, "D": outer * across}
    if text is GROUPED:
        e = 7 if reduced % 7 == 0 else 1
        return {"B": outer, "G": reduced // e, "E": e, "W": across}
    if text in (SOFTMAX2D, MODULATED, MASKED):
        h = 11 if across % 11 == 0 else 2 if across % 2 == 0 else 1
        return {"B": outer, "C": reduced, "H": h, "W": across // h}
    return {"B": outer, "C": reduced, "...": across}


def check(text: str, device: Device, extents: dict[str, int], **how: object) -> list[str]:
    """Runs both directions, or what of them is one kernel; the entries that ran."""
    if text is MASKED:
        how["directions"] = ("forward",)
    with running_on(device) as executor:
        for found in outcomes(text, executor, extents, **how):  # type: ignore[arg-type]
            assert found.comparison.ok, (found, extents)
    return [entry for entry, _ in executor.entries]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}x{s[2]}")
@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D, RMSNORM2D, FIRST_AXIS], ids=lambda t: t.split()[1])
def test_kernels_agree_with_float64(text, size):
    *extents, dtypes = size
    check(text, DEVICE, lengths(text, *extents), dtypes=dtypes)


@pytest.mark.parametrize("text", [MODULATED, MASKED, SCALED, GROUPED], ids=lambda t: t.split()[1])
@pytest.mark.parametrize("size", [(3, 7, 22), (2, 70, 66)], ids=str)
@pytest.mark.parametrize("device", [DEVICE, ONE, STREAMS], ids=["usual", "one", "stream"])
def test_operands_and_sums_over_any_axes(text, size, device):
    check(text, device, lengths(text, *size))


@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D, FIRST_AXIS], ids=lambda t: t.split()[1])
@pytest.mark.parametrize("size", [(1, 1, 3), (3, 200, 33), (2, 70, 2000)], ids=str)
def test_columns_that_stream(text, size):
    entries = check(text, STREAMS, lengths(text, *size), dtypes=BF16)
    assert {e.rsplit("_", 1)[1] for e in entries} <= {"stream", "finalise"}


def test_long_columns_stream():
    entries = check(SOFTMAX2D, DEVICE, lengths(SOFTMAX2D, 1, 20000, 2))
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
    schedule, _ = choose(shape_of(kernel, call), ONE, 1)
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
    device=st.sampled_from([ONE, STREAMS]),
)
def test_any_call(outer, reduced, across, offset, padded, dtypes: DtypeSet, device):
    check(LAYERNORM2D, device, lengths(LAYERNORM2D, outer, reduced, across),
          dtypes=dtypes, offset=offset, padded=padded)  # fmt: skip


# ------------------------------------------------------------------------------------------------ schedules


def kernel_of(text: str, direction: str) -> ColumnsRecord:
    (kernel,) = getattr(packaged(text), direction).kernels
    return kernel


# Forms by the lengths, bf16 on an H200: elements a load, threads along a column, elements a thread.
TAKEN = [
    (SOFTMAX2D, "forward", {"B": 8, "C": 151, "H": 256, "W": 256}, "registers"),
    (SOFTMAX2D, "backward", {"B": 8, "C": 151, "H": 256, "W": 256}, "registers"),
    (LAYERNORM2D, "forward", {"B": 32, "C": 96, "rest": 3136}, "registers"),
    (LAYERNORM2D, "backward", {"B": 32, "C": 96, "rest": 3136}, "registers"),
    (SOFTMAX2D, "forward", {"B": 8, "C": 20000, "H": 16, "W": 16}, "stream"),
    (LAYERNORM2D, "backward", {"B": 8, "C": 20000, "rest": 256}, "stream"),
]


@pytest.mark.parametrize(("text", "direction", "extents", "form"), TAKEN, ids=lambda v: str(v)[:20].strip())
def test_form(text, direction, extents, form):
    record = getattr(packaged(text), direction)
    kernel = kernel_of(text, direction)
    call = Call(bound(record, "bf16", **extents), H200, "")
    schedule, rejected = choose(shape_of(kernel, call), H200, 132)
    assert schedule.form == form
    assert schedule.lanes * schedule.vector * 2 >= 64  # bytes of a run
    assert all(r.reason for r in rejected)
    if form == "registers":  # at least as many threads as keep memory busy
        assert schedule.blocks * schedule.threads >= 512


EXTENT = st.sampled_from([1, 2, 3, 7, 8, 33, 49, 64, 151, 196, 1000, 3136, 4096, 20000, 65536])


@settings(max_examples=300, deadline=None)
@given(
    text=st.sampled_from([LAYERNORM2D, RMSNORM2D]),
    direction=st.sampled_from(["forward", "backward"]),
    outer=st.sampled_from([1, 2, 32, 70000]),
    reduced=EXTENT,
    across=EXTENT,
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    device=st.sampled_from([H200, SMALL, DEVICE, STARVED]),
    alignment=st.sampled_from([2, 4, 8, 16]),
)
def test_every_schedule_fits_its_device(text, direction, outer, reduced, across, dtype, device, alignment):
    assume(outer * reduced * across < 2**40)
    record = getattr(packaged(text), direction)
    kernel = kernel_of(text, direction)
    binding = bound(record, dtype, alignment=max(alignment, 4), B=outer, C=reduced, rest=across)
    call = Call(binding, device, "")
    shape = shape_of(kernel, call)
    schedule, _ = choose(shape, device, device.multiprocessors)
    assert 32 <= schedule.threads <= 1024
    assert schedule.threads % 32 == 0
    assert across % schedule.vector == 0
    assert schedule.team * schedule.items >= reduced
    assert schedule.lanes <= 32 or not kernel.columns
    assert schedule.threads * schedule.registers <= device.registers_per_multiprocessor
    planned = columns_launches(kernel, call)
    first, *rest = planned.launches
    assert len(rest) == bool(kernel.columns)
    assert first.grid[1:] == (1, 1)
    assert all(max(x.grid) < 2**31 for x in planned.launches)
    if kernel.columns:
        assert {shape for _, shape, _ in planned.workspace} == {(first.grid[0], reduced)}
    else:
        chunks = outer * across // schedule.vector
        assert (first.grid[0] - 1) * schedule.lanes < chunks <= first.grid[0] * schedule.lanes
    # the arithmetic of a column does not depend on how many there are
    one = Call(bound(record, dtype, alignment=max(alignment, 4), B=1, C=reduced, rest=across), device, "")
    alone, _ = choose(shape_of(kernel, one), device, device.multiprocessors)
    assert (alone.form, alone.team, alone.items) == (schedule.form, schedule.team, schedule.items)


def test_images_of_any_size_share_a_kernel():
    texts = set()
    for batch, size in ((32, 3136), (32, 4096), (30, 3136), (64, 1600)):
        for direction in ("forward", "backward"):
            record = getattr(packaged(LAYERNORM2D), direction)
            call = Call(bound(record, "bf16", B=batch, C=96, rest=size), H200, "")
            texts |= {x.source for x in columns_launches(kernel_of(LAYERNORM2D, direction), call).launches}
    assert len(texts) <= 4  # forward, backward, partials; one may differ in the lanes of a block


def test_offsets_have_64_bits_where_the_tensor_needs_them():
    record, kernel = packaged(SOFTMAX2D).forward, kernel_of(SOFTMAX2D, "forward")
    for batch, index in ((1, "int"), (1 << 10, "long long")):
        call = Call(bound(record, B=batch, C=64, H=256, W=256), H200, "")
        (launch,) = columns_launches(kernel, call).launches
        assert f"using index_t = {index};" in launch.source
        assert ("q" in launch.format) == (index == "long long")


@FORMS
@pytest.mark.parametrize("text", [SOFTMAX2D, LAYERNORM2D], ids=lambda t: t.split()[1])
def test_the_stated_bytes_are_the_moved_ones(text, device):
    extents = {"H": 4, "W": 8} if text is SOFTMAX2D else {"rest": 32}
    sizes = {"B": 4, "C": 40} | ({"H": 4, "W": 8} if text is SOFTMAX2D else {"...": 32})
    for direction in ("forward", "backward"):
        record, kernel = getattr(packaged(text), direction), kernel_of(text, direction)
        with running_on(device) as executor:
            call = Call(bound(record, B=4, C=40, **extents), device, "")
            stated = columns_launches(kernel, call).moved
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


# ------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_emitted_kernels(direction: str, golden: Callable[[str, str], None]) -> None:
    texts = [form.source for form in kernel_of(LAYERNORM2D, direction).forms if form.form != "finalise"]
    golden(f"columns.{direction}.cu", "\n".join(texts))


def test_what_is_held_needs_its_operands_no_more():
    text = kernel_of(SOFTMAX2D, "forward").forms[0].source
    assert len(re.findall(r"unpack\(x_words", text)) == 2  # for the maximum, and for the exponentials


class Altered(On):
    """Runs a text in another's place."""

    def __init__(self, device: Device, text: str = "", instead: str = "", order: int = 0) -> None:
        super().__init__(device, order=order)
        self._text, self._instead = text, instead
        self.texts: dict[str, str] = {}

    def function(self, source: str, entry: str, shared: int) -> HostFunction:
        self.texts[entry] = source
        return super().function(self._instead if source == self._text else source, entry, shared)


# spec, direction, form, device, size: sizes at which every barrier is met, and how many there are
BARRIERS = [
    (LAYERNORM2D, "forward", "registers", DEVICE, (1, 40, 33), 2),
    (LAYERNORM2D, "backward", "registers", ONE, (7, 40, 700), 2),
    (SOFTMAX2D, "forward", "registers", DEVICE, (1, 40, 33), 2),
    (SOFTMAX2D, "forward", "stream", DEVICE, (1, 20000, 2), 2),
    (SCALED, "backward", "registers", ONE, (7, 40, 700), 3),
]


@pytest.mark.parametrize(
    ("text", "direction", "form", "device", "size", "count"),
    BARRIERS,
    ids=[f"{b[0].split()[1]}-{b[1]}-{b[2]}" for b in BARRIERS],
)
def test_a_missing_barrier_is_reported(text, direction, form, device, size, count):
    def run(instead: str = "", source: str = "", order: int = 0) -> Altered:
        executor = Altered(device, source, instead, order)
        for found in outcomes(text, executor, lengths(text, *size), directions=(direction,)):
            assert found.comparison.ok
        return executor

    source = next(t for entry, t in run().texts.items() if entry.endswith(f"_{form}"))
    needed = set()
    for line, mutant in barrier_mutants(source):
        for order in (0, 1):
            try:
                run(mutant, source, order)
            except HostFault:
                needed.add(line)
    assert len(needed) == count
