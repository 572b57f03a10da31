"""Rows in pieces, which only teams that hold them have: what is planned, when taken, that it is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.strategies.cut import strategies
from normgen.codegen.strategies.stages import groups_of
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.rows.compile.plan import plan_in_pieces
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.kernel.group import Misfit
from normgen.runtime.planning.choose import (
    alternatives,
    plan_launches,
)
from tests.codegen.holding import case, subject
from tests.codegen.norms import H200, bound
from tests.verify.subjects import CHECKED, prove

# --------------------------------------------------------------------------------------------------- the plan


def test_a_row_in_pieces():
    definition = subject("batchnorm").definition
    for program in (definition.program, backward(definition)):
        (found,) = [s for s in strategies(program, definition.source, "k") if s.name == "whole"]
        (plan,) = found.plans
        assert (plan.kept, plan.pieces, plan.piece) == (("C",), ("B",), ("...",))
        assert plan.levels and not plan.columns


def test_pieces_numbered_by_several_axes():
    definition = subject("video").definition
    (group,) = groups_of(centre(definition.program), "k")
    plan = plan_in_pieces(group)
    assert (plan.kept, plan.pieces, plan.piece) == (("C",), ("N", "T"), ("H", "W"))
    assert {o.tensor.name: (o.kept, o.inner) for o in plan.operands}["x"] == (("N", "T", "C"), ("H", "W"))


@pytest.mark.parametrize(
    "output",
    [
        "y[B, C, D] = x - mean[C](x)",  # no piece is contiguous
        "y[B, C, D] = x - mean[C, D](x)",  # one piece
        "y[B, C, D] = x - mean[B, D](x) - mean[D](x)",
        "y[B, C, D] = x - mean[B, D](x) + v",  # an operand with part of a row, of which each piece has one
    ],
)
def test_what_is_no_row_in_pieces(output):
    definition = load_definition(
        Source("spec.norm", f"norm n\ninput x[B, C, D]\ninput v[B]\noutput {output}\n"), {}
    )
    (group,) = groups_of(centre(definition.program), "k")
    with pytest.raises(Misfit):
        plan_in_pieces(group)


@pytest.mark.parametrize(("used", "found"), [("s", False), ("0", True)])
def test_a_state_that_every_element_needs_is_updated_by_another_kernel(used, found):
    text = f"""norm n
