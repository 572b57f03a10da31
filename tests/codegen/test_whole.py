"""Rows that only teams that hold them can have, summed in parts besides or lying in pieces: what is planned,
when it is taken, that it is right."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from normgen import bundled
from normgen.codegen.group import Misfit
from normgen.codegen.package import package
from normgen.codegen.plan import KernelPlan, plan_in_pieces, plan_whole
from normgen.codegen.stages import groups_of
from normgen.codegen.strategies import strategies
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.show import show
from normgen.proof.cases import DTYPE_SETS, Case, make_case
from normgen.proof.expected import Subject
from normgen.runtime.arrays import view
from normgen.runtime.binding import bind
from normgen.runtime.direction import directions
from normgen.runtime.host import HostExecutor
from normgen.runtime.launch import (
    Choice,
    alternatives,
    candidates,
    choose_strategy,
    chosen,
    plan_launches,
)
from normgen.runtime.norm import Norm
from tests.codegen.norms import H200, bound
from tests.proof.subjects import CHECKED, prove

NESTED = """norm nested "A root mean square over two levels of channels; a gain for each of the outer one."
input x[B, C, D, ...]
param w[C] = 1
save  rstd[B] = rsqrt(mean[C, D, ...](x^2) + 0.01)
output y[B, C, D, ...] = x * rstd * w
"""
VIDEO = """norm video "Statistics of a channel over samples, frames and places."
input x[N, T, C, H, W]
param w[C] = 1
param b[C] = 0
save  mu[C]   = mean[N, T, H, W](x)
save  rstd[C] = rsqrt(mean[N, T, H, W]((x - mu)^2) + 0.01)
output y[N, T, C, H, W] = (x - mu) * rstd * w + b
"""
TWICE = """norm twice "Gains of channels and of what is inside them: parts of two kinds."
input x[B, C, D, ...]
param w[C] = 1
param v[C, D] = 1
save  rstd[B] = rsqrt(mean[C, D, ...](x^2) + 0.01)
output y[B, C, D, ...] = x * rstd * w * v
"""


@cache
def subject(name: str, groups: int = 0, strategy: str = "whole") -> Subject:
    source = bundled.read(name) or Source(
        f"{name}.norm", {"nested": NESTED, "twice": TWICE, "video": VIDEO}[name]
    )
    definition = load_definition(source, {"groups": groups} if groups else {})
    norm = Norm(package(definition), planner=partial(plan_launches, strategy=strategy))
    return Subject(definition, backward(definition), norm, strategy)


def case(found: Subject, dtypes: str = "f32", **extents: int) -> Case:
    lengths = {("..." if axis == "rest" else axis): n for axis, n in extents.items()}
    made = make_case(found.definition, 1, 1, next(d for d in DTYPE_SETS if d.name == dtypes), lengths)
    return replace(made, rest=(lengths.get("...", 1),))


def launched(found: Subject, dtype: str, strategy: str | None = None, **extents: int) -> list[str]:
    record = found.norm.package.backward
    assert record is not None
    plan = plan_launches(record, bound(record, dtype, **extents), H200, strategy=strategy)
    return [x.entry for x in plan.launches]


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
        "y[B, C, D] = x - mean[B, D](x) + v",  # an operand with part of a row
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
        binding = bound(record, "bf16", B=256, C=256, rest=3136)
        assert "whole" not in {a.strategy.name for a in alternatives(record, binding, H200)}


KERNEL = ["groupnorm_backward_registers", "groupnorm_backward_finalise"]


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("batch", "channels", "places"), [(8, 10, 4096), (8, 40, 256), (1, 2, 64), (16, 4, 49)]
)
def test_groups_that_a_cluster_holds_are_read_once(dtype, batch, channels, places):
    assert launched(subject("groupnorm", 32), dtype, B=batch, G=32, C=channels, rest=places) == KERNEL


@pytest.mark.parametrize(("channels", "places"), [(16, 65536), (4, 262144), (1, 1 << 24)])
def test_longer_groups_are_not(channels, places):
    found = subject("groupnorm", 32)
    record = found.norm.package.backward
    binding = bound(record, "bf16", B=2, G=32, C=channels, rest=places)
    assert {a.strategy.name for a in alternatives(record, binding, H200)} == {"fewest", "split"}
    knobs = candidates(record.strategies[0], binding, H200)[0][0].offer.knobs
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


@pytest.mark.parametrize(
    "way",
    [
        {"accumulate": True},
        {"wrt": ("x",)},
        {"wrt": ("b",)},
        {"wrt": ("w", "b")},
        {"absent": ("w", "b")},
        {"in_place": True},
        {"given_out": True, "offset": 3},
        {"padded": True},
    ],
    ids=str,
)
def test_calls_that_want_or_give_less_or_more(way):
    found = subject("groupnorm", 2)
    for dtype in ("f32", "bf16"):
        made = replace(case(found, dtype, B=3, G=2, C=3, rest=128), **way)
        prove(found, made, directions=("backward",))


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
