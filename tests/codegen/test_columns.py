"""The columns family: what is planned, how it is scheduled, and its texts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from normgen.families.columns.launch.lower import Columns
from normgen.kernel.group import Misfit
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from tests.codegen.columns_cases import (
    FIRST_AXIS,
    GROUPED,
    LAYERNORM2D,
    MASKED,
    MODULATED,
    POOLED,
    RMSNORM2D,
    SCALED,
    SOFTMAX2D,
    STARVED,
    kernel_of,
    packaged,
    plan_of,
)
from tests.codegen.norms import H200, SMALL, bound, usual_launches

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
    (SCALED, "backward", "B", "C", "...", [1], False, [("", False), ("", False)], ""),
    (POOLED, "backward", "B", "C", "...", [1], False, [("", False)], ""),
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


# ------------------------------------------------------------------------------------------------ schedules


# A maximum and a sum, which are one exchange where columns stream and two where they do not.
SOFTMAX = SOFTMAX2D.replace("H, W", "...")
EXTENT = st.sampled_from([1, 2, 3, 7, 8, 33, 49, 64, 151, 196, 1000, 3136, 4096, 20000, 65536])


@settings(max_examples=300, deadline=None)
@given(
    text=st.sampled_from([LAYERNORM2D, RMSNORM2D, SOFTMAX]),
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
    record = getattr(packaged(text), direction)
    kernel = kernel_of(text, direction)
    binding = bound(record, dtype, alignment=max(alignment, 4), B=outer, C=reduced, rest=across)
    call = Call(binding, device, "")
    schedule = next(Columns().space(kernel, call))
    assert 32 <= schedule.threads <= 1024
    assert schedule.threads % 32 == 0
    assert across % schedule.vector == 0
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
        assert {shape for _, shape, _ in planned.workspace} == {(first.grid[0], reduced)}
    else:
        chunks = outer * across // schedule.vector
        assert (first.grid[0] - 1) * schedule.lanes < chunks <= first.grid[0] * schedule.lanes
    # the arithmetic of a column does not depend on how many there are
    one = Call(bound(record, dtype, alignment=max(alignment, 4), B=1, C=reduced, rest=across), device, "")
    alone = next(Columns().space(kernel, one))
    assert (alone.form, alone.team, alone.items) == (schedule.form, schedule.team, schedule.items)


def test_offsets_have_64_bits_where_the_tensor_needs_them():
    record, kernel = packaged(SOFTMAX2D).forward, kernel_of(SOFTMAX2D, "forward")
    for batch, index in ((1, "int"), (1 << 10, "long long")):
        call = Call(bound(record, B=batch, C=64, H=256, W=256), H200, "")
        (launch,) = usual_launches(kernel, call)
        assert f"using index_t = {index};" in launch.source
        assert ("q" in launch.format) == (index == "long long")


# ------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_emitted_kernels(direction: str, golden: Callable[[str, str], None]) -> None:
    texts = [form.source for form in kernel_of(LAYERNORM2D, direction).forms if form.form != "second_stage"]
    golden(f"columns.{direction}.cu", "\n".join(texts))
