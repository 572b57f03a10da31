"""Rows in pieces that are added up besides: what is planned, when it is taken, that it is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from normgen.codegen.strategies.stages import groups_of
from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.errors import ToolchainMissing
from normgen.families.rows.compile.plan import plan_in_pieces
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from normgen.launching.launch import Launch
from normgen.runtime.planning.choose import alternatives, plan_launches
from tests.codegen.holding import LESS_OR_MORE, case, launched, subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import CHECKED, prove

NAME = "groupnorm_channels_last"
KERNELS = [f"{NAME}_backward_registers", f"{NAME}_backward_finalise"]

# --------------------------------------------------------------------------------------------------- the plan


def planned(name: str, groups: int = 0) -> KernelPlan:
    (group,) = groups_of(centre(backward(subject(name, groups).definition)), "k")
    return plan_in_pieces(group)


def test_pieces_of_a_group_are_added_up_channel_by_channel():
    plan = planned(NAME, 4)
    assert (plan.kept, plan.pieces, plan.piece) == (("B", "G"), ("...",), ("C",))
    assert {(c.kept, c.part, c.wide) for c in plan.columns} == {(("G",), ("C",), False)}
    assert plan.adds_pieces and plan.inside == plan.pieces and not plan.segment
    assert [r.tensor.name for r in plan.finals] == ["dw", "db"]


def test_accumulators_that_keep_more_or_less_of_what_numbers_the_rows():
    plan = planned("modulated")
    assert {c.kept for c in plan.columns} == {("B", "G"), ("G",)}
    assert {r.tensor.name for r in plan.finals} == {"ds", "db"}


def test_what_needs_the_sums_of_its_row_follows_them_if_it_is_no_multiple():
    (group,) = groups_of(centre(subject("squashed").definition.program), "k")
    assert not any(c.terms for c in plan_in_pieces(group).columns)
    assert all(c.terms for c in planned("bounded").columns)


@pytest.mark.parametrize(
    "total",
    [
        "total[C] = sum[B, S, D](x)",  # is a sum of the row
        "total[D] = sum[B, S, C](x)",
        "total[C, D] = sum[B, S](x)",
    ],
)
def test_sums_that_keep_a_whole_piece_or_nothing_of_a_row(total):
    assert _fits(total)


@pytest.mark.parametrize(
    "total",
    [
        "total[B, C, D] = sum[S](x)",  # part of what numbers the pieces
        "total[B, S] = sum[C, D](x)",  # over a piece
        "total[C, D] = max[B, S](x)",
        "total[C, D] = sum[B, S]((x - mean[B, S](x))^2)",  # one needs the other
    ],
)
def test_other_sums_are_left_to_several_kernels(total):
    assert not _fits(total)


def _fits(total: str) -> bool:
    text = f"norm n\ninput x[B, S, C, D]\noutput y[B, S, C, D] = x - mean[B, S, D](x)\noutput {total}\n"
    definition = load_definition(Source("spec.norm", text), {})
    (group,) = groups_of(centre(definition.program), "k")
    try:
        plan = plan_in_pieces(group)
    except Misfit:
        return False
    return plan.adds_pieces or not plan.columns


def test_the_text(golden):
    (found,) = [s for s in subject(NAME, 4).norm.package.backward.strategies if s.name == "whole"]
    golden("pieces.backward.cu", "\n".join(form.source for kernel in found.kernels for form in kernel.forms))


# ----------------------------------------------------------------------------------------- when it is taken


def launches(
    dtype: str, channels: int, places: int, batch: int = 8, strategy: str | None = "whole"
) -> tuple[Launch, ...]:
    package = subject(NAME, 32).norm.package
    binding = bound(package.backward, dtype, B=batch, G=32, C=channels, rest=places)
    return plan_launches(package.backward, binding, H200, package.header, strategy).launches


def test_calls_take_it_by_themselves_where_groups_are_small():
    assert [each.entry for each in launches("bf16", 40, 256, strategy=None)] == KERNELS
    assert launches("bf16", 16, 65536, batch=2, strategy=None)[0].entry not in KERNELS


# Blocks and threads of each: these have whole pieces, side by side.
TAKEN = [
    ("bf16", 40, 256, 1, 320),
    ("f32", 40, 256, 2, 320),
    ("bf16", 40, 250, 1, 320),
    ("bf16", 64, 256, 2, 256),
    ("bf16", 64, 1024, 8, 256),
    ("f16", 20, 256, 1, 160),
]


@pytest.mark.parametrize(("dtype", "channels", "places", "blocks", "threads"), TAKEN)
def test_groups_that_a_team_holds_are_read_once(dtype, channels, places, blocks, threads):
    for batch in (1, 8, 64):  # a group's bits do not depend on how many there are
        rows, final = launches(dtype, channels, places, batch)
        assert [rows.entry, final.entry] == KERNELS
        assert (rows.cluster, rows.block[0]) == (blocks, threads)


@pytest.mark.parametrize(("channels", "places"), [(10, 4096), (40, 1 << 17), (8192, 64)])
def test_narrow_pieces_and_long_groups_are_not(channels, places):
    assert launches("bf16", channels, places, strategy=None)[0].entry not in KERNELS


def test_one_block_leaves_one_partial_of_a_row_and_a_cluster_as_many_as_it_has_blocks():
    record = subject(NAME, 32).norm.package.backward
    for places, blocks in ((256, 1), (1024, 4)):
        binding = bound(record, "bf16", B=8, G=32, C=40, rest=places)
        plan = plan_launches(record, binding, H200, strategy="whole")
        assert plan.launches[0].cluster == blocks
        sizes = {name: shape for name, shape, _ in plan.workspace}
        assert set(sizes.values()) == {(8 * 32 * blocks, 40)}


# --------------------------------------------------------------------------------------------- what it gives

# (samples, channels of a group, places): vectors of one element and of several, one vector a piece and more,
# one place, fewer vectors than threads, more places of a piece than threads.
SHAPES = [(5, 40, 5), (1, 16, 96), (3, 10, 70), (2, 3, 33), (1, 40, 256), (5, 1, 9), (2, 24, 1), (2, 512, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16", "bf16, params f32"])
def test_gradients_of_groups(shape, dtypes):
    found = subject(NAME, 3)
    extents = dict(zip(("B", "C", "rest"), shape, strict=True))
    assert launched(found, "f32", "whole", G=3, **extents) == KERNELS
    made = case(found, dtypes, **extents)
    prove(found, made, directions=("backward",))
    prove(found, replace(made, offset=1), directions=("backward",))


@pytest.mark.parametrize("shape", [(2, 40, 600), (1, 20, 1024), (1, 64, 512), (2, 10, 1500)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_groups_in_clusters(shape, dtype):
    found = subject(NAME, 2)
    batch, channels, places = shape
    record = found.norm.package.backward
    binding = bound(record, dtype, B=batch, G=2, C=channels, rest=places)
    made = case(found, dtype, B=batch, C=channels, rest=places)
    if plan_launches(record, binding, H200, strategy="whole").launches[0].cluster > 1:
        prove(found, made, HostExecutor(), directions=("backward",))


def test_a_cluster_under_the_checker():
    found = subject(NAME, 1)
    record = found.norm.package.backward
    extents = {"B": 2, "C": 20, "rest": 550}
    (first, _) = plan_launches(record, bound(record, "f32", G=1, **extents), H200, strategy="whole").launches
    assert first.cluster > 1
    prove(found, case(found, "f32", **extents), CHECKED, directions=("backward",))


@pytest.mark.parametrize("dtypes", ["f32", "bf16", "bf16, params f32"])
@pytest.mark.parametrize("shape", [(3, 40, 9), (1, 12, 70), (5, 3, 33)], ids=str)
@pytest.mark.parametrize(
    ("name", "direction"), [("modulated", "backward"), ("bounded", "backward"), ("squashed", "forward")]
)
def test_sums_of_samples_and_of_what_is_no_multiple_of_a_gain(name, direction, shape, dtypes):
    found = subject(name)
    record = getattr(found.norm.package, direction)
    extents = dict(zip(("B", "C", "rest"), shape, strict=True))
    plan = plan_launches(record, bound(record, "f32", G=2, **extents), H200, strategy="whole")
    assert plan.launches[0].entry == f"{name}_{direction}_registers"
    prove(found, case(found, dtypes, **extents), directions=(direction,))


@pytest.mark.parametrize("way", LESS_OR_MORE, ids=str)
def test_calls_that_want_or_give_less_or_more(way):
    found = subject(NAME, 2)
    for dtype in ("f32", "bf16"):
        made = replace(case(found, dtype, B=3, G=2, C=12, rest=50), **way)
        prove(found, made, directions=("backward",))


def test_a_group_has_the_same_bits_in_any_batch():
    norm = subject(NAME, 2).norm
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((2, 5, 70, 24)).astype(np.float32)
    w = rng.standard_normal(24).astype(np.float32)
    save = norm.forward(x=x, w=w)
    all_of_them = norm.backward(dy=dy, x=x, w=w, mu=save.mu, rstd=save.rstd).dx
    for b in range(5):
        own = slice(b, b + 1)
        one = norm.backward(dy=dy[own], x=x[own], w=w, mu=save.mu[own], rstd=save.rstd[own]).dx
        assert np.array_equal(one, all_of_them[own])


def test_everything_is_read_once_and_that_is_what_is_stated():
    executor = HostExecutor(checked=True)
    norm = subject(NAME, 2).norm.on(executor)
    x, dy = np.random.default_rng(3).standard_normal((2, 2, 70, 24)).astype(np.float32)
    w = np.ones(24, np.float32)
    save = norm.forward(x=x, w=w, b=w)
    executor.history.clear()
    norm.backward(dy=dy, x=x, w=w, mu=save.mu, rstd=save.rstd)
    moved: Counter[str] = Counter()
    for _, traffic in executor.history:
        for seen in traffic:
            once = seen.distinct_read + seen.distinct_written
            moved[seen.name.removesuffix("_ptr")] += once
            assert seen.name not in ("x_ptr", "dy_ptr", "dx_ptr") or seen.read + seen.written == once
    record = norm.package.backward
    binding = bound(record, "f32", B=2, G=2, C=12, rest=70)
    (way,) = [a for a in alternatives(record, binding, executor.device) if a.strategy.name == "whole"]
    (taken,) = way.kernels
    stated = taken.cost.moved.items()
    assert moved == {
        array.removeprefix(f"{taken.kernel.name}.") + "_partial" * ("." in array): n for array, n in stated
    }


def test_what_is_not_finite_shows():
    norm = subject(NAME, 2).norm
    x = np.ones((2, 64, 8), np.float32)
    x[1, 7, 5] = np.nan
    dy, w = np.ones_like(x), np.ones(8, np.float32)
    save = norm.forward(x=x, w=w, b=w)
    made = norm.backward(dy=dy, x=x, w=w, mu=save.mu, rstd=save.rstd)
    assert np.isnan(made.dx[1, :, 4:]).all() and np.isfinite(made.dx[0]).all()
    assert np.isfinite(made.dx[1, :, :4]).all() and np.isfinite(made.dw[:4]).all()
    assert np.isnan(made.dw[4:]).all()


# ---------------------------------------------------------------------------------------------------- nvcc


@pytest.mark.nvcc
@pytest.mark.parametrize(("dtype", "channels", "places", "blocks", "threads"), TAKEN)
def test_nothing_is_spilled(dtype, channels, places, blocks, threads):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    source = launches(dtype, channels, places)[0].source
    for arch in ("sm_80", "sm_90", "sm_100") if blocks == 1 else ("sm_90", "sm_100"):
        assert compile_text(source, arch)[1][0].spilled == 0
