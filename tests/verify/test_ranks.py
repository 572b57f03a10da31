"""The check of norms on simulated ranks: that it passes what is right, and fails what is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dtypes import DTYPES
from normgen.ir.grad import backward
from normgen.runtime.ranks.direction import SpreadDirection
from normgen.verify import rank_cases, ranks
from normgen.verify.cases import DTYPE_SETS, make_case
from normgen.verify.draw import scalar_values
from normgen.verify.events import Row
from normgen.verify.expected import Expected
from normgen.verify.run import Options, run
from tests.ir.specs import bundled as definition_of

pytestmark = pytest.mark.kernels

DIFFERENCES = (
    "norm differences\ninput x[..., D]\noutput y[..., D] = x - mean[D](x)\nsave s[...] = sum[D](x)\n"
)


def rows(spec, **options):
    found = run(Source("t.norm", spec), Options(executors=("host",), quick=True, **options))
    return [row for row in found if isinstance(row, Row) and row.stage == "kernels"]


def test_a_check_on_ranks_says_which_runs_they_had():
    found = rows(DIFFERENCES, shard={"D": 3}, sizes={"D": 7}, dtype="f32")
    assert [(row.status, row.direction) for row in found] == [("ok", "forward"), ("ok", "backward")]
    assert found[0].shape == "...=3 D=7, D in 3+2+2" and found[0].executor == "host, checked, 3 ranks"
    assert 0 < found[0].worst < 1


@pytest.mark.parametrize(
    ("name", "attrs", "shard"),
    [
        ("groupnorm", {"groups": 4}, {"(G C)": 2}),
        ("groupnorm_channels_last", {"groups": 3}, {"(G C)": 3}),
        ("qk_norm", {"head_dim": 2}, {"(H D)": 2, "(K D)": 2}),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("groupnorm", {"groups": 2}, {"(G C)": 3}),
                ("rmsnorm_fp8", {"group": 3, "e5m2": False}, {"(G E)": 2}),
                ("qk_norm", {"head_dim": 3}, {"(H D)": 4, "(K D)": 4}),
            )
        ),
    ],
)
def test_ranks_have_runs_of_a_dimension_of_several_axes(name, attrs, shard):
    """Of whole groups, or such as straddle groups."""
    found = rows(definition_of(name).source.text, attrs=attrs, shard=shard, dtype="f32")
    assert {row.direction for row in found} == {"forward", "backward"}
    assert all(row.ok for row in found), found


def test_what_ranks_get_wrong_is_found(monkeypatch):
    """A rank that is left out of a sum; and one that has other whole results than the others."""
    run_plainly = SpreadDirection.run

    def lossy(self, call, along):
        running = run_plainly(self, call, along)
        told = next(running)
        while True:
            gathered = (yield told).copy()
            gathered[-1] = 0
            try:
                told = running.send(gathered)
            except StopIteration as stop:
                return stop.value

    monkeypatch.setattr(SpreadDirection, "run", lossy)
    found = rows(DIFFERENCES, shard={"D": 2}, sizes={"D": 4}, dtype="f32")
    assert {row.status for row in found} == {"failed"}

    def unequal(self, call, along):
        made = yield from run_plainly(self, call, along)
        made["s"][...] += float(call.lengths.axes["D"])
        return made

    monkeypatch.setattr(SpreadDirection, "run", unequal)
    (found, *_) = rows(DIFFERENCES, shard={"D": 2}, sizes={"D": 5}, dtype="f32")
    assert (found.status, found.result) == ("failed", "s (which differs between ranks)")


# By element type, what rounding to it is off by at most: of a number, and of one near 0.
ROUNDED = {"f32": (2.0**-24, 2.0**-149), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}


@pytest.mark.parametrize(("share", "status"), [(0.99, True), (2.0, False)])
@pytest.mark.parametrize("dtype", ROUNDED)
def test_parts_of_a_sum_are_held_to_the_rounding_of_each(dtype, share, status):
    definition = load_definition(Source("p.norm", "norm p\ninput x[..., D]\noutput y[..., D] = x\n"), {})
    relative, least = ROUNDED[dtype]
    case = replace(make_case(definition, 1, 1), dtypes={"x": "f32", "y": dtype})
    each = rank_cases.SpreadCase(case, {"D": (1, 0)})
    for part, off in ((1.0, relative), (0.0, least)):
        parts = [np.full((1, 1), part, DTYPES[dtype].numpy)] * 2
        norm = SimpleNamespace(
            placements={"y": "part"},
            package=SimpleNamespace(attrs=()),
            forward=lambda parts=parts, **_: SimpleNamespace(y=parts),
        )
        truth = {"y": np.full((1, 1), 2 * (part + share * off))}
        expected = Expected({"x": np.zeros((1, 1))}, truth, {"y": np.zeros((1, 1))})
        (found,) = ranks.SpreadSubject(definition, None, norm).forward(
            each, SimpleNamespace(forward=expected)
        )
        assert found.comparison.ok is status, found


def test_runs_are_alike_or_larger_in_turn_with_none_in_the_middle():
    assert rank_cases.runs_of(37, 3, 0) == (13, 12, 12)
    assert rank_cases.runs_of(8, 3, 1) == (2, 0, 6) and rank_cases.runs_of(8, 1, 1) == (8,)
    assert len(rank_cases.runs_of(2, 8, 1)) == 8 and sum(rank_cases.runs_of(2, 8, 1)) == 2


# A norm, an axis, how many ranks: each way to exchange, in kernels.
WIDE = (
    ("rmsnorm", "D", 8),
    ("layernorm", "D", 3),
    ("softmax", "D", 8),
    ("batchnorm", "B", 3),
    ("batchnorm", "...", 2),
    ("groupnorm", "C", 3),
    ("weight_standardization", "...", 3),
    ("rmsnorm_quantized_row", "D", 2),
)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "axis", "count"), WIDE)
def test_ranks_are_right_within_the_bounds_of_the_norm(name, axis, count):
    definition = definition_of(name)
    derived = backward(definition)
    norm = ranks.spread_norm(definition, {axis: count}, HostExecutor(checked=True))
    case = make_case(definition, 4, 24, DTYPE_SETS[2])
    case = replace(case, rest=(case.extents["..."],) if axis == "..." else case.rest)
    each = rank_cases.SpreadCase(case, {axis: rank_cases.runs_of(case.extents[axis], count, 1)})
    found = ranks.spread_rows(
        lambda stage, status, **rest: Row(name, "", stage, status, **rest),
        ranks.SpreadSubject(definition, derived, norm),
        [each],
        scalar_values(definition.program),
        None,
        "host",
    )
    for row in found:
        assert row.status == "ok", row