input x[B, C, D]
state s[C] = 0
output y[B, C, D] = x - mean[B, D](x) + {used}
update s = lerp(s, mean[B, D](x), 0.1)
"""
    definition = load_definition(Source("spec.norm", text), {})
    assert ("whole" in {s.name for s in strategies(definition.program, definition.source, "k")}) == found


# ----------------------------------------------------------------------------------------- when it is taken


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("samples", "channels", "places"), [(256, 512, 196), (32, 256, 3136), (32, 2048, 49), (2, 8, 16)]
)
def test_channels_that_a_cluster_holds_are_read_once(direction, dtype, samples, channels, places):
    record = getattr(subject("batchnorm").norm.package, direction)
    plan = plan_launches(record, bound(record, dtype, B=samples, C=channels, rest=places), H200)
    assert [x.entry for x in plan.launches] == [f"batchnorm_{direction}_registers"]
    assert not plan.workspace


def test_longer_channels_are_not():
    for direction in ("forward", "backward"):
        record = getattr(subject("batchnorm").norm.package, direction)
        binding = bound(record, "bf16", B=256, C=16, rest=1 << 17)
        assert "whole" not in {a.strategy.name for a in alternatives(record, binding, H200)}


# --------------------------------------------------------------------------------------------- what it gives

# (samples, channels, places): one sample, one place, pieces that are no whole vectors, teams within a warp,
# of several, and of several blocks.
CHANNELS = [(1, 3, 40), (6, 2, 1), (5, 3, 49), (3, 4, 6), (4, 3, 196), (2, 2, 1024), (33, 2, 35), (9, 1, 784)]


@pytest.mark.parametrize("shape", CHANNELS, ids=str)
def test_channels_of_a_batch(shape):
    found = subject("batchnorm")
    extents = dict(zip(("B", "C", "rest"), shape, strict=True))
    record = found.norm.package.forward
    (launch,) = plan_launches(record, bound(record, "f32", **extents), H200, strategy="whole").launches
    assert launch.entry == "batchnorm_forward_registers"
    for dtypes in ("f32", "bf16", "bf16, params f32"):
        prove(found, case(found, dtypes, **extents))
    prove(found, replace(case(found, "bf16", **extents), offset=1))


@pytest.mark.parametrize("shape", [(32, 2, 784), (64, 1, 1024)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_channels_in_clusters(shape, dtype):
    found = subject("batchnorm")
    samples, channels, places = shape
    made = case(found, dtype, B=samples, C=channels, rest=places)
    for direction in ("forward", "backward"):
        record = getattr(found.norm.package, direction)
        binding = bound(record, dtype, B=samples, C=channels, rest=places)
        if plan_launches(record, binding, H200).launches[0].cluster > 1:
            break
    else:
        raise AssertionError("no cluster has a row")
    prove(found, made, HostExecutor())


# (samples, channels in a group, places): pieces of whole vectors and of narrow ones, teams within a warp, of
# one block and of several.
IMAGES = [(2, 40, 5), (1, 16, 96), (3, 10, 70), (2, 3, 33), (1, 40, 256), (1, 20, 512), (2, 1, 9)]


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("dtypes", ["f32", "bf16", "bf16, params f32"])
def test_groups_of_channels_that_come_last(shape, dtypes):
    found = subject("groupnorm_channels_last", groups=3)
    samples, channels, places = shape
    made = case(found, dtypes, B=samples, C=channels, rest=places)
    record = found.norm.package.forward
    (launch,) = plan_launches(
        record, bound(record, "bf16", B=samples, G=3, C=channels, rest=places), H200, strategy="whole"
    ).launches
    assert launch.entry == "groupnorm_channels_last_forward_registers"
    prove(found, made, directions=("forward",))
    prove(found, replace(made, offset=1, in_place=True), HostExecutor(), directions=("forward",))


@pytest.mark.parametrize("dtypes", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(3, 2, 40), (2, 3, 24), (65, 2, 136)], ids=str)
def test_gains_that_rows_share_are_needed_in_every_pass(shape, dtypes):
    found = subject("pixels")
    samples, channels, each = shape
    prove(found, case(found, dtypes, B=samples, C=channels, D=each), directions=("forward",))


@pytest.mark.parametrize(
    ("dtype", "channels", "places", "blocks"),
    [
        ("bf16", 40, 256, 2),
        ("f32", 40, 256, 4),
        ("bf16", 40, 1024, 8),
        ("f32", 8, 4096, 16),
    ],
)
def test_small_images_with_channels_last_are_read_once(dtype, channels, places, blocks):
    record = subject("groupnorm_channels_last", groups=32).norm.package.forward
    binding = bound(record, dtype, B=8, G=32, C=channels, rest=places)
    (launch,) = plan_launches(record, binding, H200).launches
    assert (launch.block[0], launch.cluster) == (128, blocks)


def test_narrow_groups_are_not():
    record = subject("groupnorm_channels_last", groups=32).norm.package.forward
    plan = plan_launches(record, bound(record, "bf16", B=8, G=32, C=10, rest=4096), H200)
    assert plan.launches[-1].entry.endswith("_resident")


def test_states_under_the_checker():
    found = subject("batchnorm")
    prove(found, case(found, "f32", B=16, C=2, rest=1024), CHECKED)


@pytest.mark.parametrize("lengths", [(2, 3, 2, 4, 4), (3, 1, 2, 5, 7), (1, 2, 3, 8, 8)], ids=str)
def test_several_axes_of_pieces(lengths):
    found = subject("video")
    for dtypes in ("f32", "bf16"):
        prove(found, case(found, dtypes, **dict(zip("NTCHW", lengths, strict=True))))


@pytest.mark.parametrize(
    "way",
    [
        {"accumulate": True},
        {"wrt": ("x",)},
        {"wrt": ("w", "b")},
        {"absent": ("w", "b")},
        {"absent": ("running_mean", "running_var")},
        {"in_place": True},
        {"given_out": True, "offset": 3},
        {"padded": True},
        {"save": False},
    ],
    ids=str,
)
def test_calls_on_channels_that_want_or_give_less_or_more(way):
    found = subject("batchnorm")
    for dtype in ("f32", "bf16"):
        prove(found, replace(case(found, dtype, B=5, C=3, rest=96), **way))
