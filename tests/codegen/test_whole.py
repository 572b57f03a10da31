"""Rows that teams hold while they sum parts of them: what is planned, when it is taken, that it is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen import bundled
from normgen.arrays import view
from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.stages import groups_of
from normgen.devices.cuda.compile import compile_text, find_nvcc
from normgen.devices.host.executor import HostExecutor
from normgen.dsl import load_definition
from normgen.errors import ToolchainMissing
from normgen.families.rows.compile.plan import plan_whole
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.show import show
from normgen.kernel.group import Misfit
from normgen.kernel.plan import KernelPlan
from normgen.package.direction import directions
from normgen.runtime.calls.binding import bind
from normgen.runtime.planning.choose import (
    Choice,
    alternatives,
    candidates,
    choose_strategy,
    chosen,
    plan_launches,
)
from tests.codegen.holding import LESS_OR_MORE, case, launched, subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import CHECKED, prove

# --------------------------------------------------------------------------------------------------- the plan


def planned(name: str, groups: int = 0) -> KernelPlan:
    definition = load_definition(
        subject(name, groups).definition.source, {"groups": groups} if groups else {}
    )
    (group,) = groups_of(centre(backward(definition)), "k")
    return plan_whole(group)


@pytest.mark.parametrize(
    ("name", "groups", "kept", "part"),
    [("groupnorm", 4, ("G",), ("C",)), ("adagn", 4, ("B", "G"), ("C",)), ("nested", 0, (), ("C",))],
)
def test_what_the_accumulators_keep(name, groups, kept, part):
    plan = planned(name, groups)
    assert {(c.kept, c.part, c.wide) for c in plan.columns} == {(kept, part, False)}
    assert not plan.segment and not plan.splits


def test_a_sum_that_needs_one_of_the_row_takes_it_in():
    (final,) = [r for r in planned("adagn", 4).finals if r.tensor.name == "dscale"]
    mean = "sum[C, ...](minus(x, mu)) * dy / (size[...] * size[C])"
    assert show(final.expr) == f"rstd * sum[...](dy * minus(x, mu) - {mean})"


def test_parts_of_two_kinds_are_left_to_several_kernels():
    definition = subject("twice").definition
    (group,) = groups_of(centre(backward(definition)), "k")
    with pytest.raises(Misfit):
        plan_whole(group)


@pytest.mark.parametrize("name", ["layernorm", "instancenorm", "batchnorm_channels_last", "layernorm2d"])
def test_what_one_kernel_does_anyway_or_no_row_holds_has_no_such_strategy(name):
    definition = load_definition(bundled.read(name), {})
    found = strategies(backward(definition), definition.source, "k")
    assert "whole" not in {s.name for s in found}


@pytest.mark.parametrize(
    ("file", "name", "groups", "direction"),
    [("parts.backward.cu", "groupnorm", 4, "backward"), ("pieces.forward.cu", "batchnorm", 0, "forward")],
)
def test_the_texts(file, name, groups, direction, golden):
    record = getattr(subject(name, groups).norm.package, direction)
    (found,) = [s for s in record.strategies if s.name == "whole"]
    golden(file, "\n".join(form.source for kernel in found.kernels for form in kernel.forms))


# ----------------------------------------------------------------------------------------- when it is taken

KERNEL = ["groupnorm_backward_registers", "groupnorm_backward_finalise"]


@pytest.mark.parametrize(
    ("name", "groups", "extents", "blocks", "threads"),
    [
        ("groupnorm", 32, {"G": 32, "C": 4, "rest": 4096}, 4, 128),
        ("groupnorm", 32, {"G": 32, "C": 10, "rest": 4096}, 8, 128),
        ("groupnorm", 32, {"G": 32, "C": 40, "rest": 256}, 1, 320),
        ("groupnorm", 32, {"G": 32, "C": 20, "rest": 256}, 1, 128),
        ("batchnorm", 0, {"B": 16, "rest": 1024}, 4, 128),
        ("batchnorm", 0, {"B": 32, "rest": 784}, 8, 128),
        ("batchnorm", 0, {"B": 256, "rest": 196}, 8, 128),
    ],
)
def test_long_images_have_small_blocks_and_as_many_for_few_groups_as_for_many(
    name, groups, extents, blocks, threads
):
    found = subject(name, groups)
    record = found.norm.package.forward
    kept = "B" if "G" in extents else "C"
    for count in (1, 64, 512):
        plan = plan_launches(record, bound(record, "bf16", **extents, **{kept: count}), H200)
        assert [(x.cluster, x.block[0]) for x in plan.launches] == [(blocks, threads)]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("name", "groups", "extents"),
    [
        ("groupnorm", 2, {"B": 1, "G": 2, "C": 4, "rest": 4096}),
        ("groupnorm_silu", 2, {"B": 1, "G": 2, "C": 10, "rest": 2100}),
        ("batchnorm", 0, {"B": 16, "C": 2, "rest": 1024}),
        ("batchnorm", 0, {"B": 32, "C": 2, "rest": 784}),
        ("batchnorm", 0, {"B": 256, "C": 2, "rest": 196}),
    ],
)
def test_long_images_in_small_blocks_are_right(name, groups, extents, dtype):
    found = subject(name, groups)
    prove(found, case(found, dtype, **extents), CHECKED, directions=("forward",))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("batch", "channels", "places"), [(8, 10, 4096), (8, 40, 256), (1, 2, 64), (16, 4, 49)]
)
def test_groups_that_a_cluster_holds_are_read_once(dtype, batch, channels, places):
    assert launched(subject("groupnorm", 32), dtype, B=batch, G=32, C=channels, rest=places) == KERNEL


@pytest.mark.parametrize(("channels", "places"), [(16, 1 << 19), (4, 1 << 21), (1, 1 << 24)])
def test_longer_groups_are_not(channels, places):
    found = subject("groupnorm", 32)
    record = found.norm.package.backward
    binding = bound(record, "bf16", B=2, G=32, C=channels, rest=places)
    assert {a.strategy.name for a in alternatives(record, binding, H200)} == {"fewest", "split"}
    knobs = candidates(record.strategies[0], binding, H200)[0][0].knobs
    assert chosen(record, binding, H200, "", Choice("whole", {"groupnorm_backward": knobs})) is None
    assert "registers" not in launched(found, "bf16", B=2, G=32, C=channels, rest=places)[0]


def test_groups_whose_channels_lie_apart_are_not_and_are_not_copied():
    norm = subject("groupnorm", 2).norm
    direction = directions(norm.package)[1]
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 3, 16, 8)).astype(np.float32)
    save = norm.forward(x=x[:, ::2].copy())
    given = {"x": x[:, ::2], "dy": dy[:, ::2], "mu": save.mu, "rstd": save.rstd}
    found = bind(direction, {name: view(array) for name, array in given.items()}, {}, ("dx", "dw", "db"))
    assert not found.copies
    ways = {a.strategy.name for a in alternatives(direction.record, found.binding, H200)}
    assert ways == {"fewest", "split"}
    packed = {name: np.ascontiguousarray(array) for name, array in given.items()}
    for one, other in zip(norm.backward(**given), norm.backward(**packed), strict=True):
        assert (one is None) == (other is None)
        assert one is None or np.allclose(one, other, atol=1e-5)


def test_without_clusters_longer_groups_are_not():
    record = subject("groupnorm", 32).norm.package.backward
    binding = bound(record, "bf16", B=8, G=32, C=10, rest=4096)
    older = replace(H200, name="A100", arch="sm_80")
    assert choose_strategy(alternatives(record, binding, older)).strategy.name != "whole"


# --------------------------------------------------------------------------------------------- what it gives

# (samples, channels of a group, places): vectors of one element and of several, runs of one lane and of all,
# teams within a warp, of several, and of several blocks.
SHAPES = [(3, 5, 1), (2, 3, 6), (3, 2, 64), (2, 7, 49), (5, 4, 196), (2, 3, 256), (1, 40, 256), (3, 1, 1000)]
LONG = [(2, 10, 4096), (1, 5, 8192)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["groupnorm", "groupnorm_silu", "adagn"])
def test_gradients_of_groups(name, shape):
    found = subject(name, 2)
    extents = dict(zip(("B", "C", "rest"), shape, strict=True))
    assert launched(found, "f32", "whole", G=2, **extents)[0] == f"{name}_backward_registers"
    for dtypes in ("f32", "bf16", "bf16, params f32"):
        made = case(found, dtypes, G=2, **extents)
        prove(found, made, directions=("backward",))
    prove(found, replace(case(found, "bf16", G=2, **extents), offset=1), directions=("backward",))


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_groups_in_clusters(shape, dtype):
    found = subject("groupnorm", 2)
    batch, channels, places = shape
    prove(
        found,
        case(found, dtype, B=batch, G=2, C=channels, rest=places),
        HostExecutor(),
        directions=("backward",),
    )


def test_a_cluster_under_the_checker():
    found = subject("groupnorm", 1)
    record = found.norm.package.backward
    (first, _) = plan_launches(record, bound(record, "f32", B=1, G=1, C=10, rest=1024), H200).launches
    assert first.cluster > 1
    prove(found, case(found, "f32", B=1, G=1, C=10, rest=1024), CHECKED, directions=("backward",))


@pytest.mark.parametrize(
    "sizes", [{"C": 3, "D": 2, "rest": 64}, {"C": 4, "D": 5, "rest": 21}, {"C": 2, "D": 1, "rest": 8}]
)
def test_several_axes_inside_those_that_are_kept(sizes):
    found = subject("nested")
    for batch in (1, 4):
        prove(found, case(found, "bf16", B=batch, **sizes), directions=("backward",))


@pytest.mark.parametrize("way", LESS_OR_MORE, ids=str)
def test_calls_that_want_or_give_less_or_more(way):
    found = subject("groupnorm", 2)
    for dtype in ("f32", "bf16"):
        made = replace(case(found, dtype, B=3, G=2, C=3, rest=128), **way)
        prove(found, made, directions=("backward",))


def test_what_is_not_finite_shows():
    norm = subject("groupnorm", 2).norm
    x = np.ones((2, 4, 64), np.float32)
    x[1, 3, 7] = np.nan
    dy = np.ones_like(x)
    save = norm.forward(x=x, w=np.ones(4, np.float32), b=np.zeros(4, np.float32))
    made = norm.backward(dy=dy, x=x, w=np.ones(4, np.float32), mu=save.mu, rstd=save.rstd)
    assert (
        np.isnan(made.dx[1, 2:]).all() and np.isfinite(made.dx[0]).all() and np.isfinite(made.dx[1, :2]).all()
    )
    assert np.isnan(made.dw[2:]).all() and np.isfinite(made.dw[:2]).all() and np.isfinite(made.db).all()


# ---------------------------------------------------------------------------------------------------- nvcc

# Images of the bench, but for those whose kernels spill on one of the devices.
COMPILED = [
    ("groupnorm", "backward", "f32", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("groupnorm", "backward", "bf16", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("adagn", "backward", "bf16", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("groupnorm_silu", "backward", "bf16", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("batchnorm", "forward", "bf16", {"B": 256, "C": 512, "rest": 196}),
    ("batchnorm", "forward", "f32", {"B": 32, "C": 256, "rest": 3136}),
    ("batchnorm", "backward", "bf16", {"B": 32, "C": 256, "rest": 3136}),
    ("batchnorm", "backward", "f32", {"B": 256, "C": 512, "rest": 196}),
    ("batchnorm", "forward", "f32", {"B": 16, "C": 64, "rest": 1024}),
    ("batchnorm", "forward", "f32", {"B": 8, "C": 64, "rest": 4096}),
    ("batchnorm", "forward", "bf16", {"B": 32, "C": 64, "rest": 784}),
    ("groupnorm", "forward", "bf16", {"B": 1, "G": 32, "C": 4, "rest": 4096}),
    ("groupnorm", "forward", "f32", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("groupnorm_silu", "forward", "bf16", {"B": 8, "G": 32, "C": 10, "rest": 4096}),
    ("batchnorm", "backward", "bf16", {"B": 256, "C": 512, "rest": 196}),
]


@pytest.mark.nvcc
@pytest.mark.parametrize(("name", "direction", "dtype", "extents"), COMPILED, ids=str)
def test_rows_that_are_held_spill_nothing(name, direction, dtype, extents):
    try:
        find_nvcc()
    except ToolchainMissing as reason:
        pytest.skip(f"what nvcc makes of the kernels was not looked at: {reason}")
    package = subject(name, 32 if "G" in extents else 0).norm.package
    record = getattr(package, direction)
    launch = plan_launches(record, bound(record, dtype, **extents), H200, package.header).launches[0]
    assert launch.entry == f"{name}_{direction}_registers" and launch.cluster > 1
    assert compile_text(launch.source, "sm_90")[1][0].spilled == 0
