"""Kernels of the windows family: what is planned, what is not, and how they are run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.families.windows.compile.plan import WindowsPlan, plan_windows
from normgen.families.windows.launch.family import Windows, every
from normgen.ir.grad import backward
from normgen.kernel.group import Group, Misfit
from normgen.launching.call import INT_LIMIT, Call
from tests.codegen.norms import H200, SMALL, bound, source_of, usual_launches
from tests.codegen.windowing import LAST, WITHIN, kernel, subject, text


def plan(spec: str, direction: str = "forward", **attrs: object) -> WindowsPlan:
    definition = load_definition(Source("windowed.norm", spec), attrs)
    program = definition.program if direction == "forward" else backward(definition)
    space = frozenset().union(*(r.tensor.axes for r in program.results))
    return plan_windows(Group("windowed", program, space, program.results))


MISFITS = [
    ("norm a\ninput x[B, C]\noutput y[B, C] = x * 2\n", "forward", "sums over no window"),
    (
        "norm a\ninput x[B, C]\noutput y[B, C] = sum[C: -1 .. 1](x) / sum[C](x^2)\n",
        "forward",
        r"reduces over \[C\] as well as over windows",
    ),
    (
        text(WITHIN, "H: -2 .. 2, W: -2 .. 2", "let"),
        "backward",
        "sums windows of 25 elements within windows of 25",
    ),
]


@pytest.mark.parametrize(("spec", "direction", "reason"), MISFITS)
def test_what_does_not_fit_says_why(spec, direction, reason):
    with pytest.raises(Misfit, match=reason):
        plan(spec, direction)


def test_operands_with_part_of_an_image_are_looked_at_one_by_one():
    spec = "norm a\ninput x[B, C, D]\nparam w[C] = 1\noutput y[B, C, D] = x * w / sum[C: -1 .. 1](x^2)\n"
    assert plan(spec).image == ("C", "D") and not plan(spec).marches
    assert plan(spec.replace("w[C]", "w[B]")).marches


def test_values_without_axes_are_computed_once():
    source = source_of(kernel(subject(text()).norm.package, "backward").forms[0])
    assert re.search(r"const float \w*alpha_beta = .*alpha.*beta", source)
    loop = source[source.index("for (int base") :]
    assert not re.search(r"\b(alpha|beta)\b", loop)


def test_accesses_are_as_wide_as_memory_lets_them_be():
    package, lengths = subject(text(keep="let")).norm.package, {"B": 256, "C": 64, "rest": 1024}

    def offered(dtype: str = "bf16", **how: int) -> tuple[set[str], int]:
        """The forms of all schedules, and the widest vector; what is taken is one of these."""
        call = Call(bound(package.forward, dtype, **lengths, **how), H200)
        found = list(every(kernel(package, "forward"), call))
        assert found[0] in found[1:] or len(found) == 1
        return {s.form for s in found}, max(s.vector for s in found)

    assert offered() == ({"march", "pixels", "direct"}, 8)
    assert offered("f32")[1] == 4
    assert offered(alignment=4)[1] == 2
    assert offered(padding=8)[0] == {"direct"}  # no image is in one piece


@settings(max_examples=100, deadline=None)
@given(
    batch=st.integers(1, 4096),
    channels=st.integers(1, 1024),
    places=st.integers(1, 4096),
    direction=st.sampled_from(["forward", "backward"]),
    spec=st.sampled_from([text(), text(keep="let"), text(LAST), text(window="C: 0 .. 4")]),
    dtype=st.sampled_from(["f32", "bf16"]),
    device=st.sampled_from([H200, SMALL]),
)
def test_every_element_has_a_thread(batch, channels, places, direction, spec, dtype, device):
    package = subject(spec).norm.package
    binding = bound(getattr(package, direction), dtype, B=batch, C=channels, rest=places)
    call, record = Call(binding, device), kernel(package, direction)
    image = call.size(record.image)
    elements = batch * channels * places
    for s in Windows().space(record, call):
        (launch,) = Windows().lower(record, call, s).launches
        threads = launch.grid[0] * launch.block[0]
        assert launch.grid[1:] == (1, 1)
        if s.form == "direct":
            assert threads * s.vector >= elements
            continue
        if s.form == "pixels":
            blocks = -(-places // s.threads)
            assert launch.grid[0] == batch * s.ranges * blocks
            assert s.ranges * s.length >= channels > (s.ranges - 1) * s.length
            assert s.shared <= device.shared_per_block
            continue
        useful = (s.team - 2 * s.ghosts) * (32 // s.team)  # of a warp
        assert threads // 32 * useful >= s.lanes * s.ranges * elements // image
        assert image % s.vector == 0
        if s.form == "march":
            assert s.lanes * s.vector + s.drift == image // channels
            assert s.lanes * s.vector * s.steps >= image
            assert s.ranges * s.length >= s.steps > (s.ranges - 1) * s.length
            assert 1 <= s.team <= 32
            reach = sum(max(-low, high) for low, high in record.reaches)
            assert s.ghosts * s.vector >= abs(s.drift) * reach
            assert s.slots > s.ahead + sum(high for _, high in record.reaches)
            assert s.shared <= device.shared_per_block
        else:
            assert s.lanes * s.vector == image


def test_offsets_have_64_bits_where_a_tensor_needs_them():
    record = subject(text()).norm.package.forward
    for batch, kind in ((16, "int"), (INT_LIMIT // (64 * 4096) + 1, "long long")):
        call = Call(bound(record, "bf16", B=batch, C=64, rest=4096), H200)
        (launch,) = usual_launches(record.kernels[0], call)
        assert f"using index_t = {kind};" in launch.source


def march(spec: str) -> str:
    package = subject(spec).norm.package
    return next(source_of(f) for f in kernel(package, "backward").forms if f.form == "march")


def test_what_results_share_is_computed_once_and_early():
    source = march(text(keep="let"))
    assert source.count("raise_twice<") == 1 and "raise_all<" not in source  # powers of one denominator
    results = source[source.index("// results\n") :]
    assert "dy_pipeline.read" not in results and "early_1" in results
    assert "early_1" not in march(text(keep="let").replace("^-beta", ""))
    other = march(text(keep="let").replace("x * d^-beta", "x * (d^-beta + d^-alpha)"))
    assert other.count("raise_twice<") == 2  # each with that of its derivative
