"""Cases of a shape: for every call within their limits the launches that planning makes for that call."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from normgen.ahead.cases import Cases
from normgen.launching.launch import LaunchPlan
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from tests.ahead.shapes import case_of, package, shaped

Sizes = tuple[tuple[str, int], ...]
SHAPES: list[tuple[str, dict[str, int], dict[str, int]]] = [
    ("rmsnorm", {}, {"D": 4096}),
    ("layernorm", {}, {"D": 1000}),
    ("softmax", {}, {"D": 150000}),
    ("add_rmsnorm", {}, {"D": 96}),
    ("dyt", {}, {"D": 512}),
    ("groupnorm", {"groups": 4}, {"C": 8, "...": 64}),
    ("instancenorm", {}, {"...": 196}),
    ("qk_norm", {"head_dim": 128}, {}),
    ("adaln_modulate", {}, {"D": 1024}),
    ("rmsnorm_quantized_tensor", {}, {"D": 2048}),
    ("rmsnorm_fp8", {"group": 128}, {"G": 4}),
]


@cache
def known(
    spec: str, name: str, attrs: tuple[tuple[str, int], ...], lengths: tuple[tuple[str, int], ...]
) -> Cases:
    """The cases of a direction of a spec."""
    return shaped(package(spec, **dict(attrs)), name, dict(lengths))


def printed(plan: LaunchPlan) -> LaunchPlan:
    """A plan with texts as they are."""
    return replace(plan, launches=tuple(replace(each, text=each.source) for each in plan.launches))


@pytest.mark.parametrize(("spec", "attrs", "lengths"), SHAPES, ids=[each[0] for each in SHAPES])
@pytest.mark.parametrize("name", ["forward", "backward"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(data=st.data())
def test_cases_launch_what_planning_launches(
    data: st.DataObject, spec: str, attrs: dict[str, int], lengths: dict[str, int], name: str
) -> None:
    cases = known(spec, name, tuple(attrs.items()), tuple(lengths.items()))
    case = data.draw(st.sampled_from(cases.cases))
    sizes = {axis: data.draw(st.integers(2, 3000), label=axis) for axis in cases.open}
    for bound in case.limits.bounds:  # calls on the edge of a case
        if len(bound.axes) == 1:
            low, high = max(2, bound.low), min(bound.high, 2**20)
            sizes[bound.axes[0]] = data.draw(st.sampled_from([low, high]) | st.integers(low, high))
    found = case_of(cases, sizes)
    if found is None:
        return
    binding = bind_sizes(cases.direction, cases.sizes | sizes, cases.dtype).binding
    planned = plan_launches(cases.direction.record, binding, cases.device, cases.strategy)
    assert printed(found.at(sizes)) == printed(planned)


def test_most_calls_are_in_a_case() -> None:
    for spec, attrs, lengths in SHAPES[:5]:
        for name in ("forward", "backward"):
            cases = shaped(package(spec, **attrs), name, lengths)
            assert all(case_of(cases, {"...": rows}) for rows in (1, 2, 100, 132, 133, 1000, 4096, 5000)), (
                spec
            )


def test_what_is_not_saved_is_not_written() -> None:
    made = package("rmsnorm")
    assert shaped(made, "forward", {"D": 512}).saves
    cases = shaped(made, "forward", {"D": 512}, saves=False)
    assert not cases.saves and "rstd" not in dict(cases.binding.operands)
    assert all("rstd" not in launch.writes for launch in cases.launches)


def test_a_length_that_a_text_depends_on_is_not_open() -> None:
    cases = shaped(package("layernorm2d"), "forward", {"B": 8, "C": 64, "...": 196})
    assert cases.open == ("B",) or cases.sizes["C"] == 64
    assert "C" not in cases.open


def test_a_device_without_the_multiprocessors_is_told_apart() -> None:
    rows = shaped(package("softmax"), "forward", {"D": 4096})
    assert not rows.resident
    assert replace(rows, cases=()).kernels == ()
